"""Reads Excel sheets (.xlsx) row by row."""

from __future__ import annotations

import datetime
import shlex
import zipfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from whet.config import DataConfig
from whet.data.columns import own_name
from whet.data.readers.csv_dialect import find_header
from whet.data.readers.csv_files import record_batch
from whet.data.readers.raw_table import BATCH_ROWS, Part, RawSplit, Spill
from whet.data.readers.text_files import HARMLESS_BYTES, MAX_TIMES
from whet.errors import DataError, missing_extra

SAMPLE_ROWS = 1000


def read_excel(path: Path, config: DataConfig, scratch: Path) -> RawSplit:
    """Read the one sheet with rows, with cells as they are typed: 1 and not 1.0."""
    book = _open(path)
    try:
        rows = _cells(_sheet(book, path, config.sheet), path)
        sample = list(islice(rows, SAMPLE_ROWS))
        if not sample:
            raise DataError("the sheet is empty.", file=path.name)
        width = max(map(len, sample))
        header = find_header([_padded(row, width) for row in sample], config, path.name)
        names = _names(_padded(sample[0], width), header, path.name)
        spill = Spill(scratch / f"{len(list(scratch.iterdir()))}.arrow")
        limit = int(config.max_field_mb * 1_000_000)
        surrogates = 0
        waiting = sample[1:] if header else sample
        while waiting:
            batch = [_fitted(row, width, spill.rows + index + 1, path) for index, row in enumerate(waiting)]
            written, mended = record_batch(batch, names, limit, path.name, spill.rows)
            spill.write(written)
            surrogates += mended
            waiting = list(islice(rows, BATCH_ROWS))
        spill.close()
    finally:
        book.close()
    if not spill.rows:
        raise DataError(f"the sheet has a header ({', '.join(names)}) and no rows.", file=path.name)
    note = f"{'with' if header else 'without'} a header (--header)."
    part = Part(path.name, spill.rows, path.stat().st_size)
    return RawSplit(spill.schema, spill.read, (part,), notes=(note,), surrogates=surrogates)


def _open(path: Path) -> Any:
    try:
        import openpyxl
    except ImportError:
        raise missing_extra("openpyxl", "excel", "Reading Excel files") from None
    _refuse_bomb(path)
    try:
        return openpyxl.load_workbook(path, read_only=True, data_only=True)
    except Exception as error:  # zipfile, XML and openpyxl have exceptions of their own
        raise DataError(f"it cannot be read as an Excel file: {error}.", file=path.name) from None


def _refuse_bomb(path: Path) -> None:
    """Refuse a zip bomb: at most the declared unpacked size of a workbook's parts is ever read."""
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(part.file_size for part in archive.infolist())
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return  # the reader reports the error
    if size > max(HARMLESS_BYTES, MAX_TIMES * path.stat().st_size):
        raise DataError(
            f"the workbook unpacks to {size / 1e9:.1f} GB, more than {MAX_TIMES} times its size.",
            "Save the sheet as CSV.",
            file=path.name,
        )


def _sheet(book: Any, path: Path, name: str | None) -> Any:
    """Return the sheet of that name, or the only one with rows."""
    if name is not None:
        titles = [sheet.title for sheet in book.worksheets]
        found = own_name(name, titles)
        if found is None:
            raise DataError(f"there is no sheet {name!r}.", f"Sheets: {', '.join(titles)}.", file=path.name)
        return book[found]
    filled = [sheet for sheet in book.worksheets if any(True for _ in _cells(sheet, path))]
    if not filled:
        raise DataError("the workbook is empty.", file=path.name)
    if len(filled) > 1:
        raise DataError(
            f"more than one sheet has rows: {', '.join(sheet.title for sheet in filled)}.",
            f"Choose one: --sheet {shlex.quote(filled[0].title)}",
            file=path.name,
            go_on=("--sheet", filled[0].title),
        )
    return filled[0]


def _cells(sheet: Any, path: Path) -> Iterator[list[str]]:
    """Yield rows of text without the empty ones, of which spreadsheets leave many."""
    try:
        for row in sheet.iter_rows(values_only=True):
            cells = [_written(value) for value in row]
            while cells and not cells[-1]:
                cells.pop()
            if cells:
                yield cells
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"the sheet is broken: {error}.", file=path.name) from None


def _written(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return str(value)


def _padded(row: list[str], width: int) -> list[str]:
    return row + [""] * (width - len(row))


def _fitted(row: list[str], width: int, number: int, path: Path) -> list[str]:
    if len(row) > width:
        raise DataError(f"the row has {len(row)} cells where {width} are expected.", file=path.name, row=number)
    return _padded(row, width)


def _names(first: list[str], header: bool, file: str) -> list[str]:
    names = [cell.strip() or f"column_{place + 1}" for place, cell in enumerate(first)]
    if not header:
        return [f"column_{place + 1}" for place in range(len(first))]
    if len(set(names)) < len(names):
        raise DataError(f"the header names a column twice: {', '.join(names)}.", file=file)
    return names
