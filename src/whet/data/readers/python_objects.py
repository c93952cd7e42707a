"""Python objects as sources: DataFrames, data sets, Arrow tables, lists and dicts.

One rule for `fit`, `predict` and `evaluate`. A table has columns with names: a pandas or polars DataFrame, a Dataset,
an Arrow table, a dict of columns, a list of dicts. A column is anything else that holds several values: a list, a
tuple, an array, a Series. What `predict` makes of them is in `given_texts.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sized
from dataclasses import replace
from typing import Any

from whet.data.readers.raw_table import RawSplit, from_table
from whet.data.readers.text_files import mend_surrogates
from whet.errors import DataError

NAME = "data"
Column = tuple[Any, tuple[str, ...] | None]
"""Values for pyarrow, and the order of labels if the column declares one."""


def is_split_map(source: Any) -> bool:
    """Return whether this maps split names to tables, like a DatasetDict."""
    return isinstance(source, Mapping) and bool(source) and all(map(is_table, source.values()))


def is_table(value: Any) -> bool:
    """Return whether the value has named columns."""
    if isinstance(value, Mapping):
        columns = all(is_column(each) or isinstance(each, list | tuple) for each in value.values())
        return bool(value) and columns and not is_split_map(value)
    if isinstance(value, list | tuple):
        return bool(value) and all(isinstance(row, Mapping) for row in value)
    if is_a(value, "datasets", "Dataset", "IterableDataset"):
        return True
    frames = is_a(value, "pandas", "DataFrame") or is_a(value, "polars", "DataFrame", "LazyFrame")
    return frames or is_a(value, "pyarrow", "Table", "RecordBatch")


def is_column(value: Any) -> bool:
    """Return whether the value holds several unnamed values: a list, an array, a Series."""
    several = isinstance(value, Sized) and isinstance(value, Iterable)
    return several and not isinstance(value, str | bytes | Mapping | set | frozenset) and not is_table(value)


def is_a(value: Any, package: str, *names: str) -> bool:
    """isinstance for packages that are not imported for the check."""
    module = sys.modules.get(package)
    kinds = tuple(getattr(module, name) for name in names if hasattr(module, name))
    return isinstance(value, kinds)


def read_object(source: Any, name: str = NAME) -> RawSplit:
    """Return one split from a table, a column of texts, or (texts, labels)."""
    if is_table(source):
        return _from_table(source, name)
    if is_a(source, "pandas", "Series") and source.name is not None:
        return _from_columns({source.name: source}, name)
    if isinstance(source, list | tuple) and len(source) == 2 and all(map(is_column, source)):
        return _from_lists(source[0], source[1], name)
    if is_column(source) and not isinstance(source, tuple) and len(source):
        return _from_lists(source, None, name)
    if isinstance(source, Mapping) and (wrong := [key for key, value in source.items() if not is_column(value)]):
        raise DataError(
            f"the column {str(wrong[0])!r} is {_short(source[wrong[0]])}.", "Give a list of values for each column."
        )
    raise DataError(
        f"cannot read data out of {type(source).__name__}.",
        "Give a path, a DataFrame, a Dataset, a dict of columns, a list of dicts, or (texts, labels).",
    )


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:59]}…"


def _from_table(source: Any, name: str) -> RawSplit:
    import pyarrow as pa

    if is_a(source, "pandas", "DataFrame"):
        return _from_pandas(source, name)
    if is_a(source, "datasets", "Dataset", "IterableDataset"):
        return _from_dataset(source, name)
    if is_a(source, "polars", "LazyFrame"):
        source = source.collect()
    if is_a(source, "polars", "DataFrame"):
        source = source.to_arrow()
    if isinstance(source, pa.RecordBatch):
        source = pa.Table.from_batches([source])
    if isinstance(source, pa.Table):
        return from_table(source, name)
    if isinstance(source, Mapping):
        return _from_columns(source, name)
    keys = list(dict.fromkeys(key for row in source for key in row))
    return _from_columns({key: [row.get(key) for row in source] for key in keys}, name)


def _from_lists(texts: Any, labels: Any, name: str) -> RawSplit:
    rows = values_of(texts)
    if labels is not None and len(rows) != len(labels):
        raise DataError(f"there are {len(rows)} texts and {len(labels)} labels.", "Give one label a text.")
    columns: dict[str, Any]
    if rows and all(isinstance(row, list | tuple) and len(row) == 2 for row in rows):
        columns = {"text": [row[0] for row in rows], "pair": [row[1] for row in rows]}
    else:
        columns = {"text": rows}
    if labels is not None:
        columns["label"] = labels
    return _from_columns(columns, name)


def values_of(column: Iterable[Any]) -> list[Any]:
    """Return a column's values as Python objects: a row of an array with two columns becomes a list of two."""
    for method in ("to_pylist", "tolist"):
        if hasattr(column, method):
            return list(getattr(column, method)())
    return list(column)


def _from_pandas(frame: Any, name: str) -> RawSplit:
    names = [str(column) for column in frame.columns]
    if len(set(names)) < len(names):
        raise DataError(f"the DataFrame has two columns of one name: {', '.join(names)}.")
    return _from_columns({column: frame.iloc[:, index] for index, column in enumerate(names)}, name)


def _from_series(series: Any) -> Column:
    """Missing values become None; a Categorical keeps the order of its categories that occur."""
    import pandas as pd

    def present(value: Any) -> Any:
        return None if pd.api.types.is_scalar(value) and pd.isna(value) else value

    if isinstance(series.dtype, pd.CategoricalDtype):
        names = series.cat.remove_unused_categories().cat.categories.tolist()
        values = [present(value) for value in series.astype(object).tolist()]
        declares = names and len(names) <= len(values) // 2
        if declares and all(isinstance(each, str) and each.strip() for each in names):
            return values, tuple(names)
        if declares and all(isinstance(each, int) and not isinstance(each, bool) for each in names):
            return [None if value is None else str(value) for value in values], tuple(map(str, names))
        return values, None
    if series.dtype == object or str(series.dtype) in ("str", "string"):
        return [present(value) for value in series.tolist()], None
    return series, None


def _from_dataset(dataset: Any, name: str) -> RawSplit:
    import datasets

    if not isinstance(dataset, datasets.Dataset):
        raise DataError(
            f"cannot read data out of {type(dataset).__name__}.",
            "Give a Dataset or a DatasetDict; a streaming one has to be materialised first.",
        )
    plain = dataset.with_format(None)
    if plain._indices is not None:
        plain = plain.flatten_indices()
    names = {}
    for column, feature in dataset.features.items():
        inner = getattr(feature, "feature", feature)
        if isinstance(inner, datasets.ClassLabel) and inner.names:
            names[column] = tuple(inner.names)
    return from_table(plain.data.table, name, names)


def _from_columns(columns: Mapping[Any, Any], name: str) -> RawSplit:
    """Return a split column by column, so that an unused column cannot cause errors."""
    import pyarrow as pa

    lengths = {str(column): len(values) for column, values in columns.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{column} {size}" for column, size in lengths.items())
        raise DataError(f"the columns differ in length: {listed}.")
    arrays, declared, mixed, mended = {}, {}, [], 0
    for column, values in columns.items():
        plain, order = _column(values)
        try:
            arrays[str(column)], count = _array(plain)
            mended += count
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            mixed.append(str(column))
            continue
        if order is not None:
            declared[str(column)] = order
    if not arrays:
        raise DataError("no column holds one type of value.", f"Columns: {', '.join(mixed) or 'none'}.")
    return replace(from_table(pa.table(arrays), name, declared), nested=tuple(mixed), surrogates=mended)


def _column(values: Any) -> Column:
    """Return a column for pyarrow."""
    if is_a(values, "pandas", "Series"):
        return _from_series(values)
    if is_a(values, "polars", "Series"):
        values = values.to_arrow()
    if is_a(values, "pyarrow", "ChunkedArray"):
        return values.combine_chunks(), None
    known = is_a(values, "pyarrow", "Array") or is_a(values, "numpy", "ndarray")
    return (values if known else list(values)), None


def _array(values: Any) -> tuple[Any, int]:
    """Return the values as an Arrow array, and how many lone surrogates were replaced in them."""
    import pyarrow as pa

    if isinstance(values, pa.Array):
        return values, 0
    try:
        return pa.array(values, from_pandas=True), 0
    except UnicodeEncodeError:
        pairs = [mend_surrogates(value) if isinstance(value, str) else (value, 0) for value in values]
        return pa.array([value for value, _ in pairs]), sum(count for _, count in pairs)
