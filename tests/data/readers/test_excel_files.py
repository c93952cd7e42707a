"""Sheets are chosen by name, and predictions go into one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openpyxl
import pytest

from tests.data_files import as_csv, labelled, load, write
from whet.data.export import write_rows
from whet.errors import DataError


def book(path: Path, **sheets: list[Any]) -> Path:
    made = openpyxl.Workbook()
    made.remove(made.active)
    for name, rows in sheets.items():
        sheet = made.create_sheet(name)
        for row in rows:
            sheet.append(row)
    made.save(path)
    return path


ROWS = [["text", "label"], *map(list, labelled(40))]


def test_the_sheet_is_named_in_any_case(tmp_path: Path) -> None:
    path = book(tmp_path / "a.xlsx", Notes=[["about"], ["this"]], Reviews=ROWS)
    assert sum(load(path, sheet="reviews").splits.num_rows.values()) == 40


def test_several_sheets_ask_and_an_unknown_one_is_refused(tmp_path: Path) -> None:
    path = book(tmp_path / "a.xlsx", Notes=[["about"], ["this"]], Reviews=ROWS)
    with pytest.raises(DataError, match=r"more than one sheet has rows: Notes, Reviews\. Choose one: sheet='Notes'"):
        load(path)
    with pytest.raises(DataError, match=r"there is no sheet 'Review'\. Sheets: Notes, Reviews"):
        load(path, sheet="Review")


def test_a_sheet_of_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="neither an Excel file nor a database"):
        load(write(tmp_path / "a.csv", as_csv(labelled())), sheet="Reviews")


def written(path: Path, rows: list[dict[str, Any]], added: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    write_rows(path, list(rows[0]), [rows], added)
    return list(openpyxl.load_workbook(path).active.iter_rows(values_only=True))


def test_rows_are_written_with_numbers_as_numbers_and_no_formula(tmp_path: Path) -> None:
    rows = [{"text": "=1+1", "count": "12", "code": "007", "odd": "a\x07b"}]
    cells = written(tmp_path / "out.xlsx", rows, [{"label": ["x", "y"], "probability": 0.25}])
    assert cells == [
        ("text", "count", "code", "odd", "label", "probability"),
        ("=1+1", 12, "007", "a\ufffdb", "x|y", 0.25),
    ]
    assert openpyxl.load_workbook(tmp_path / "out.xlsx").active["A2"].data_type == "s"


def test_a_text_that_a_cell_cannot_hold_is_refused_and_not_cut(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"40,000 characters, and Excel holds 32,767\. Write \.csv"):
        written(tmp_path / "out.xlsx", [{"text": "x" * 40_000}], [{"label": "a"}])
