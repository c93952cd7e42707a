"""Turns predictions into columns, and appends them to a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from whet.data.export import free_names
from whet.data.readers.python_objects import is_a, is_table
from whet.errors import UsageError


class Prediction(Protocol):
    """The fields of `whet.Prediction` that are used."""

    @property
    def label(self) -> Any: ...
    @property
    def probability(self) -> float | None: ...
    @property
    def probabilities(self) -> dict[str, float]: ...
    @property
    def abstain(self) -> bool | None: ...
    @property
    def candidates(self) -> list[Any] | None: ...


def flat(prediction: Prediction) -> dict[str, Any]:
    """Return one row: the label, its probability, and that of every label. A number has no probability."""
    decided = {"abstain": prediction.abstain, "candidates": prediction.candidates}
    decided = {name: value for name, value in decided.items() if value is not None}
    if isinstance(prediction.label, float):
        return {"label": float(f"{prediction.label:.7g}"), **decided}  # as many digits as a float32 has
    named = {f"p({name})": round(value, 6) for name, value in prediction.probabilities.items()}
    return {"label": prediction.label, "probability": prediction.probability, **decided, **named}


def free_column_names(added: Sequence[str], columns: Sequence[str]) -> dict[str, str]:
    """Return names for these columns that are free next to `columns`; a label column there keeps its name."""
    return free_names({name: "predicted" if name == "label" else f"predicted_{name}" for name in added}, columns)


def with_answers(table: Any, predictions: Sequence[Prediction]) -> Any:
    """Return a table of the same kind with the predictions appended; the given table does not change."""
    if not is_table(table):
        raise UsageError(
            f"predict_table was given {type(table).__name__}.",
            "Give a DataFrame, a Dataset, an Arrow table, a dict of columns or a list of dicts, or call predict.",
        )
    if is_a(table, "polars", "LazyFrame"):
        table = table.collect()
    rows = [flat(each) for each in predictions]
    names = free_column_names(list(rows[0]) if rows else [], columns_of(table))
    if isinstance(table, list | tuple):
        return [{**own, **{names[name]: row[name] for name in row}} for own, row in zip(table, rows, strict=True)]
    return joined(table, {names[name]: [row[name] for row in rows] for name in names})


def columns_of(table: Any) -> list[str]:
    """Return the names of a table's columns."""
    if isinstance(table, Mapping):
        return [str(name) for name in table]
    if isinstance(table, list | tuple):
        return list(dict.fromkeys(str(name) for row in table for name in row))
    if is_a(table, "pyarrow", "Table", "RecordBatch"):
        return list(table.schema.names)
    return [str(name) for name in (table.column_names if is_a(table, "datasets", "Dataset") else table.columns)]


def joined(table: Any, columns: Mapping[str, Any]) -> Any:
    """Return a table with columns appended."""
    if isinstance(table, Mapping):
        return {**table, **columns}
    if is_a(table, "datasets", "Dataset"):
        for name, values in columns.items():
            table = table.add_column(name, values)
        return table
    if is_a(table, "polars", "DataFrame"):
        import polars

        return table.with_columns([polars.Series(name, values) for name, values in columns.items()])
    if is_a(table, "pandas", "DataFrame"):
        import pandas

        return pandas.concat([table, pandas.DataFrame(columns, index=table.index)], axis=1)
    import pyarrow

    if is_a(table, "pyarrow", "RecordBatch"):
        table = pyarrow.Table.from_batches([table])
    for name, values in columns.items():
        table = table.append_column(name, pyarrow.array(values))
    return table
