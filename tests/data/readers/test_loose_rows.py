"""Tables that are not quite tables: texts with bare delimiters, comments before the first row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.data_files import load
from whet.data.readers.csv_dialect import LooseRows
from whet.errors import DataError

ROWS = [(f'Number {n} was late, they said{", " * (n % 3)} "twice".', ("neg", "pos")[n % 2]) for n in range(30)]
WHOLE: dict[str, Any] = {"validation_share": 0, "test_share": 0}


@pytest.mark.parametrize(
    ("line", "column", "cells"),
    [
        ("pos,a, b,c\r\n", 1, ["pos", "a, b,c"]),
        ("a, b,pos", 0, ["a, b", "pos"]),
        ('7,"a ""b"", c",pos', 1, ["7", 'a "b", c', "pos"]),
        ("only", 1, ["only"]),
        ("\n", 0, []),
    ],
)
def test_one_column_takes_the_delimiters_that_are_too_many(line: str, column: int, cells: list[str]) -> None:
    width = max(2, len(cells))
    assert list(LooseRows([line], ",", column, width)) == [cells]


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("names", [("text", "label", "number"), ("Satz", "Urteil", "Zahl")])
def test_the_column_of_bare_delimiters_is_found_wherever_it_stands(
    place: int, names: tuple[str, str, str], tmp_path: Path
) -> None:
    lines = []
    for number, (text, label) in enumerate([names[:2], *ROWS]):
        cells = [label, str(1 + number % 3) if number else names[2]]
        lines.append(",".join([*cells[:place], text, *cells[place:]]))
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(DataError, match="use quoting='loose'") as refused:
        load(tmp_path / "rows.csv", **WHOLE)
    assert refused.value.go_on == ("--quoting", "loose")
    examples = load(tmp_path / "rows.csv", quoting="loose", text=names[0], label=names[1], **WHOLE)
    found = [examples.rows["train"].row(at) for at in range(len(ROWS))]
    assert [(row["text"], examples.task.labels[row["label"]]) for row in found] == ROWS


def test_a_row_of_too_few_columns_is_refused_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("label,text\npos,a, b\nneg,c\nneg\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"the row has 1 column \(line 4\)") as refused:
        load(tmp_path / "rows.csv", quoting="loose")
    assert refused.value.go_on == ()


COMMENTS = "# exported by a tool\n\n# in two parts\n"


def test_comments_before_the_first_row_are_passed_over_and_said(tmp_path: Path) -> None:
    body = "text,label\n" + "".join(f"a text of {n},{('neg', 'pos')[n % 2]}\n" for n in range(20))
    (tmp_path / "rows.csv").write_text(COMMENTS + body, encoding="utf-8")
    examples = load(tmp_path / "rows.csv", **WHOLE)
    assert len(examples.rows["train"]) == 20
    assert "after 3 lines of comments" in " ".join(examples.messages)
    (tmp_path / "rows.csv").write_text(COMMENTS + body + "short\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"rows.csv:21: the row has 1 column \(line 25\)"):
        load(tmp_path / "rows.csv", **WHOLE)


def test_a_header_that_begins_with_a_number_sign_is_no_comment(tmp_path: Path) -> None:
    body = "#id,text,label\n" + "".join(f"{n},a text of {n},{('neg', 'pos')[n % 2]}\n" for n in range(20))
    (tmp_path / "rows.csv").write_text(body, encoding="utf-8")
    assert load(tmp_path / "rows.csv", **WHOLE).columns.text == "text"


def test_the_text_by_name_may_be_shorter_than_the_label(tmp_path: Path) -> None:
    rows = [(f"{n}, so", f"a label of many words, {'xy'[n % 2]}") for n in range(20)]
    body = "".join(f'"{label}",{text}\n' for text, label in rows).replace(", x", " x").replace(", y", " y")
    (tmp_path / "rows.csv").write_text(f"label,text\n{body}", encoding="utf-8")
    examples = load(tmp_path / "rows.csv", quoting="loose", **WHOLE)
    assert [examples.rows["train"].row(at)["text"] for at in range(20)] == [text for text, _ in rows]
