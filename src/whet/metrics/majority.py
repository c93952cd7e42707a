"""The score of a constant answer, chosen from the training labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from whet.errors import UsageError, nearest
from whet.metrics.arrays import as_array, as_floats, check_finite, check_rows, flat_column
from whet.metrics.scores import FROM_MARGINS, MAIN_METRIC, TASK_METRICS, metric_named
from whet.utils.arrays import Array


@dataclass(frozen=True)
class Majority:
    """A constant answer and its scores on the evaluation rows."""

    label: Any
    """A class; a tuple of 0/1 columns for several labels per row; a number for regression."""
    metric: str
    value: float
    scores: dict[str, float]
    """Every metric that is defined for a constant answer."""

    def named(self, labels: Sequence[str]) -> Any:
        """Return the answer with class names: one, a list of them, or a number for regression."""
        if isinstance(self.label, tuple):
            return [name for name, chosen in zip(labels, self.label, strict=True) if chosen]
        return labels[int(self.label)] if labels else self.label


def majority(task: str, labels_train: Any, labels_eval: Any) -> Majority:
    """Return the commonest training class (or the mean for regression), scored on the evaluation labels.

    With several labels per row, the answer is the set of columns with the best micro F1 on the training labels: the
    commonest set is often empty, which any model beats. Ties go to the lowest class.
    """
    if task not in MAIN_METRIC:
        raise UsageError(f"There is no task {task!r}.", nearest(task, MAIN_METRIC))
    convert = as_floats if task == "regression" else as_array
    train, truth = convert(labels_train, "labels_train"), convert(labels_eval, "labels_eval")
    check_rows(train, train, ("labels_train", "labels_train"))
    check_rows(truth, truth, ("labels_eval", "labels_eval"))
    for array, name in ((train, "labels_train"), (truth, "labels_eval")):
        check_finite(array, name)
    if task == "multilabel":
        columns = _best_columns(train)
        return _scored(task, tuple(columns.tolist()), "micro_f1", truth, np.tile(columns, (len(truth), 1)))
    truth = flat_column(truth)
    if task == "regression":
        mean = float(train.mean())
        return _scored(task, mean, "mse", truth, np.full(len(truth), mean))
    classes, sizes = np.unique(train, return_counts=True)
    label = classes[sizes.argmax()]
    return _scored(task, label.item(), "accuracy", truth, np.full(len(truth), label))


def _scored(task: str, label: Any, metric: str, truth: Array, answer: Array) -> Majority:
    names = [name for name in TASK_METRICS[task] if name not in FROM_MARGINS]
    scores = {name: metric_named(name)(truth, answer) for name in names}
    return Majority(label, metric, scores[metric], scores)


def _best_columns(train: Array) -> Array:
    """Return the columns of the best constant answer: the commonest ones, as many as give the best micro F1."""
    if train.ndim != 2:
        raise UsageError(f"labels_train has shape {train.shape}, but multilabel takes [rows, labels].")
    sizes = (train != 0).sum(axis=0)
    order = np.argsort(-sizes, kind="stable")
    hits, said = np.cumsum(sizes[order]), len(train) * np.arange(1, len(sizes) + 1)
    best = int((2 * hits / (said + sizes.sum())).argmax()) + 1
    columns = np.zeros(len(sizes), dtype=np.int64)
    columns[order[:best]] = 1
    return columns
