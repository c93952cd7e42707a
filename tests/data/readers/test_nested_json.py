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
