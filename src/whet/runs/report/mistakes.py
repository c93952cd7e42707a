"""The model's predictions row by row, and its mistakes: confusions, classes, the worst rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from whet.errors import ArtifactError
from whet.metrics.scores import predicted, probabilities
from whet.records import Evaluation
from whet.runs.folder import RunFolder
from whet.runs.predictions import labelled_rows
from whet.utils.arrays import Array
from whet.utils.text import shorten

WORST = 15
EXAMPLES = 3
MISTAKES = 12
MAX_COUNTED = 2000
"""A matrix of more classes would not fit into the memory of a small machine."""
MATRIX_CLASSES = 30
"""Largest number of classes for a readable matrix; above it only the commonest mistakes are shown."""


@dataclass(frozen=True, eq=False, kw_only=True)
class PredictedRows:
    """The labelled rows of one split, in input order."""

    split: str
    task: str
    names: list[str]
    rows: Array
    texts: list[str]
    pairs: list[str] | None
    labels: Array
    logits: Array

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def predicted(self) -> Array:
        return np.asarray(predicted(self.task, self.logits))

    @property
    def likely(self) -> Array:
        return np.asarray(probabilities(self.task, self.logits))


@dataclass(frozen=True, kw_only=True)
class Example:
    """One row that is shown."""

    row: int
    text: str
    pair: str
    label: str
    predicted: str
    sure: str
    """The probability of the right answer, in words."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    count: int
    share: float
    """Share of the rows with this true label."""
    link: str = ""
    """The anchor of this mistake's examples."""

    @property
    def heat(self) -> int:
        return round(10 * self.share)


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """Rows of one label that were predicted as another."""

    link: str
    label: str
    predicted: str
    count: int
    share: float
    examples: tuple[Example, ...]


@dataclass(frozen=True, kw_only=True)
class Confusion:
    names: list[str]
    cells: list[list[Cell]]
    """By true label (row) and predicted label (column); empty if there are too many classes."""
    mistakes: tuple[Mistake, ...]
    split: str


@dataclass(frozen=True, kw_only=True)
class ClassScore:
    """One label against the rest."""

    name: str
    rows: int
    precision: float
    recall: float
    f1: float


def read_answers(folder: RunFolder, split: str, task: str, names: Sequence[str]) -> PredictedRows | None:
    """Return the labelled rows of a split; None if it was not predicted."""
    table = labelled_rows(folder, split)
    if table is None:
        return None
    labels = np.array(table["label"].to_pylist())
    if task in ("binary", "multiclass") and not (labels.min() >= 0 and labels.max() < len(names)):
        raise ArtifactError(f"A label of the {split} rows is {int(labels.max())}, and there are {len(names)}.")
    return PredictedRows(
        split=split,
        task=task,
        names=list(names),
        rows=table["row"].to_numpy(),
        texts=table["text"].to_pylist(),
        pairs=table["pair"].to_pylist() if "pair" in table.column_names else None,
        labels=labels,
        logits=np.array(table["logits"].to_pylist(), np.float64),
    )


def confusion_of(answers: PredictedRows) -> Confusion:
    """Count labels by prediction, with example rows for each of the commonest mistakes."""
    classes, predicted = len(answers.names), answers.predicted
    counts = np.bincount(answers.labels * classes + predicted, minlength=classes**2).reshape(classes, classes)
    mistakes = []
    for label, answer in _commonest(counts):
        there = np.flatnonzero((answers.labels == label) & (predicted == answer))
        surest = there[np.argsort(answers.likely[there, label], kind="stable")][:EXAMPLES]
        mistakes.append(
            Mistake(
                link=_link(label, answer),
                label=answers.names[label],
                predicted=answers.names[answer],
                count=len(there),
                share=len(there) / max(1, int(counts[label].sum())),
                examples=tuple(_example(answers, int(k)) for k in surest),
            )
        )
    return _confusion(answers.names, counts, tuple(mistakes), answers.split)


def confusion_recorded(record: Evaluation, names: list[str]) -> Confusion:
    """Return the same from an evaluation record, for a run without predictions: counts without examples."""
    counts = np.array(record.confusion)
    mistakes = tuple(
        Mistake(
            link=_link(label, answer),
            label=names[label],
            predicted=names[answer],
            count=int(counts[label, answer]),
            share=float(counts[label, answer] / max(1, counts[label].sum())),
            examples=(),
        )
        for label, answer in _commonest(counts)
    )
    return _confusion(names, counts, mistakes, record.split)


def class_scores(answers: PredictedRows) -> list[ClassScore]:
    """Return precision, recall and F1 of each label; with several labels per row, each separately."""
    truth, predicted = answers.labels, answers.predicted
    if answers.task != "multilabel":
        classes = np.arange(len(answers.names))
        truth, predicted = truth[:, None] == classes, predicted[:, None] == classes
    found = []
    for k, name in enumerate(answers.names):
        is_it, called = truth[:, k] > 0, predicted[:, k] > 0
        right = int((is_it & called).sum())
        precision, recall = right / max(1, int(called.sum())), right / max(1, int(is_it.sum()))
        f1 = 2 * right / max(1, int(called.sum()) + int(is_it.sum()))
        found.append(ClassScore(name=name, rows=int(is_it.sum()), precision=precision, recall=recall, f1=f1))
    return found


def most_wrong(answers: PredictedRows, most: int = WORST) -> list[Example]:
    """Return the most wrong rows."""
    if answers.task == "regression":
        error = np.abs(answers.predicted.reshape(-1) - answers.labels)
        worst = np.argsort(-error, kind="stable")
    elif answers.task == "multilabel":
        gap = np.abs(answers.likely - answers.labels).max(axis=1)
        worst = np.argsort(-gap, kind="stable")
        worst = worst[gap[worst] > 0.5]
    else:
        own = answers.likely[np.arange(len(answers)), answers.labels]
        wrong = np.flatnonzero(answers.predicted != answers.labels)
        worst = wrong[np.argsort(own[wrong], kind="stable")]
    return [_example(answers, int(k)) for k in worst[:most]]


def worst_recorded(record: Evaluation) -> list[Example]:
    """Return the most wrong rows of an evaluation record."""
    return [
        Example(
            row=int(each.get("row", 0)),
            text=str(each.get("text", "")),
            pair=str(each.get("pair", "")),
            label=str(each.get("label", "")),
            predicted=str(each.get("predicted", "")),
            sure=_percent(float(each.get("probability", 0.0))),
        )
        for each in record.worst
    ]


def _confusion(names: list[str], counts: Array, mistakes: tuple[Mistake, ...], split: str) -> Confusion:
    linked = {each.link for each in mistakes if each.examples}
    totals = counts.sum(axis=1)
    cells = [
        [
            Cell(
                count=int(count),
                share=float(count / max(1, totals[label])),
                link=_link(label, answer) if _link(label, answer) in linked else "",
            )
            for answer, count in enumerate(row)
        ]
        for label, row in enumerate(counts)
    ]
    return Confusion(names=names, cells=cells if len(names) <= MATRIX_CLASSES else [], mistakes=mistakes, split=split)


def _commonest(counts: Array) -> list[tuple[int, int]]:
    wrong = np.array(counts, np.int64)
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:MISTAKES]
    places = (divmod(int(k), len(counts)) for k in order)
    return [(label, answer) for label, answer in places if wrong[label, answer] > 0]


def _link(label: int, answer: int) -> str:
    return f"mistake-{label}-{answer}"


def _example(answers: PredictedRows, k: int) -> Example:
    predicted = answers.predicted[k]
    if answers.task == "regression":
        truth, answer = f"{answers.labels[k]:.3g}", f"{float(np.ravel(predicted)[0]):.3g}"
        sure = f"off by {abs(float(np.ravel(predicted)[0]) - float(answers.labels[k])):.3g}"
    elif answers.task == "multilabel":
        truth, answer = (_joined(answers.names, each) for each in (answers.labels[k], predicted))
        sure = f"off by {float(np.abs(answers.likely[k] - answers.labels[k]).max()):.2f}"
    else:
        truth, answer = answers.names[answers.labels[k]], answers.names[int(predicted)]
        sure = _percent(float(answers.likely[k, answers.labels[k]]))
    return Example(
        row=int(answers.rows[k]),
        text=shorten(answers.texts[k]),
        pair=shorten(answers.pairs[k] or "") if answers.pairs is not None else "",
        label=truth,
        predicted=answer,
        sure=sure,
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%" if share >= 0.001 else "< 0.1%"


def _joined(names: list[str], chosen: Array) -> str:
    return ", ".join(name for name, is_set in zip(names, chosen, strict=True) if is_set) or "(none)"
