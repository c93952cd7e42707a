"""Appends a model's predictions to batches of rows: used by the workers of Ray Data and Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from whet.data.answer_columns import columns_of, free_column_names, joined
from whet.data.columns import column_kind, own_name
from whet.data.readers.python_objects import is_a, read_object
from whet.errors import DataError, UsageError, shortened_list
from whet.inference.arrow_answers import answer_columns, answer_types
from whet.inference.predictor import Predictor


class BatchLabeller:
    """Loads a run's model once; every batch is returned as the same kind of table.

    Batches are Arrow tables, DataFrames or dictionaries of arrays. Rows without a text stay, with empty predictions.
    """

    def __init__(
        self,
        run: Path | str,
        *,
        text: str | None = None,
        pair: str | None = None,
        raw: bool = False,
        device: str = "auto",
        precision: str = "auto",
        trust_remote_code: bool = False,
    ) -> None:
        self.model = Predictor(run, device=device, precision=precision, trust_remote_code=trust_remote_code)
        self.raw = raw
        named = (text or self.model.columns.get("text"), pair or self.model.columns.get("pair"))
        if named[0] is None:
            raise UsageError(f"{str(run)!r} does not name the column of the texts.", "Name it: text='…'.")
        self.texts = tuple(name for name in named if name is not None)
        self.model.refuse_other_kind(len(self.texts) == 2, "was given")
        self.types = answer_types(self.model.task, self.model.decisions)
        """The prediction columns and their Arrow types."""

    def names(self, columns: list[str]) -> dict[str, str]:
        """Return the names of the prediction columns next to these columns."""
        return free_column_names(list(self.types), columns)

    def __call__(self, batch: Any) -> Any:
        """Return the batch with the predictions."""
        columns = columns_of(batch)
        answers, _ = answer_columns(self.model, self._texts(batch, columns), raw=self.raw)
        added = {other: answers[name] for name, other in self.names(columns).items()}
        if not is_a(batch, "pyarrow", "Table"):
            added = {name: column.to_numpy(zero_copy_only=False) for name, column in added.items()}
        return joined(batch, added)

    def _texts(self, batch: Any, columns: list[str]) -> list[Any]:
        """Return the text columns as Arrow arrays."""
        import pyarrow as pa

        found = []
        for wanted in self.texts:
            name = column_of(wanted, columns)
            split = read_object(batch.select([name]) if hasattr(batch, "select") else {name: batch[name]})
            kind = split.schema.field(name).type
            if not split.rows:
                kind = pa.string()  # the type of an empty column depends on its library
            elif column_kind(kind) != "text" and not pa.types.is_null(kind):
                raise DataError(f"The column {name!r} holds values of the type {kind}, not texts.")
            pieces = [each.column(0) for each in split.read([name]) if len(each)]
            found.append(pa.chunked_array(pieces, kind).combine_chunks())
        return found


def column_of(wanted: str, columns: list[str]) -> str:
    """Return the requested column in the table's spelling."""
    if (name := own_name(wanted, columns)) is None:
        raise DataError(f"There is no column {wanted!r}: there are {shortened_list(columns)}.", "Name it: text='…'.")
    return name
