"""Converts the labels of any split to numbers, once the task is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from whet.data.label_values import as_names, canonical_number, is_number, is_whole, survey
from whet.data.readers.raw_table import RawSplit
from whet.task import Task

Cut = Callable[[str], list[str]]
LEFT_OUT = -1
"""The index of a label whose rows are left out."""


@dataclass
class LabelReader:
    """Converts the label column of any split to numbers."""

    task: Task
    column: str
    numeric: bool = False
    """Whether class names are integers, so that `1.0` and `1` are one class."""
    truth: bool = False
    """Whether class names are true and false, so that `True`, `TRUE` and `true` are one class."""
    minus_one_is_missing: bool = True
    cut: Cut | None = None
    """Splits a cell with several labels."""
    switches: tuple[str, ...] = ()
    """The 0/1 column of each label, if there are such columns, in the order of the task's labels."""
    places: Mapping[str, int] = field(default_factory=dict)
    """With rare labels: the index of each label of the source, or `LEFT_OUT`."""
    others: int | None = None
    """The index for labels outside of the task, if they were merged."""
    rare: Mapping[str, int] = field(default_factory=dict)
    """The labels merged or left out, with their training rows."""
    note: str = ""
    unseen: dict[str, Counter[str]] = field(default_factory=dict)
    """Labels outside the task that occurred, by split."""
    unseen_rows: Counter[str] = field(default_factory=Counter)
    """Rows with such a label, by split."""
    _bare: dict[str, bool] = field(default_factory=dict)

    def read(self, split: RawSplit, name: str, batch: Any, before: int) -> Any:
        """Return the labels of a batch: null for a missing label or one outside of the task."""
        if self.switches:
            return self._from_columns(split, batch, before)
        values = as_names(batch.column(self.column), split.class_names.get(self.column))
        if self.task.kind == "regression":
            return self._numbers(split, values, before)
        if self.task.kind == "multilabel":
            return self._lists(split, name, values, before)
        return self._classes(name, values)

    def _classes(self, name: str, values: Any) -> Any:
        import pyarrow as pa

        encoded = values.dictionary_encode()
        index = self._index()
        places: list[int | None] = []
        unknown: dict[int, str] = {}
        for code, value in enumerate(encoded.dictionary.to_pylist()):
            place = self._place(value, index)
            places.append(place)
            if place is None and not self.is_missing(value):
                unknown[code] = value
        if unknown:
            codes = Counter(encoded.indices.to_pylist())
            met = self.unseen.setdefault(name, Counter())
            met.update({value: codes[code] for code, value in unknown.items()})
            self.unseen_rows[name] += sum(codes[code] for code in unknown)
        return pa.array(places, pa.int64()).take(encoded.indices)

    def place_of(self, value: str) -> int | None:
        """The place of one label; None for a missing one, and for one that the task does not have."""
        place = self._place(value, self._index())
        return None if place == LEFT_OUT else place

    def _place(self, value: str, index: Mapping[str, int]) -> int | None:
        return None if self.is_missing(value) else index.get(self._spelled(value), self.others)

    def _index(self) -> dict[str, int]:
        places = self.places or {label: place for place, label in enumerate(self.task.labels)}
        return {self._spelled(label): place for label, place in places.items()}

    def _spelled(self, value: str) -> str:
        """Return the normalised spelling of a label."""
        if self.truth:
            return value.strip().casefold()
        return canonical_number(value) if self.numeric else value

    def is_missing(self, value: str | None) -> bool:
        if value is None or not value.strip():
            return True
        return self.minus_one_is_missing and is_whole(value) and canonical_number(value) == "-1"

    def _numbers(self, split: RawSplit, values: Any, before: int) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        trimmed = pc.utf8_trim_whitespace(values)
        present = pc.if_else(pc.equal(trimmed, ""), None, trimmed)
        try:
            numbers = present.cast(pa.float64())
        except pa.ArrowInvalid:
            for offset, value in enumerate(present.to_pylist()):
                if value is not None and not is_number(value):
                    raise split.error(
                        f"the label {value!r} is not a number.",
                        "Regression needs numbers (3.5, not 3,5); for classes use --task multiclass.",
                        row=split.number(before + offset),
                        column=self.column,
                    ) from None
            raise
        bad = pc.index(pc.invert(pc.is_finite(numbers)), True).as_py()
        if bad >= 0:
            raise split.error("the label is not finite.", row=split.number(before + bad), column=self.column)
        return numbers.cast(pa.float32())

    def _lists(self, split: RawSplit, name: str, values: Any, before: int) -> Any:
        import pyarrow as pa

        index, unlabelled = self._index(), self._has_no_label(split, name)
        rows: list[list[float] | None] = []
        for offset, cell in enumerate(values.to_pylist()):
            if isinstance(cell, str) and self.cut is not None:
                cell = self.cut(cell) if cell.strip() else None
            if cell is None and unlabelled:
                rows.append(None)
                continue
            row: list[float] | None = [0.0] * len(self.task.labels)
            strange = []
            for label in cell or ():
                if label is None or not str(label).strip():
                    raise split.error(
                        "a label in the list is empty.", row=split.number(before + offset), column=self.column
                    )
                place = index.get(self._spelled(label), self.others)
                if place is None:
                    strange.append(self._spelled(label))
                elif row is not None and place != LEFT_OUT:
                    row[place] = 1.0
            if strange:
                self.unseen.setdefault(name, Counter()).update(strange)
                self.unseen_rows[name] += 1
                row = None
            rows.append(row)
        return pa.array(rows, pa.list_(pa.float32()))

    def _has_no_label(self, split: RawSplit, name: str) -> bool:
        """Return whether the split has no labels at all. Among labelled rows, an empty cell means none of the
        labels."""
        if name not in self._bare:
            self._bare[name] = not survey(split, self.column).counts
        return self._bare[name]

    def _from_columns(self, split: RawSplit, batch: Any, before: int) -> Any:
        import numpy as np
        import pyarrow as pa

        known = {"0": 0.0, "1": 1.0, "false": 0.0, "true": 1.0}
        outputs = len(self.task.labels)
        matrix = np.zeros((batch.num_rows, outputs), np.float32)
        for number, column in enumerate(self.switches):
            place = self.places.get(column, number)
            for row, value in enumerate(as_names(batch.column(column)).to_pylist()):
                key = canonical_number(value).lower() if value else ""
                if key not in known:
                    raise split.error(
                        f"the cell is {value!r}.",
                        "Columns of a multi-label task hold 0 or 1.",
                        row=split.number(before + row),
                        column=column,
                    )
                if place != LEFT_OUT:
                    matrix[row, place] = max(matrix[row, place], known[key])
        offsets = np.arange(0, matrix.size + 1, outputs, dtype=np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(matrix.ravel()))
