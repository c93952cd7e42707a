"""JSON and JSON lines, in a stream: one object a line, or a list of objects, or an object of columns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from whet.config import DataConfig
from whet.data.readers.raw_table import BATCH_ROWS, Part, RawSplit, Spill
from whet.data.readers.text_files import OverlongLine, lines, mend_surrogates, open_text, undecodable
from whet.errors import DataError, shortened_list

WHOLE_FILE_LIMIT = 200_000_000
"""An object of columns has to be read at once; anything larger is refused."""
BATCH_CHARACTERS = 16_000_000
LOOKED_INTO = 1000
"""Rows whose objects are looked into for the names of what they hold."""
KINDS: dict[type, str] = {str: "text", bool: "truth", int: "whole", float: "number", dict: "nested"}
Row = dict[str, Any]


def read_json(path: Path, config: DataConfig, scratch: Path) -> RawSplit:
    """The rows of a JSON file. Values keep their type; a column that mixes types cannot be used."""
    limit = int(config.max_field_mb * 1_000_000)
    kinds: dict[str, str] = {}
    inner: dict[str, None] = {}
    place = scratch / f"{len(list(scratch.iterdir()))}.arrow"
    while True:
        spill = Spill(place)
        try:
            surrogates = _write(path, config, limit, kinds, inner, spill)
            break
        except _Wider:
            continue  # a later row holds a type or a column that the first rows did not have: read anew
        finally:
            spill.close()
    if not spill.rows:
        raise DataError("the file has no rows.", file=path.name)
    unusable = tuple(name for name, kind in kinds.items() if kind in ("nested", "mixed"))
    if len(unusable) == len(kinds):
        raise DataError(
            f"no field can be used: {', '.join(unusable) or 'the objects are empty'}.",
            f"Name what is inside: {shortened_list(list(inner), 20, quoted=False)} (--text)."
            if inner
            else "Each object needs a text and a label at its top level.",
            file=path.name,
        )
    part = Part(path.name, spill.rows, path.stat().st_size)
    objects = [name for name, kind in kinds.items() if kind == "nested"]
    example = next(iter(inner), "field.name")
    named = shortened_list(objects, quoted=False)
    passed = f"passed over, for they hold objects: {named} (name what is inside: --text {example})."
    return RawSplit(
        spill.schema,
        spill.read,
        (part,),
        nested=unusable,
        inner=tuple(inner),
        notes=(passed,) if objects else (),
        surrogates=surrogates,
    )


class _Wider(Exception):
    """The column kinds known so far do not hold for the whole file."""


def dotted_names(config: DataConfig) -> list[str]:
    """Names with a dot among those of text, pair and label: what they mean may lie inside an object."""
    given = [config.text, config.pair, *(config.label or "").split(",")]
    return [name.strip() for name in given if name and "." in name]


def value_at(row: Row, name: str) -> Any:
    """The value behind a dotted name; None where the row has none."""
    value: Any = row
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _names_inside(row: Row) -> Iterator[str]:
    """Dotted names of all values in the objects of a row."""
    for name, value in row.items():
        if isinstance(value, dict):
            yield from (f"{name}.{rest}" for rest in _names_inside(value))
            yield from (f"{name}.{key}" for key, each in value.items() if not isinstance(each, dict))


def _write(
    path: Path, config: DataConfig, limit: int, kinds: dict[str, str], inner: dict[str, None], spill: Spill
) -> int:
    """Write the rows with these column kinds; widens them and raises where a row does not fit."""
    rows = json_rows(path, config, limit)
    surrogates = 0
    first, wanted = True, dotted_names(config)
    while batch := _take(rows, limit):
        if first:
            inner.update(dict.fromkeys(name for row in batch[:LOOKED_INTO] for name in _names_inside(row)))
        for row in batch if wanted else ():
            row.update({name: value_at(row, name) for name in wanted if name not in row and name in inner})
        wider = _widen(kinds, batch)
        if wider and not first:
            raise _Wider
        first = False
        record_batch, mended = _record_batch(batch, kinds, path.name, spill.rows)
        surrogates += mended
        spill.write(record_batch)
    return surrogates


def _take(rows: Iterator[tuple[Row, int]], limit: int) -> list[Row]:
    """Rows until there are enough of them, or enough characters."""
    found: list[Row] = []
    size = 0
    for row, characters in islice(rows, BATCH_ROWS):
        found.append(row)
        size += characters
        if size > BATCH_CHARACTERS:
            break
    return found


def _widen(kinds: dict[str, str], rows: list[Row]) -> bool:
    before = dict(kinds)
    for row in rows:
        for name, value in row.items():
            kind = _kind(value)
            known = kinds.get(name)
            if known is None or known == "null":
                kinds[name] = kind
            elif kind not in (known, "null"):
                kinds[name] = "number" if {kind, known} == {"whole", "number"} else "mixed"
    return kinds != before


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, list):
        inner = {_kind(item) for item in value} - {"null"}
        if not inner or inner <= {"text"}:
            return "list"
        return "list" if inner <= {"whole"} else "nested"
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**63:
        return "mixed"
    return KINDS.get(type(value), "nested")


def _record_batch(rows: list[Row], kinds: dict[str, str], file: str, before: int) -> tuple[Any, int]:
    import pyarrow as pa

    types = {
        "text": pa.large_string(), "null": pa.large_string(), "truth": pa.bool_(), "whole": pa.int64(),
        "number": pa.float64(), "list": pa.large_list(pa.large_string()),
    }  # fmt: skip
    arrays, names, mended = [], [], 0
    for name, kind in kinds.items():
        if kind in ("nested", "mixed"):
            continue
        values = [row.get(name) for row in rows]
        if kind == "list":
            values = [v if v is None else [i if i is None else str(i) for i in v] for v in values]
        try:
            array = pa.array(values, types[kind])
        except UnicodeEncodeError:
            pairs = [_mend(value) for value in values]
            mended += sum(count for _, count in pairs)
            array = pa.array([value for value, _ in pairs], types[kind])
        arrays.append(array)
        names.append(mend_surrogates(name)[0])
    if not arrays:
        arrays, names = [pa.nulls(len(rows), pa.large_string())], ["nothing usable"]
    return pa.record_batch(arrays, names=names), mended


def _mend(value: Any) -> tuple[Any, int]:
    if isinstance(value, str):
        return mend_surrogates(value)
    if isinstance(value, list):
        pairs = [_mend(item) for item in value]
        return [item for item, _ in pairs], sum(count for _, count in pairs)
    return value, 0


def json_rows(path: Path, config: DataConfig, limit: int) -> Iterator[tuple[Row, int]]:
    """Objects of the file, each with the number of characters it took."""
    with open_text(path, config.encoding) as text:
        try:
            start = text.read(65_536).lstrip()
        except UnicodeDecodeError:
            raise undecodable(path, config.encoding) from None
    if start.startswith("["):
        yield from _list_rows(path, config.encoding, limit)
    elif start.startswith("{") and not _one_object_per_line(start):
        yield from _object_rows(path, config.encoding)
    else:
        yield from _line_rows(path, config.encoding, limit)


def _one_object_per_line(start: str) -> bool:
    """JSON lines: the first line is a whole object by itself (or longer than what was looked at)."""
    line, newline, rest = start.partition("\n")
    if not newline:
        return len(start) >= 60_000 or _parses(line)
    return _parses(line) and (not rest.strip() or rest.lstrip().startswith("{"))


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
    """Objects of one long list, decoded one after another, so that only one of them is in memory."""
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
                # Not all of the object may be there yet; one that never ends is refused by its size.
                if isinstance(error, RecursionError | _Twice) or len(buffer) > most or not more():
                    raise _broken(path, error, row + 1, "") from None
                continue
            row += 1
            yield _checked(value, path, row, limit), end
            buffer, expecting_comma = buffer[end:], True
        if buffer[1:].strip() or text.read(1024).strip():
            raise _broken(path, ValueError("something follows the list"), row, "end of file")


def _object_rows(path: Path, encoding: str) -> Iterator[tuple[Row, int]]:
    """An object of columns, or one that holds the list of rows under a single name."""
    if path.stat().st_size > WHOLE_FILE_LIMIT:
        raise DataError("one JSON object this large is not read.", "Write one object a line.", file=path.name)
    with open_text(path, encoding) as text:
        try:
            content = text.read(WHOLE_FILE_LIMIT + 1)
            if len(content) > WHOLE_FILE_LIMIT:  # compressed, it is larger than its file
                raise DataError("one JSON object this large is not read.", "Write one object a line.", file=path.name)
            value = json.loads(content, object_pairs_hook=_unique)
        except UnicodeDecodeError:
            raise undecodable(path, encoding) from None
        except (ValueError, RecursionError) as error:
            raise _broken(path, error, 1, "") from None
    lists = {name: column for name, column in value.items() if isinstance(column, list)}
    of_rows = {name: rows for name, rows in lists.items() if rows and all(isinstance(r, dict) for r in rows)}
    if len(of_rows) == 1:
        rows = next(iter(of_rows.values()))
    elif of_rows:
        raise DataError(
            f"there is more than one list of rows: {', '.join(of_rows)}.",
            "Save each in its own file.",
            file=path.name,
        )
    elif lists and len(lists) == len(value) and len({len(column) for column in lists.values()}) == 1:
        rows = [dict(zip(lists, cells, strict=True)) for cells in zip(*lists.values(), strict=True)]
    else:
        raise DataError(
            f"the object holds no rows; its fields are {', '.join(list(value)[:10]) or 'none'}.",
            "Write a list of objects, or one object a line.",
            file=path.name,
        )
    for row in rows:
        yield row, 1


class _Twice(ValueError):
    """A name that stands twice in one object: which of the values is meant, nobody can say."""


def _unique(pairs: list[tuple[str, Any]]) -> Row:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise _Twice(f"the name {next(n for n in names if names.count(n) > 1)!r} stands twice in one object")
    return found


def _decoder() -> json.JSONDecoder:
    return json.JSONDecoder(object_pairs_hook=_unique)


def _checked(value: Any, path: Path, row: int, limit: int) -> Row:
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
