"""Reads the labels of a source of any column type: names, or lists of names."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from whet.data.columns import column_kind, label_columns
from whet.data.readers.raw_table import RawSplit

MANY = 20_000
"""Counting stops at this many labels, more than any classifier here supports."""
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
WHOLE = re.compile(r"[+-]?(0|[1-9]\d*)(\.0*)?")
DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")


@dataclass
class Survey:
    """The labels of a split with their counts."""

    kind: str
    counts: Counter[str] = field(default_factory=Counter)
    missing: int = 0
    many: bool = False
    rows: int = 0

    @property
    def values(self) -> list[str]:
        return list(self.counts)


def survey(split: RawSplit, label: str) -> Survey:
    """Count the labels of a split. A list counts as its JSON text, so that its labels stay together."""
    names = label_columns(split, label)
    kind = "columns" if len(names) > 1 else column_kind(split.schema.field(names[0]).type)
    seen = Survey(kind)
    for batch in split.read(names):
        if kind == "columns":
            seen.rows += batch.num_rows
            continue
        values = as_names(batch.column(0), split.class_names.get(names[0]))
        _count(seen, values)
        if len(seen.counts) > MANY:
            seen.many = True
            break
    return seen


def _count(seen: Survey, values: Any) -> None:
    import pyarrow.compute as pc

    if seen.kind == "list":
        cells = [None if cell is None else json.dumps(cell, ensure_ascii=False) for cell in values.to_pylist()]
        counts = Counter(cells)
        absent = counts.pop(None, 0)
        seen.missing += absent
        seen.counts.update({cell: count for cell, count in counts.items() if cell is not None})
    else:
        for item in pc.value_counts(values).to_pylist():
            value, count = item["values"], item["counts"]
            if value is None or not value.strip():
                seen.missing += count
            else:
                seen.counts[value] += count
    seen.rows += len(values)


def as_names(values: Any, declared: Sequence[str] | None = None) -> Any:
    """Return a label column as strings (or lists of strings); missing is null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    kind = column_kind(values.type)
    if kind == "list":
        inner = as_names(values.flatten(), declared)
        lengths = pc.fill_null(pc.list_value_length(values), 0)
        offsets = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths.cast(pa.int64()))])
        return pa.LargeListArray.from_arrays(offsets, inner, mask=values.is_null())
    if kind == "whole" and declared:
        inside = pc.and_(pc.greater_equal(values, 0), pc.less(values, len(declared)))
        chosen = pa.array(declared, pa.large_string()).take(pc.if_else(inside, values, None))
        # Data sets with names write "no label" as -1; any other number is kept, and is unknown later.
        outside = pc.if_else(pc.equal(values, -1), None, values).cast(pa.large_string())
        return pc.if_else(inside, chosen, outside)
    if kind == "number":
        numbers = values.cast(pa.float64())
        numbers = pc.if_else(pc.is_nan(numbers), None, numbers)
        if _all_whole(numbers):
            return numbers.cast(pa.int64()).cast(pa.large_string())
        return numbers.cast(pa.large_string())
    return values.cast(pa.large_string())


def _all_whole(numbers: Any) -> bool:
    import pyarrow.compute as pc

    exact = pc.and_(pc.equal(pc.floor(numbers), numbers), pc.less(pc.abs(numbers), 2.0**53))
    return bool(pc.all(exact).as_py() in (True, None))


def canonical_number(value: str) -> str:
    """Normalise numbers: `1.0`, `+1` and `1` are one label."""
    stripped = value.strip()
    return str(int(float(stripped))) if WHOLE.fullmatch(stripped) else stripped


def is_number(value: str) -> bool:
    return NUMBER.fullmatch(value.strip()) is not None


def is_whole(value: str) -> bool:
    return WHOLE.fullmatch(value.strip()) is not None


def is_truth(value: str) -> bool:
    """Recognise `True` of pandas, `TRUE` of a spreadsheet, `true` of JSON."""
    return value.strip().casefold() in ("true", "false")


def written_list(cell: str) -> list[str] | None:
    """Return the labels of a cell with a list in JSON or Python syntax; None for other cells."""
    text = cell.strip()
    if not (text.startswith("[") and text.endswith("]")):
        return None
    for parse in (json.loads, ast.literal_eval):
        try:
            items = parse(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(items, list) and all(isinstance(item, str | int | float) for item in items):
            return [str(item) for item in items]
    return None


def split_cell(cell: str, delimiter: str) -> list[str]:
    return [piece.strip() for piece in cell.split(delimiter)]


def find_delimiter(values: Sequence[str]) -> tuple[str | None, str | None]:
    """Return the delimiter of several labels in a cell: (the proven one, one that is only possible).

    Proven means that every label next to another one also occurs in a different cell value, and there are fewer
    labels than cell values. Commas also occur in names, so alone they raise no doubt.
    """
    doubtful = None
    for delimiter in ("|", ";", ","):
        joined = [value for value in values if delimiter in value]
        if not joined:
            continue
        cells = [split_cell(value, delimiter) for value in values]
        places = Counter(piece for pieces in cells for piece in set(pieces))
        whole = all(piece for pieces in cells for piece in pieces)
        beside = {piece for value in joined for piece in split_cell(value, delimiter)}
        if whole and len(places) < len(values) and all(places[piece] >= 2 for piece in beside):
            return delimiter, None
        if delimiter != ",":
            doubtful = doubtful or delimiter
    return None, doubtful
