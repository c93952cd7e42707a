"""Writes a source's own rows with added columns as an Excel sheet."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from whet.errors import DataError, missing_extra

MAX_ROWS, MAX_COLUMNS, MAX_CHARACTERS = 1_048_576, 16_384, 32_767
_NUMBER = re.compile(r"-?(0|[1-9]\d{0,14})(\.\d{0,9}[1-9])?")
"""Numbers as a sheet shows them; `007` and `1e5` are text."""


def write_excel(
    path: Path,
    name: str,
    columns: Sequence[str],
    rows: Iterable[dict[str, Any]],
    added: Sequence[dict[str, Any]],
    as_text: Callable[..., str],
) -> None:
    """Write a sheet: numbers stay numbers, and nothing becomes a formula. Raise if the rows do not fit.

    `name` is the file name in errors.
    """
    try:
        from openpyxl import Workbook
    except ImportError:
        raise missing_extra("openpyxl", "excel", "Writing Excel files") from None
    names = [*columns, *(added[0] if added else ())]
    _refuse_too_large(name, len(added) + 1, len(names))
    book = Workbook(write_only=True)
    sheet = book.create_sheet("predictions")
    try:
        sheet.append([_cell(sheet, title, name, 0) for title in names])
        for number, (row, more) in enumerate(zip(rows, added, strict=True), 1):
            own = [_number_or_text(as_text(row.get(name))) for name in columns]
            new = [value if isinstance(value, float) else as_text(value, joined="|") for value in more.values()]
            sheet.append([_cell(sheet, value, name, number) for value in (*own, *new)])
    except BaseException:
        sheet.close()
        raise
    book.save(path)


def _refuse_too_large(file: str, rows: int, columns: int) -> None:
    if rows > MAX_ROWS or columns > MAX_COLUMNS:
        raise DataError(
            f"{rows:,} rows of {columns:,} columns do not fit into an Excel sheet.",
            "Write .csv or .parquet.",
            file=file,
        )


def _number_or_text(value: str) -> str | float:
    return float(value) if _NUMBER.fullmatch(value) else value


def _cell(sheet: Any, value: str | float, file: str, row: int) -> Any:
    """Return a text cell, even if it starts like a formula, without characters that a sheet cannot hold."""
    from openpyxl.cell import WriteOnlyCell
    from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE

    if not isinstance(value, str):
        return value
    if len(value) > MAX_CHARACTERS:
        raise DataError(
            f"the cell has {len(value):,} characters, and Excel holds {MAX_CHARACTERS:,}.",
            "Write .csv or .parquet.",
            file=file,
            row=row,
        )
    cell = WriteOnlyCell(sheet, ILLEGAL_CHARACTERS_RE.sub("\ufffd", value))
    cell.data_type = "s"
    return cell
