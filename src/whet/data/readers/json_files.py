"""Reads JSON and JSON lines in a stream: one object per line, a list of objects, or an object of columns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from whet.config import DataConfig
from whet.data.column_names import SPLITS
from whet.data.readers.object_rows import Row, SizedRow, split_of_objects
from whet.data.readers.raw_table import RawSplit
from whet.data.readers.text_files import OverlongLine, lines, open_text, undecodable
from whet.errors import DataError

WHOLE_FILE_LIMIT = 200_000_000
"""Largest object of columns, which must be read at once."""
ROWS_BY_NAME = 3
"""So many objects of the same fields in one object are its rows."""
MAX_CELLS = 100
"""Largest number of cells in a row that is a list instead of an object."""


def read_json(path: Path, config: DataConfig, scratch: Path) -> RawSplit:
    """Return the rows of a JSON file. Values keep their type; a column of mixed types cannot be used."""
    limit = int(config.max_field_mb * 1_000_000)
    return split_of_objects(lambda: json_rows(path, config, limit), path, config, scratch)


def json_rows(path: Path, config: DataConfig, limit: int) -> Iterator[tuple[Row, int]]:
    """Yield objects of the file, each with its number of characters."""
    with open_text(path, config.encoding) as text:
        try:
            start = text.read(65_536).lstrip()
        except UnicodeDecodeError:
            raise undecodable(path, config.encoding) from None
    if start.startswith("["):
        yield from _list_rows(path, config.encoding, limit)
    elif start.startswith("{") and (_rows_by_name(start) or not _one_object_per_line(start)):
        yield from _object_rows(path, config.encoding)
    else:
        yield from _line_rows(path, config.encoding, limit)


def _rows_by_name(start: str) -> bool:
    """Return whether an object holds its rows by their names, `{"a1": {"text": …}, "a2": {"text": …}, …}`: the first
    few values are objects with the same fields."""
    line, _, rest = start.partition("\n")
    if rest.lstrip().startswith("{") and _parses(line):
        return False  # JSON lines of such objects
    decoder, at = json.JSONDecoder(), 1
    fields: list[set[str]] = []
    try:
        while len(fields) < ROWS_BY_NAME:
            name, at = decoder.raw_decode(start, _after_blanks(start, at))
            at = _after_blanks(start, at)
            value, end = decoder.raw_decode(start, _after_blanks(start, at + 1))
            at = _after_blanks(start, end) + 1
            if not isinstance(name, str) or not isinstance(value, dict) or not value:
                return False
            fields.append(set(value))
    except (ValueError, RecursionError):
        return False
    return all(each == fields[0] for each in fields)


def _after_blanks(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def _one_object_per_line(start: str) -> bool:
    """Return whether this is JSON lines: the first line is a complete object (or longer than the sample)."""
    line, newline, rest = start.partition("\n")
    if not newline or not rest.strip():
        return (len(start) >= 60_000 and not newline) or (_parses(line) and not _holds_rows(line))
    return _parses(line) and (not rest.strip() or rest.lstrip().startswith("{"))


def _holds_rows(line: str) -> bool:
    """Return whether this is one object with a list of rows, as from a server, all in one line."""
    lists = [value for value in json.loads(line).values() if isinstance(value, list) and len(value) > 1]
    return any(all(isinstance(row, dict) for row in rows) for rows in lists)


def _parses(text: str) -> bool:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and not (value and all(isinstance(v, list) for v in value.values()))


def _line_rows(path: Path, encoding: str, limit: int) -> Iterator[tuple[Row, int]]:
    decoder = _decoder()
    row = number = 0
    try:
        for number, line in enumerate(lines(path, encoding, 16 * limit + 65_536), start=1):
            if not line.strip():
                continue
            row += 1
            try:
                value, end = decoder.raw_decode(line, len(line) - len(line.lstrip()))
            except (ValueError, RecursionError) as error:
                raise _broken(path, error, row, f"line {number}") from None
            if line[end:].strip():
                raise _broken(path, ValueError("something follows the object"), row, f"line {number}")
            yield _checked(value, path, row, limit), len(line)
    except OverlongLine:
        raise DataError(f"the line is longer than {16 * limit / 1e6:g} MB.", file=path.name, row=row + 1) from None


def _list_rows(path: Path, encoding: str, limit: int) -> Iterator[tuple[Row, int]]:
    """Yield objects of one long list, decoded one by one, so that only one is in memory."""
    decoder = _decoder()
    buffer, row, most = "", 0, 16 * limit + 65_536
    with open_text(path, encoding) as text:

        def more() -> bool:
            nonlocal buffer
            try:
                block = text.read(1 << 20)
            except UnicodeDecodeError:
                raise undecodable(path, encoding) from None
            buffer += block
            return bool(block)

        more()
        buffer = buffer.lstrip()[1:]
        expecting_comma = False
        while True:
            buffer = buffer.lstrip()
            if not buffer:
                if more():
                    continue
                raise _broken(path, ValueError("the list is not closed"), row, "end of file")
            if buffer[0] == "]" and (expecting_comma or not row):
                break
            if expecting_comma:
                if buffer[0] != ",":
                    raise _broken(path, ValueError(f"{buffer[0]!r} where a comma is expected"), row + 1, "")
                buffer, expecting_comma = buffer[1:], False
                continue
            try:
                value, end = decoder.raw_decode(buffer)
            except (ValueError, RecursionError) as error:
                # The object may be incomplete; one that never ends is refused by its size.
                if isinstance(error, RecursionError | _Twice) or len(buffer) > most or not more():
                    raise _broken(path, error, row + 1, "") from None
                continue
            row += 1
            yield _checked(value, path, row, limit), end
            buffer, expecting_comma = buffer[end:], True
        if buffer[1:].strip() or text.read(1024).strip():
            raise _broken(path, ValueError("something follows the list"), row, "end of file")


def splits_inside(path: Path, config: DataConfig) -> dict[str, str]:
    """Return the name of each split's list of rows, if one object holds a list per split; else empty."""
    with open_text(path, config.encoding) as text:
        try:
            start = text.read(65_536).lstrip()
        except UnicodeDecodeError:
            return {}
    if not start.startswith("{") or _rows_by_name(start) or _one_object_per_line(start):
        return {}
    value = _whole_object(path, config.encoding)
    found = {SPLITS[name.casefold()]: name for name in value if name.casefold() in SPLITS and _are_rows(value[name])}
    return found if "train" in found and len(found) > 1 else {}


def _are_rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict | list) for row in value)


def read_split_inside(path: Path, name: str, config: DataConfig, scratch: Path) -> RawSplit:
    """Return the rows of the list of this name."""
    limit = int(config.max_field_mb * 1_000_000)

    def rows() -> Iterator[SizedRow]:
        for number, row in enumerate(_whole_object(path, config.encoding)[name], 1):
            yield _checked(row, path, number, limit), 1

    return split_of_objects(rows, path, config, scratch)


def _whole_object(path: Path, encoding: str) -> dict[str, Any]:
    if path.stat().st_size > WHOLE_FILE_LIMIT:
        raise DataError("one JSON object this large is not read.", "Write one object per line.", file=path.name)
    with open_text(path, encoding) as text:
        try:
            content = text.read(WHOLE_FILE_LIMIT + 1)
            if len(content) > WHOLE_FILE_LIMIT:  # larger than its file if compressed
                raise DataError("one JSON object this large is not read.", "Write one object per line.", file=path.name)
            return dict(json.loads(content, object_pairs_hook=_unique))
        except UnicodeDecodeError:
            raise undecodable(path, encoding) from None
        except (ValueError, RecursionError) as error:
            raise _broken(path, error, 1, "") from None


def _object_rows(path: Path, encoding: str) -> Iterator[SizedRow]:
    """Read an object of columns, one that holds the list of rows under a single name, or one of rows by their names."""
    value = _whole_object(path, encoding)
    lists = {name: column for name, column in value.items() if isinstance(column, list)}
    of_rows = {name: rows for name, rows in lists.items() if rows and all(isinstance(r, dict) for r in rows)}
    if any(len(rows) > 1 for rows in of_rows.values()):  # next to them, one object describes the whole file
        of_rows = {name: rows for name, rows in of_rows.items() if len(rows) > 1}
    if len(of_rows) == 1:
        rows = next(iter(of_rows.values()))
    elif of_rows:
        raise DataError(
            f"there is more than one list of rows: {', '.join(of_rows)}.",
            "Save each in its own file.",
            file=path.name,
        )
    elif value and all(isinstance(row, dict) and row for row in value.values()):
        rows = [row if "id" in row else {"id": name, **row} for name, row in value.items()]
    elif lists and len(lists) == len(value) and len({len(column) for column in lists.values()}) == 1:
        rows = [dict(zip(lists, cells, strict=True)) for cells in zip(*lists.values(), strict=True)]
    else:
        raise DataError(
            f"the object holds no rows; its fields are {', '.join(list(value)[:10]) or 'none'}.",
            "Write a list of objects, or one object per line.",
            file=path.name,
        )
    for row in rows:
        yield row, 1


class _Twice(ValueError):
    """A name occurs twice in one object, so its value is ambiguous."""


def _unique(pairs: list[tuple[str, Any]]) -> Row:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise _Twice(f"the name {next(n for n in names if names.count(n) > 1)!r} occurs twice in one object")
    return found


def _decoder() -> json.JSONDecoder:
    return json.JSONDecoder(object_pairs_hook=_unique)


def _checked(value: Any, path: Path, row: int, limit: int) -> Row:
    if isinstance(value, list) and 2 <= len(value) <= MAX_CELLS and not any(isinstance(v, dict | list) for v in value):
        value = {f"column_{number}": cell for number, cell in enumerate(value, 1)}
    if not isinstance(value, dict):
        raise DataError(
            f"the row is {'a list' if isinstance(value, list) else repr(value)[:40]}, not an object.",
            'Write each row as {"text": …, "label": …}.',
            file=path.name,
            row=row,
        )
    for name, cell in value.items():
        if isinstance(cell, str) and len(cell) > limit:
            raise DataError(
                f"a field is larger than {limit / 1e6:g} MB.",
                "Raise --max-field-mb if that is right.",
                file=path.name,
                row=row,
                column=name,
            )
    return value


def _broken(path: Path, error: Exception, row: int, where: str) -> DataError:
    reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
    place = f" ({where})" if where else ""
    return DataError(f"this is not JSON{place}: {reason.rstrip('.')}.", file=path.name, row=row)
