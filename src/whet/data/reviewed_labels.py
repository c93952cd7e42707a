"""Decisions about labels, from a file of reviewed rows: checked against the source, and applied to its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whet.config import DataConfig
from whet.data.cache import expand_home
from whet.data.label_reader import LabelReader
from whet.data.label_values import as_names
from whet.data.readers.raw_table import RawSplit
from whet.errors import DataError, UsageError, nearest
from whet.utils.review_file import ACCEPT, CHECK, DECISION, DECISIONS, LIKELY, ROW, cell, text_check

HINT = "Give the file that `whet labels` wrote for a run on this source, or leave --labels-from out."
NEEDED = (ROW, LIKELY, DECISION, CHECK)


@dataclass(frozen=True)
class Decision:
    """What a file of reviewed labels says about one row of the source."""

    word: str
    """One of DECISIONS, or nothing where the row was not reviewed."""
    likely: str
    check: str


@dataclass
class ReviewedLabels:
    """Decisions by row of the source, and what became of them."""

    file: str
    decisions: Mapping[int, Decision]
    places: Mapping[int, int]
    """The label of each accepted row, by its place in the task."""
    changes: Counter[tuple[int, int]] = field(default_factory=Counter)
    """How many rows went from one label to another."""

    @classmethod
    def of(cls, path: Path, decisions: Mapping[int, Decision], reader: LabelReader) -> ReviewedLabels:
        """Decisions whose accepted labels are labels of the task."""
        if reader.task.kind not in ("binary", "multiclass"):
            raise UsageError(
                f"labels_from is {str(path)!r}, and the task is {reader.task.kind}.",
                "Reviewed labels are for one label per row; leave --labels-from out.",
            )
        known = {cell(label): place for place, label in enumerate(reader.task.labels)}
        places = {}
        for row, decision in decisions.items():
            if decision.word != ACCEPT:
                continue
            place = known.get(cell(decision.likely), reader.place_of(decision.likely))
            if place is None:
                raise DataError(
                    f"the likely label of row {row} is {decision.likely!r}, which no training row has.",
                    nearest(decision.likely, reader.task.labels),
                    file=path.name,
                    column=LIKELY,
                )
            places[row] = place
        return cls(path.name, decisions, places)

    def apply(self, batch: Any) -> Any:
        """The batch with the labels that were decided, once its texts are proven to be those that were reviewed."""
        import numpy as np
        import pyarrow as pa

        rows = batch.column("row").to_numpy()
        listed = np.flatnonzero(np.isin(rows, list(self.decisions)))
        if not len(listed):
            return batch
        labels = batch.column("label").to_pylist()
        for index in listed.tolist():
            row = int(rows[index])
            self._refuse_other_text(batch, index, row)
            place = self.places.get(row)
            if place is not None and labels[index] not in (None, place):
                self.changes[labels[index], place] += 1
                labels[index] = place
        place_of_label = batch.schema.names.index("label")
        return batch.set_column(place_of_label, "label", pa.array(labels, batch.column("label").type))

    def refuse_missing(self, source_rows: int) -> None:
        """An error where the source has not so many rows. A row that another rule leaves out needs no label."""
        last = max(self.decisions, default=0)
        if last > source_rows:
            raise DataError(
                f"{self.file} was made for other rows: it names row {last}, and the source has {source_rows:,}.", HINT
            )

    def summary(self, labels: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
        """What was changed, as a sentence and for data.json."""
        counts = Counter(decision.word or "open" for decision in self.decisions.values())
        changed = sum(self.changes.values())
        named = {f"{labels[old]} → {labels[new]}": n for (old, new), n in self.changes.most_common()}
        detail = f" ({', '.join(f'{name}: {n}' for name, n in list(named.items())[:3])})" if named else ""
        row = "row gets" if changed == 1 else "rows get"
        sentence = (
            f"Reviewed labels of {self.file}: {changed} {row} another label{detail}; "
            f"{counts['keep']} kept, {counts['skip'] + counts['open']} not decided (--labels-from)."
        )
        accounts = {word: counts[word] for word in (*DECISIONS, "open")}
        return sentence, {"file": self.file, **accounts, "changed": changed, "changes": named}

    def _refuse_other_text(self, batch: Any, index: int, row: int) -> None:
        text = batch.column("text")[index].as_py()
        pair = batch.column("pair")[index].as_py() if "pair" in batch.schema.names else None
        if text_check(text, pair) != self.decisions[row].check:
            raise DataError(f"{self.file} was made for other rows: row {row} of the source has another text.", HINT)


def decisions_of(config: DataConfig, labelled: bool, scratch: Path) -> dict[int, Decision] | None:
    """The decisions that the settings name; an error where nothing is trained."""
    if config.labels_from is None:
        return None
    if not labelled:
        raise UsageError(
            f"labels_from is {config.labels_from!r}, and nothing is trained here.", "Leave --labels-from out."
        )
    return read_decisions(expand_home(config.labels_from), scratch)


def read_decisions(path: Path, scratch: Path) -> dict[int, Decision]:
    """Decisions by row number; of several lines for one row the last one counts."""
    from whet.data.readers.source import read_file

    if not path.is_file():
        raise DataError(f"There is no file {str(path)!r} (--labels-from).", "`whet labels RUN` writes one.")
    table = read_file(path, DataConfig(header="yes"), scratch)
    for name in NEEDED:
        if name not in table.columns:
            raise table.error(
                f"the file has no column {name!r}, and reviewed labels need {', '.join(NEEDED)}.",
                "`whet labels RUN` writes such a file.",
            )
    found: dict[int, Decision] = {}
    before = 0
    for batch in table.read(NEEDED):
        columns = {name: as_names(batch.column(name)).to_pylist() for name in NEEDED}
        for index in range(batch.num_rows):
            line = {name: (columns[name][index] or "").strip() for name in NEEDED}
            number = _row_number(table, line[ROW], before + index + 1)
            found[number] = Decision(_word(table, line[DECISION], before + index + 1), line[LIKELY], line[CHECK])
        before += batch.num_rows
    return found


def _row_number(table: RawSplit, value: str, line: int) -> int:
    number = value.removesuffix(".0")
    if not number.isdecimal() or int(number) < 1:
        raise table.error(
            f"the row number is {value!r}.", "It counts the rows of the source from 1.", row=line, column=ROW
        )
    return int(number)


def _word(table: RawSplit, value: str, line: int) -> str:
    word = value.casefold()
    if word and word not in DECISIONS:
        raise table.error(
            f"the decision is {value!r}.",
            f"It is {', '.join(DECISIONS)}, or nothing where a row was not reviewed.",
            row=line,
            column=DECISION,
        )
    return word
