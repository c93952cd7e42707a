"""Converts rows given as objects (JSON, databases) to typed columns; fields of objects get dotted names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from whet.config import DataConfig
from whet.data.readers.raw_table import BATCH_ROWS, Batches, Part, RawSplit, Spill
from whet.data.readers.text_files import mend_surrogates
from whet.errors import DataError, shortened_list

BATCH_CHARACTERS = 16_000_000
LOOKED_INTO = 1000
"""Rows whose objects are looked into for the names of what they hold."""
MAX_INNER = 100
"""Largest number of names inside objects that become columns."""
KINDS: dict[type, str] = {str: "text", bool: "truth", int: "whole", float: "number", dict: "nested"}
Row = dict[str, Any]
SizedRow = tuple[Row, int]
"""A row, and its approximate number of characters."""


def split_of_objects(rows: Callable[[], Iterator[SizedRow]], path: Path, config: DataConfig, scratch: Path) -> RawSplit:
    """Return the rows, which can be read again. Values keep their type; a column of mixed types cannot be used."""
    kinds: dict[str, str] = {}
    inner: dict[str, None] = {}
    place = scratch / f"{len(list(scratch.iterdir()))}.arrow"
    while True:
        spill = Spill(place)
        try:
            surrogates = _write(rows(), kinds, inner, dotted_names(config), spill)
            break
        except _Wider:
            continue  # a later row holds a type or a column that the first rows did not have: read anew
        finally:
            spill.close()
    if not spill.rows:
        raise DataError("the file has no rows.", file=path.name)
    usable = [name for name, kind in kinds.items() if kind not in ("nested", "mixed")]
    if not usable:
        raise DataError(
            f"no field can be used: {', '.join(kinds) or 'the objects are empty'}.",
            "Each row needs a text and a label.",
            file=path.name,
        )
    part = Part(path.name, spill.rows, path.stat().st_size)
    nested = tuple(name for name, kind in kinds.items() if kind in ("nested", "mixed") and name not in inner)
    everything = RawSplit(spill.schema, spill.read, (part,), nested=nested, inner=tuple(inner), surrogates=surrogates)
    return _folded(everything, kinds, config)


def _folded(everything: RawSplit, kinds: dict[str, str], config: DataConfig) -> RawSplit:
    """Return the columns of the rows and those that the settings name; the others only if these are not enough."""
    import pyarrow as pa

    named = dotted_names(config)
    own = [name for name in everything.columns if name not in everything.inner or name in named]
    if not own or len(own) == len(everything.columns):
        return everything

    def read(columns: Sequence[str] | None = None) -> Batches:
        return everything.read(own if columns is None else columns)

    objects = [name for name, kind in kinds.items() if kind == "nested" and name not in everything.inner]
    objects = [name for name in objects if not any(each.startswith(f"{name}.") for each in named)]
    listed = shortened_list(objects, quoted=False)
    passed = f"passed over, for they hold objects: {listed} (name what is inside: --text {everything.inner[0]})."
    schema = pa.schema([everything.schema.field(name) for name in own])
    return replace(everything, schema=schema, read=read, notes=(passed,) if objects else (), unfolded=everything)


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
    rows: Iterator[SizedRow], kinds: dict[str, str], inner: dict[str, None], named: Sequence[str], spill: Spill
) -> int:
    """Write the rows with these column kinds; widens them and raises where a row does not fit."""
    surrogates, first = 0, True
    while batch := _take(rows):
        if first:
            taken = {name for row in batch for name in row}
            inside = dict.fromkeys(name for row in batch[:LOOKED_INTO] for name in _names_inside(row))
            free = [name for name in inside if name not in taken]
            inner.update(dict.fromkeys([*free[:MAX_INNER], *(name for name in free if name in named)]))
        for row in batch if inner else ():
            row.update({name: value_at(row, name) for name in inner if name not in row})
        wider = _widen(kinds, batch)
        if wider and not first:
            raise _Wider
        first = False
        record_batch, mended = _record_batch(batch, kinds)
        surrogates += mended
        spill.write(record_batch)
    return surrogates


def _take(rows: Iterator[SizedRow]) -> list[Row]:
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


def _record_batch(rows: list[Row], kinds: dict[str, str]) -> tuple[Any, int]:
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
