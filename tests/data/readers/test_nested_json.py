"""What lies inside objects is a column where it is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.data_files import load, text, write
from whet.errors import DataError


def rows(count: int = 40) -> list[dict[str, Any]]:
    return [
        {"id": n, "content": {"text": text(n), "by": {"name": "x"}}, "meta": {"stars": n % 2}, "label": "ab"[n % 2]}
        for n in range(count)
    ]


def lines(path: Path, found: list[dict[str, Any]] | None = None) -> Path:
    return write(path / "a.jsonl", "\n".join(map(json.dumps, found or rows())) + "\n")


def test_a_dotted_name_is_a_column(tmp_path: Path) -> None:
    examples = load(lines(tmp_path), text="content.text", label="meta.stars")
    assert (examples.columns.text, examples.columns.label) == ("content.text", "meta.stars")
    assert examples.task.labels == ("0", "1")
    assert {row["text"] for split in examples.splits.values() for row in split} == {text(n) for n in range(40)}


def test_a_list_of_objects_is_read_alike(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", json.dumps(rows()))
    assert load(path, text="content.text").columns.label == "label"


def test_fields_that_are_passed_over_are_named(tmp_path: Path) -> None:
    found = [{**row, "text": text(n + 50)} for n, row in enumerate(rows())]
    said = " ".join(load(lines(tmp_path, found)).messages)
    assert "passed over, for they hold objects: content, meta (name what is inside: --text content." in said


def test_a_field_from_which_a_column_is_read_is_not_passed_over(tmp_path: Path) -> None:
    said = " ".join(load(lines(tmp_path), text="content.text", label="meta.stars").messages)
    assert "passed over" not in said
    assert "hold objects: meta (" in " ".join(load(lines(tmp_path), text="content.text").messages)


def test_what_is_inside_is_listed_where_a_column_is_missing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"Inside its objects: content\.by\.name, content\.text, meta\.stars"):
        load(lines(tmp_path), text="content.txt")


def test_a_name_with_a_dot_at_the_top_is_that_column(tmp_path: Path) -> None:
    found = [{"a.text": text(n), "a": {"text": "no"}, "label": "xy"[n % 2]} for n in range(40)]
    examples = load(lines(tmp_path, found), text="a.text")
    assert "no" not in {row["text"] for split in examples.splits.values() for row in split}


def test_a_row_without_the_object_has_an_empty_text(tmp_path: Path) -> None:
    found = [*rows(), {"id": 1, "content": None, "label": "a"}]
    with pytest.raises(DataError, match=r"1 row has an empty text \(rows 41\)"):
        load(lines(tmp_path, found), text="content.text")


def test_what_is_inside_is_used_where_nothing_else_does(tmp_path: Path) -> None:
    found = [{"id": row["id"], "content": row["content"], "meta": {"kind": row["label"]}} for row in rows()]
    examples = load(lines(tmp_path, found), label="meta.kind")
    assert (examples.columns.text, examples.columns.label) == ("content.text", "meta.kind")
    alone = [{"data": {"text": row["content"]["text"], "label": row["label"]}} for row in rows()]
    assert load(lines(tmp_path, alone)).columns.text == "data.text"


def test_a_list_for_each_split_makes_these_splits(tmp_path: Path) -> None:
    pairs = [[text(n), "ab"[n % 2]] for n in range(40)]
    value = {"train": pairs[:30], "val": pairs[30:35], "test": pairs[35:], "oos": [["x", "y"]]}
    examples = load(write(tmp_path / "a.json", json.dumps(value)))
    assert examples.origin["rows"] == {"train": 30, "validation": 5, "test": 5}
    objects = {
        name: [dict(zip(("text", "label"), pair, strict=True)) for pair in value[name]] for name in ("train", "test")
    }
    assert load(write(tmp_path / "b.json", json.dumps(objects))).origin["splits"]["test"] == "given"


def test_rows_as_lists_are_columns_without_names(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", json.dumps([[text(n), "ab"[n % 2]] for n in range(40)]))
    assert load(path).columns.text == "column_1"


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("count", [40, 2000])
def test_rows_by_their_names_are_rows(indent: int | None, count: int, tmp_path: Path) -> None:
    named = {f"r{n}": {"text": text(n), "label": "ab"[n % 2]} for n in range(count)}
    examples = load(write(tmp_path / "a.json", json.dumps(named, indent=indent)))
    assert sum(map(len, examples.rows.values())) == count


def test_lines_of_objects_that_hold_alike_objects_stay_lines(tmp_path: Path) -> None:
    found = [{name: {"text": f"{text(n)} {name}"} for name in ("first", "second", "third")} for n in range(40)]
    for n, row in enumerate(found):
        row["label"] = {"text": "ab"[n % 2]}
    examples = load(lines(tmp_path, found), text="first.text", label="label.text")
    assert sum(map(len, examples.rows.values())) == 40
