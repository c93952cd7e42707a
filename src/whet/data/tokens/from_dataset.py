"""Converts tokens from elsewhere: a tokenized `datasets.Dataset`, or a list of rows as dictionaries."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whet.data.cache import fingerprint
from whet.data.tokens.table import Tokens, Truncation
from whet.errors import DataError

LABELS = ("labels", "label", "label_ids")
# The columns of `Tokens`; any other input of the model would be lost.
HELD = ("input_ids", "token_type_ids", "attention_mask", *LABELS)
# Inputs that a model is assumed to take if the caller does not tell.
OTHERS = frozenset({"position_ids", "inputs_embeds", "head_mask", "pixel_values", "bbox", "global_attention_mask"})


class Unrepresentable(DataError):
    """Rows that cannot become `Tokens` without changing the model's inputs."""


def from_rows(rows: Any, *, inputs: Collection[str] = OTHERS) -> Tokens:
    """Return the tokens of rows that are tokenized already.

    `inputs` names the arguments of the model's forward; other columns are left out, as by the stock Trainer. Padding
    is removed. Raises `Unrepresentable` for rows that flat tokens cannot hold.
    """
    columns = _dataset_columns(rows) if hasattr(rows, "with_format") else _list_columns(rows)
    lost = sorted(set(_names(rows)) & set(inputs) - set(HELD))
    if lost:
        raise Unrepresentable(f"The rows hold the model input {lost[0]!r}, which cannot be batched here.")
    if "input_ids" not in columns:
        found = ", ".join(map(repr, _names(rows))) or "none"
        raise Unrepresentable(f"The rows have no column 'input_ids'; their columns are {found}.")
    ids, lengths = columns["input_ids"]
    beside = {name: columns[name] for name in ("token_type_ids", "attention_mask") if name in columns}
    for name, (_, others) in beside.items():
        if not np.array_equal(lengths, others):
            raise Unrepresentable(f"The column {name!r} has other lengths than 'input_ids'.")
    types = beside["token_type_ids"][0] if "token_type_ids" in beside else None
    if types is not None and len(types) and not 0 <= types.min() <= types.max() <= 255:
        raise Unrepresentable("The column 'token_type_ids' holds values outside 0 to 255.")
    if "attention_mask" in beside:
        keep = beside["attention_mask"][0] != 0
        if not keep.all():
            lengths = _kept(keep, lengths)
            ids, types = ids[keep], None if types is None else types[keep]
    return _tokens(ids, lengths, types, next((columns[name] for name in LABELS if name in columns), None))


Column = tuple[NDArray[Any], NDArray[np.int64]]


def _tokens(ids: NDArray[Any], lengths: NDArray[np.int64], types: NDArray[Any] | None, labels: Column | None) -> Tokens:
    flat = np.ascontiguousarray(ids, np.int32)
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
    kinds = None if types is None else np.ascontiguousarray(types, np.uint8)
    answers = None if labels is None else _label_array(*labels)
    parts = [b"" if part is None else part.data for part in (flat, offsets, kinds, answers)]
    return Tokens(flat, offsets, kinds, answers, Truncation(), fingerprint("rows", *parts))


def _kept(keep: NDArray[np.bool_], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the tokens of each row without padding, which must be on the right, or positions would shift."""
    rows = np.repeat(np.arange(len(lengths)), lengths)
    kept = np.bincount(rows[keep], minlength=len(lengths)).astype(np.int64)
    places = np.arange(len(keep)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    wrong = keep != (places < kept[rows])
    if wrong.any():
        row = int(rows[wrong.argmax()])
        raise Unrepresentable(f"attention_mask of row {row} hides tokens other than padding on the right.")
    return kept


def _label_array(values: NDArray[Any], lengths: NDArray[np.int64]) -> NDArray[Any] | None:
    """`lengths` is -1 for a plain value, the number of values for a list; NaN marks a missing value."""
    listed = len(lengths) > 0 and lengths[0] >= 0
    if listed and (lengths != lengths[0]).any():
        raise Unrepresentable("The labels are lists of different lengths.")
    if values.dtype.kind == "f":
        if np.isnan(values).any():
            return None
        answers = np.ascontiguousarray(values, np.float32)
    elif values.dtype.kind in "iub":
        answers = np.ascontiguousarray(values, np.float32 if listed else np.int64)
    else:
        raise Unrepresentable(f"The labels are {values.dtype}; they must be numbers.")
    return answers.reshape(len(lengths), -1) if listed else answers


def _names(rows: Any) -> list[str]:
    if hasattr(rows, "column_names"):
        return list(rows.column_names)
    return list(rows[0]) if len(rows) else []


def _dataset_columns(rows: Any) -> dict[str, Column]:
    """Read from Arrow's buffers, whatever format or selection of rows is set."""
    names = [name for name in HELD if name in rows.column_names]
    table = rows.select_columns(names).with_format("arrow")[:] if names else {}
    return {name: _arrow_column(table[name], name) for name in names}


def _arrow_column(column: Any, name: str) -> Column:
    import pyarrow as pa
    import pyarrow.compute as pc

    listed = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
    listed = listed or pa.types.is_fixed_size_list(column.type)
    if not listed and name not in LABELS:
        raise Unrepresentable(f"The column {name!r} holds {column.type}; it must hold lists of numbers.")
    if name not in LABELS and column.null_count:
        raise Unrepresentable(f"The column {name!r} has rows without a value.")
    if not listed:
        return _numbers(column, name), np.full(len(column), -1, np.int64)
    if column.null_count:
        return np.full(1, np.nan), np.full(len(column), -1, np.int64)
    lengths = pc.list_value_length(column).to_numpy().astype(np.int64)
    return _numbers(pc.list_flatten(column), name), lengths


def _numbers(values: Any, name: str) -> NDArray[Any]:
    import pyarrow as pa

    kind = values.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        if pa.types.is_null(kind):
            return np.full(max(1, len(values)), np.nan) if len(values) else np.zeros(0, np.int64)
        raise Unrepresentable(f"The column {name!r} holds {kind}; it must hold numbers.")
    if values.null_count:  # as NaN, which marks a missing label
        return np.asarray(values.cast(pa.float64()).to_numpy(), np.float64)
    return np.asarray(values.to_numpy())


def _list_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, Column]:
    """Read rows that are dictionaries of lists, arrays or tensors."""
    names = [name for name in HELD if name in _names(rows)]
    columns: dict[str, Column] = {}
    for name in names:
        try:
            cells = [np.asarray(np.nan if row[name] is None else row[name]) for row in rows]
        except KeyError:
            raise Unrepresentable(f"Some rows have no {name!r}.") from None
        if any(cell.ndim > 1 or cell.ndim != cells[0].ndim for cell in cells):
            raise Unrepresentable(f"The cells of {name!r} have different shapes.")
        lengths = np.array([len(cell) if cell.ndim else -1 for cell in cells], np.int64)
        columns[name] = np.concatenate([np.atleast_1d(cell) for cell in cells]), lengths
    return columns


def widths_and_labels(rows: Any) -> tuple[NDArray[np.int64], str]:
    """Return the length of each row as given, padding included, and the type of its label.

    The type is `int`, `float`, `floats` for a list of them, `none` without labels, or another word.
    """
    if not hasattr(rows, "with_format"):
        name = next((name for name in LABELS if name in rows[0]), None)
        kinds = {_kind_of(row[name]) for row in rows} if name else {"none"}
        return np.array([len(row["input_ids"]) for row in rows]), kinds.pop() if len(kinds) == 1 else "mixed"
    import pyarrow.compute as pc

    column = rows.select_columns(["input_ids"]).with_format("arrow")[:]["input_ids"]
    widths = pc.list_value_length(column).to_numpy().astype(np.int64)
    name = next((name for name in LABELS if name in rows.column_names), None)
    if name is None:
        return widths, "none"
    feature = rows.features[name]
    inner = getattr(feature, "feature", None)
    dtype = str(getattr(feature if inner is None else inner, "dtype", ""))
    kind = "int" if dtype.startswith(("int", "uint")) else "float" if dtype.startswith(("float", "double")) else dtype
    return widths, kind if inner is None else f"{kind}s"


def _kind_of(value: Any) -> str:
    array = np.asarray(value)
    kind = {"i": "int", "f": "float"}.get(array.dtype.kind, str(array.dtype))
    return kind if array.ndim == 0 else f"{kind}s"
