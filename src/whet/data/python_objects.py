"""Python objects as sources: DataFrames, data sets, Arrow tables, lists and dicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from whet.data.open_files import mend_surrogates
from whet.data.raw import RawSplit, from_table
from whet.errors import DataError

NAME = "data"


def is_split_map(source: Any) -> bool:
    """A mapping of split names to tables, as DatasetDict is."""
    return isinstance(source, Mapping) and bool(source) and all(_is_table(value) for value in source.values())


def _is_table(value: Any) -> bool:
    if isinstance(value, Mapping):
        return bool(value) and all(isinstance(column, list | tuple) for column in value.values())
    return not isinstance(value, list | tuple | str) or (bool(value) and isinstance(value[0], Mapping))


def read_object(source: Any, name: str = NAME) -> RawSplit:
    """One split out of a pandas or polars DataFrame, a Dataset, a table, dicts, or (texts, labels)."""
    import pyarrow as pa

    module = type(source).__module__.partition(".")[0]
    if isinstance(source, pa.Table):
        return from_table(source, name)
    if module == "pandas":
        return _from_pandas(source, name)
    if module == "polars":
        return from_table(source.to_arrow(), name)
    if module == "datasets":
        return _from_dataset(source, name)
    if isinstance(source, Mapping):
        return _from_columns(source, name)
    if isinstance(source, list | tuple) and len(source) > 0:
        if all(isinstance(row, Mapping) for row in source):
            keys = list(dict.fromkeys(key for row in source for key in row))
            return _from_columns({key: [row.get(key) for row in source] for key in keys}, name)
        if len(source) == 2 and all(not isinstance(part, str) and hasattr(part, "__len__") for part in source):
            return _from_lists(source[0], source[1], name)
        if isinstance(source, list):
            return _from_lists(source, None, name)
    raise DataError(
        f"cannot read data out of {type(source).__name__}.",
        "Give a path, a DataFrame, a Dataset, a dict of columns, a list of dicts, or (texts, labels).",
    )


def _from_lists(texts: Any, labels: Any, name: str) -> RawSplit:
    rows = list(texts)
    if labels is not None and len(rows) != len(labels):
        raise DataError(f"there are {len(rows)} texts and {len(labels)} labels.", "Give one label a text.")
    columns: dict[str, list[Any]]
    if rows and all(isinstance(row, list | tuple) and len(row) == 2 for row in rows):
        columns = {"text": [row[0] for row in rows], "pair": [row[1] for row in rows]}
    else:
        columns = {"text": rows}
    if labels is not None:
        columns["label"] = list(labels)
    return _from_columns(columns, name)


def _from_pandas(frame: Any, name: str) -> RawSplit:
    import pandas as pd

    if isinstance(frame, pd.Series):
        frame = frame.to_frame(frame.name or "text")
    names = [str(column) for column in frame.columns]
    if len(set(names)) < len(names):
        raise DataError(f"the DataFrame has two columns of one name: {', '.join(names)}.")
    columns: dict[str, Any] = {}
    for index, column in enumerate(names):
        series = frame.iloc[:, index]
        textual = series.dtype == object or str(series.dtype) in ("str", "string")
        columns[column] = [None if _is_na(value) else value for value in series.tolist()] if textual else series
    return _from_columns(columns, name)


def _is_na(value: Any) -> bool:
    return value is None or type(value).__name__ in ("NAType", "NaTType") or value != value


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
    """A split, column by column, so that a column nobody needs cannot spoil the others."""
    import pyarrow as pa

    lengths = {str(column): len(values) for column, values in columns.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{column} {size}" for column, size in lengths.items())
        raise DataError(f"the columns differ in length: {listed}.")
    arrays, mixed, mended = {}, [], 0
    for column, values in columns.items():
        try:
            arrays[str(column)], count = _array(values)
            mended += count
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            mixed.append(str(column))
    if not arrays:
        raise DataError("no column holds one type of value.", f"Columns: {', '.join(mixed) or 'none'}.")
    return replace(from_table(pa.table(arrays), name), nested=tuple(mixed), surrogates=mended)


def _array(values: Any) -> tuple[Any, int]:
    """The values as an Arrow array, and how many lone surrogates were replaced in them."""
    import pyarrow as pa

    try:
        return pa.array(values, from_pandas=True), 0
    except UnicodeEncodeError:
        pairs = [mend_surrogates(value) if isinstance(value, str) else (value, 0) for value in values]
        return pa.array([value for value, _ in pairs]), sum(count for _, count in pairs)
