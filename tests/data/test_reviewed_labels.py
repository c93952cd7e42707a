from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data_files import Rows, as_csv, everything, labelled, load, write
from whet.config import DataConfig
from whet.data.examples import Examples, load_examples
from whet.errors import DataError, UsageError
from whet.utils.review_file import COLUMNS, cell, csv_line, header_line, text_check

ROWS = labelled(40)


def review(path: Path, decisions: dict[int, str], rows: Rows = ROWS, likely: str | None = None) -> Path:
    """A file of reviewed labels; the likely label of a row is the other one unless it is given."""
    lines = [header_line()]
    for row, word in decisions.items():
        text, label = rows[row - 1]
        other = likely or ("good" if label == "bad" else "bad")
        cells = {"row": row, "text": text, "given": label, "likely": other, "probability": 0.9}
        lines.append(csv_line({**cells, "decision": word, "check": text_check(text, None)}))
    return write(path, "".join(lines))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write(tmp_path / "rows.csv", as_csv(ROWS))


def read(source: Path, reviewed: Path, **settings: Any) -> Examples:
    return load(source, labels_from=str(reviewed), **settings)


def test_accepted_rows_get_the_likely_label_and_the_others_keep_theirs(tmp_path: Path, source: Path) -> None:
    examples = read(source, review(tmp_path / "r.csv", {1: "accept", 2: "keep", 3: "skip", 4: "", 5: " Accept "}))
    expected = [(text, "good" if row in (1, 5) else label) for row, (text, label) in enumerate(ROWS, start=1)]
    assert everything(examples) == expected


def test_rows_stay_on_the_side_of_the_split_where_they_were(tmp_path: Path, source: Path) -> None:
    plain, changed = load(source), read(source, review(tmp_path / "r.csv", dict.fromkeys(range(1, 11), "accept")))
    sides = [{name: rows.column("row") for name, rows in each.rows.items()} for each in (plain, changed)]
    assert sides[0] == sides[1]


def test_what_changed_is_counted_said_and_recorded(tmp_path: Path, source: Path) -> None:
    examples = read(source, review(tmp_path / "r.csv", {1: "accept", 3: "accept", 2: "accept", 4: "keep", 6: "skip"}))
    line = (
        "Reviewed labels of r.csv: 3 rows get another label (bad → good: 2, good → bad: 1); "
        "1 kept, 1 not decided (--labels-from)."
    )
    assert line in examples.messages
    accounts = {"accept": 3, "keep": 1, "skip": 1, "open": 0, "changed": 3}
    changes = {"bad → good": 2, "good → bad": 1}
    assert examples.origin["reviewed_labels"] == {"file": "r.csv", **accounts, "changes": changes}


def test_the_fingerprint_changes_with_the_decisions_only(tmp_path: Path, source: Path) -> None:
    plain = load(source).fingerprint
    assert read(source, review(tmp_path / "keep.csv", {1: "keep"})).fingerprint == plain
    one = read(source, review(tmp_path / "r.csv", {1: "accept"})).fingerprint
    two = read(source, review(tmp_path / "r.csv", {2: "accept"})).fingerprint
    assert len({plain, one, two}) == 3


def test_the_last_line_of_a_row_counts(tmp_path: Path, source: Path) -> None:
    first = review(tmp_path / "r.csv", {1: "accept", 2: "accept"}).read_text()
    taken_back = review(tmp_path / "other.csv", {1: ""}).read_text().split("\n", 1)[1]
    examples = read(source, write(tmp_path / "r.csv", first + taken_back))
    assert [label for _, label in everything(examples)[:2]] == ["bad", "bad"]


def test_another_label_may_be_written_in(tmp_path: Path) -> None:
    rows = labelled(45, ("bad", "fair", "good"))
    source = write(tmp_path / "rows.csv", as_csv(rows))
    examples = read(source, review(tmp_path / "r.csv", {1: "accept"}, rows, likely="fair"))
    assert everything(examples)[0][1] == "fair"


def test_a_review_of_other_rows_is_refused(tmp_path: Path, source: Path) -> None:
    reviewed = review(tmp_path / "r.csv", {7: "keep"}, [(f"{text} more", label) for text, label in ROWS])
    with pytest.raises(DataError, match=r"r\.csv was made for other rows: row 7"):
        read(source, reviewed)
    far = review(tmp_path / "far.csv", {44: "accept"}, labelled(44))
    with pytest.raises(DataError, match="names row 44, and the source has 40"):
        read(source, far)


def test_a_row_that_another_rule_leaves_out_needs_no_label(tmp_path: Path) -> None:
    rows = [*ROWS, ROWS[0]]
    source = write(tmp_path / "rows.csv", as_csv(rows))
    examples = read(source, review(tmp_path / "r.csv", {41: "accept", 2: "accept"}, rows), drop=("duplicate",))
    assert examples.origin["reviewed_labels"]["changed"] == 1


def test_a_spreadsheet_may_have_written_it_again(tmp_path: Path, source: Path) -> None:
    lines = list(csv.reader(review(tmp_path / "r.csv", {1: "ACCEPT", 2: "keep"}).read_text().splitlines()))
    content = "\r\n".join(";".join(f'"{value}"' for value in line) for line in lines)
    examples = read(source, write(tmp_path / "r.csv", b"\xef\xbb\xbf" + content.encode()))
    assert everything(examples)[0][1] == "good"


def test_pairs_are_known_by_both_texts(tmp_path: Path) -> None:
    source = write(tmp_path / "rows.csv", as_csv([(t, f"{t} b", y) for t, y in ROWS], ("text", "pair", "label")))
    line = {"row": 1, "likely": "good", "decision": "accept", "check": text_check(ROWS[0][0], f"{ROWS[0][0]} b")}
    reviewed = write(tmp_path / "r.csv", header_line() + csv_line(line))
    assert read(source, reviewed).origin["reviewed_labels"]["changed"] == 1
    write(reviewed, header_line() + csv_line({**line, "check": text_check(ROWS[0][0], None)}))
    with pytest.raises(DataError, match="another text"):
        read(source, reviewed)


@pytest.mark.parametrize(
    "line, message",
    [
        ("x,t,,bad,good,0.9,accept,text-1", "row number is 'x'"),
        ("0,t,,bad,good,0.9,accept,text-1", "row number is '0'"),
        ("1,t,,bad,good,0.9,yes,text-1", "decision is 'yes'"),
        ("1,t,,bad,great,0.9,accept,text-1", "'great', which no training row has"),
    ],
)
def test_a_line_that_cannot_be_used_is_named(tmp_path: Path, source: Path, line: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(source, write(tmp_path / "r.csv", f"{header_line()}{line}\n"))


def test_a_file_of_something_else_is_refused(tmp_path: Path, source: Path) -> None:
    with pytest.raises(DataError, match="no column 'row'"):
        read(source, source)
    with pytest.raises(DataError, match="There is no file"):
        read(source, tmp_path / "none.csv")


def test_only_one_label_per_row_is_understood(tmp_path: Path) -> None:
    source = write(tmp_path / "rows.csv", as_csv([(text, n / 7) for n, (text, _) in enumerate(ROWS)]))
    with pytest.raises(UsageError, match="the task is regression"):
        read(source, review(tmp_path / "r.csv", {1: "accept"}), label="label", task="regression")


def test_rows_that_are_only_scored_take_no_decisions(tmp_path: Path, source: Path) -> None:
    with pytest.raises(UsageError, match="nothing is trained here"):
        load_examples(source, DataConfig(labels_from=str(review(tmp_path / "r.csv", {1: "accept"}))), labelled=False)


@given(st.text(max_size=60), st.text(max_size=60), st.text(max_size=20))
def test_any_text_is_one_line_with_all_its_cells(text: str, pair: str, label: str) -> None:
    line = csv_line({"row": 1, "text": text, "pair": pair, "given": label, "check": text_check(text, pair)})
    assert len(line.splitlines()) == 1
    (cells,) = csv.reader([line])
    assert len(cells) == len(COLUMNS)
    assert cells[3] == cell(label)
    assert text_check(text, pair) == cells[-1]
