"""Rows of a run whose given label is probably wrong: found in its out-of-fold answers, listed in label_errors.csv."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from whet.errors import ArtifactError, EnvironmentFault, UsageError
from whet.metrics.label_errors import find_label_errors
from whet.runs.folder import RunFolder
from whet.runs.report.mistakes import PredictedRows, read_answers
from whet.utils.review_file import (
    CHECK,
    DECISION,
    GIVEN,
    LIKELY,
    PAIR,
    PROBABILITY,
    ROW,
    TEXT,
    csv_line,
    header_line,
    text_check,
)
from whet.utils.text import shorten
from whet.utils.untrusted_files import replace_file

MADE_NOW = "labels"
"""The folder in a run without folds that holds the folds of `whet labels`."""
LISTED = "label_errors.csv"
SHOWN = 15
ONE_LABEL = ("binary", "multiclass")


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """A row whose given label is probably wrong."""

    row: int
    """In the source's training rows, counted from 1."""
    text: str
    pair: str | None
    given: str
    likely: str
    probability: float
    """Of the likely label."""

    @property
    def check(self) -> str:
        return text_check(self.text, self.pair)

    @property
    def short_text(self) -> str:
        return shorten(self.text)

    @property
    def short_pair(self) -> str:
        return shorten(self.pair or "")

    def as_line(self, decision: str = "") -> str:
        """The row in a file of reviewed labels."""
        cells = {
            ROW: self.row,
            TEXT: self.text,
            PAIR: self.pair or "",
            GIVEN: self.given,
            LIKELY: self.likely,
            PROBABILITY: f"{self.probability:.4f}",
            DECISION: decision,
            CHECK: self.check,
        }
        return csv_line(cells)


@dataclass(frozen=True, kw_only=True)
class Suspects:
    """The suspicious rows of a run, the most suspicious first, and how many rows were looked at."""

    rows: list[Suspect]
    looked_at: int
    labels: list[str]

    @property
    def shown(self) -> list[Suspect]:
        """The first of them, for a table that is read to its end."""
        return self.rows[:SHOWN]

    def sentence(self) -> str:
        count = len(self.rows)
        found = (
            "no given label looks"
            if not count
            else "1 given label looks"
            if count == 1
            else f"{count:,} given labels look"
        )
        return f"Of {self.looked_at:,} rows, {found} wrong."


def refuse_other_tasks(folder: RunFolder) -> None:
    """Only one label per row is understood."""
    task = str(folder.data.get("task", ""))
    if not task:
        raise UsageError(f"The run {str(folder.path)!r} has no data.json: it was not begun by `whet train`.")
    if task not in ONE_LABEL:
        raise UsageError(
            f"The task of {str(folder.path)!r} is {task}, and label errors are found for one label per row only.",
            "The report lists the rows that the model contradicts most.",
        )


def has_out_of_fold(folder: RunFolder) -> bool:
    """Whether each training row has an answer of a model that was not trained on it."""
    return _measured(folder) is not None


def find_suspects(folder: RunFolder) -> Suspects | None:
    """The suspicious rows of a run; None where it has no out-of-fold answers, or another task."""
    if folder.data.get("task") not in ONE_LABEL:
        return None
    measured = _measured(folder)
    if measured is None:
        return None
    answers = _answers(measured)
    errors = find_label_errors(answers.labels, answers.likely)
    return Suspects(
        rows=[_suspect(answers, int(place), int(errors.likely[place])) for place in errors.ranked],
        looked_at=len(answers),
        labels=answers.names,
    )


def write_list(folder: RunFolder, found: Suspects) -> tuple[Path, bool]:
    """Write label_errors.csv, and whether it was written: a file that holds decisions stays as it is."""
    path = folder.path / LISTED
    if _has_decisions(path):
        return path, False
    lines = [header_line(), *(suspect.as_line() for suspect in found.rows)]
    try:
        replace_file(path, "".join(lines).encode("utf-8", "replace"))
    except OSError as error:
        raise EnvironmentFault(
            f"Cannot write {str(path)!r}: {error.strerror or error}.", "Make room or permissions there."
        ) from None
    return path, True


def _measured(folder: RunFolder) -> RunFolder | None:
    """The run whose validation rows are the training rows, each judged by a fold that did not learn from it."""
    made = RunFolder(folder.path / MADE_NOW)
    for candidate in (folder, made):
        if not candidate.path.is_symlink() and candidate.data.get("folds") and candidate.finished:
            return candidate
    return None


def _answers(measured: RunFolder) -> PredictedRows:
    data = measured.data
    found = read_answers(measured, "validation", str(data.get("task")), [str(name) for name in data.get("labels", [])])
    if found is None:
        raise ArtifactError(
            f"{str(measured.path)!r} has no predictions: predictions.parquet is missing.", "Train again."
        )
    return found


def _suspect(answers: PredictedRows, place: int, likely: int) -> Suspect:
    return Suspect(
        row=int(answers.rows[place]),
        text=answers.texts[place],
        pair=answers.pairs[place] if answers.pairs is not None else None,
        given=answers.names[int(answers.labels[place])],
        likely=answers.names[likely],
        probability=float(answers.likely[place, likely]),
    )


def _has_decisions(path: Path) -> bool:
    """Whether somebody has written something into the decision column, or made the file another one."""
    if not path.is_file():
        return False
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            lines = csv.DictReader(file)
            return DECISION not in (lines.fieldnames or ()) or any((line.get(DECISION) or "").strip() for line in lines)
    except (csv.Error, UnicodeDecodeError):
        return True
