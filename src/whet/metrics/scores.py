"""Scores of labels and predictions, and `score`, all metrics of a task from raw logits.

They are written in numpy: importing scikit-learn would delay a run's first evaluation, and a bootstrap calls each a
thousand times. Tests compare every one with scikit-learn.

If a score is not defined, its value is fixed, and no library warns:
- precision, recall and F1 of a class without predictions or without rows: 0.0
- a correlation (Matthews, Pearson, Spearman) with a constant or non-finite side: 0.0
- R² against constant labels: 1.0 if they are met exactly, else 0.0
- ROC-AUC with one class, average precision without a positive row, errors of non-finite predictions: not finite.
  `score` leaves those out, but always returns the task's main metric.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from whet.errors import UsageError, nearest
from whet.metrics import counts as of
from whet.metrics import rankings
from whet.metrics.arrays import as_array, as_floats, check_finite, check_rows, flat_column
from whet.utils.arrays import Array

MAIN_METRIC = {
    "binary": "accuracy",
    "multiclass": "accuracy",
    "multilabel": "micro_f1",
    "regression": "pearson",
}
"""The metric that decides the best step unless the user sets another."""

TASK_METRICS = {
    "binary": ("accuracy", "f1", "precision", "recall", "roc_auc", "matthews"),
    "multiclass": ("accuracy", "macro_f1", "weighted_f1", "matthews"),
    "multilabel": ("micro_f1", "macro_f1", "exact_match", "average_precision"),
    "regression": ("pearson", "spearman", "mse", "mae", "r2"),
}
"""The metrics that `score` returns for each task."""

FROM_MARGINS = frozenset({"roc_auc", "average_precision"})
"""Ranking scores, which read the model's confidence instead of its label."""

_LOWER = frozenset({"loss", "mse", "rmse", "mae", "log_loss", "nll", "brier", "brier_score", "ece", "perplexity"})


def higher_is_better(name: str) -> bool:
    """Return whether a larger value of this metric is better; smaller losses and errors are better."""
    bare = name.removeprefix("eval_").removeprefix("test_")
    return not (bare in _LOWER or bare.endswith(("loss", "_error")))


# Labels --------------------------------------------------------------------------------------------


def accuracy(labels: Any, predictions: Any) -> float:
    """Share of rows that are right; with several labels per row, all of them must be."""
    return float(of.accuracy(of.count(*one_label_per_row(*_labels(labels, predictions)))))


def precision(labels: Any, predictions: Any, *, average: str = "binary", pos_label: object = 1) -> float:
    """Share of the rows predicted as the class that belong to it."""
    return _by_class(of.precision, labels, predictions, average, pos_label)


def recall(labels: Any, predictions: Any, *, average: str = "binary", pos_label: object = 1) -> float:
    """Share of the rows of the class that are predicted as it."""
    return _by_class(of.recall, labels, predictions, average, pos_label)


def f1(labels: Any, predictions: Any, *, average: str = "binary", pos_label: object = 1) -> float:
    """The harmonic mean of precision and recall."""
    return _by_class(of.f1, labels, predictions, average, pos_label)


def macro_f1(labels: Any, predictions: Any) -> float:
    return f1(labels, predictions, average="macro")


def micro_f1(labels: Any, predictions: Any) -> float:
    return f1(labels, predictions, average="micro")


def weighted_f1(labels: Any, predictions: Any) -> float:
    return f1(labels, predictions, average="weighted")


def matthews_correlation(labels: Any, predictions: Any) -> float:
    """Correlation between labels and predictions, for any number of classes."""
    truth, predicted = _labels(labels, predictions)
    if truth.ndim == 2:
        raise UsageError("matthews_correlation takes one label per row.", "Score each column by itself.")
    return float(of.matthews(of.count(truth, predicted)))


def one_label_per_row(labels: Array, predictions: Array) -> tuple[Array, Array]:
    """Turn several labels per row into one: right as a whole, or not."""
    if labels.ndim == 1:
        return labels, predictions
    right = (labels == predictions).all(axis=1).astype(np.int64)
    return np.ones_like(right), right


def _by_class(
    measure: Callable[[of.Counts], of.Floats], labels: Any, predictions: Any, average: str, pos_label: object
) -> float:
    counted = of.count(*_labels(labels, predictions))
    if average == "binary":
        return float(of.of_class(measure, counted, pos_label))
    return float(of.averaged(measure, counted, average))


def _labels(labels: Any, predictions: Any) -> tuple[Array, Array]:
    truth, predicted = flat_column(as_array(labels, "labels")), flat_column(as_array(predictions, "predictions"))
    check_rows(truth, predicted)
    if truth.shape != predicted.shape:
        raise UsageError(f"labels has shape {truth.shape}, but predictions {predicted.shape}.")
    return truth, predicted


# Rankings ------------------------------------------------------------------------------------------


def roc_auc(labels: Any, scores: Any) -> float:
    """Probability that a row of class 1 scores above one of class 0; the mean over columns if 2-D."""
    return _ranking(rankings.roc_auc, labels, scores)


def average_precision(labels: Any, scores: Any) -> float:
    """Mean precision at each row of class 1, best score first; the mean over columns if 2-D."""
    return _ranking(rankings.average_precision, labels, scores)


def _ranking(measure: rankings.Ranking, labels: Any, scores: Any) -> float:
    truth, values = _labels(labels, as_floats(scores, "scores"))
    return math.nan if np.isnan(values).any() else float(rankings.ranked(measure, truth, values))


def log_loss(labels: Any, probabilities: Any) -> float:
    """Mean negative log of the right class's probability; probabilities [n, k], or [n] of class 1."""
    truth = as_array(labels, "labels").astype(np.int64)
    chances = as_floats(probabilities, "probabilities")
    check_rows(truth, chances, ("labels", "probabilities"))
    if chances.ndim == 1:
        chances = np.stack([1 - chances, chances], axis=1)
    _check_classes(truth, chances.shape[1])
    right = chances[np.arange(len(truth)), truth]
    # One confident mistake would make the mean infinite.
    return float(-np.log(np.maximum(right, np.finfo(np.float64).eps)).mean())


# Numbers -------------------------------------------------------------------------------------------


def pearson(labels: Any, predictions: Any) -> float:
    """Linear correlation."""
    truth, predicted = _numbers(labels, predictions)
    return _correlation(truth, predicted)


def spearman(labels: Any, predictions: Any) -> float:
    """Correlation of the ranks."""
    truth, predicted = _numbers(labels, predictions)
    if not np.isfinite(predicted).all():
        return 0.0
    return _correlation(_ranks(truth), _ranks(predicted))


def mse(labels: Any, predictions: Any) -> float:
    """Mean squared error."""
    truth, predicted = _numbers(labels, predictions)
    with np.errstate(over="ignore", invalid="ignore"):
        return float(((truth - predicted) ** 2).mean())


def mae(labels: Any, predictions: Any) -> float:
    """Mean absolute error."""
    truth, predicted = _numbers(labels, predictions)
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.abs(truth - predicted).mean())


def r2(labels: Any, predictions: Any) -> float:
    """Share of the labels' variance that the predictions explain."""
    truth, predicted = _numbers(labels, predictions)
    with np.errstate(over="ignore", invalid="ignore"):
        missed, spread = ((truth - predicted) ** 2).sum(), ((truth - truth.mean()) ** 2).sum()
        if np.ptp(truth) == 0 or spread == 0:
            return float(missed == 0)
        return float(1 - missed / spread)


def _correlation(x: Array, y: Array) -> float:
    if not np.isfinite(x).all() or not np.isfinite(y).all() or np.ptp(x) == 0 or np.ptp(y) == 0:
        return 0.0
    # Scaled before multiplying: neither 1e200 nor 1e-200 may overflow or vanish.
    x, y = x / np.abs(x).max(), y / np.abs(y).max()
    x, y = x - x.mean(), y - y.mean()
    norms = float(np.linalg.norm(x) * np.linalg.norm(y))
    return float(np.clip(x @ y / norms, -1.0, 1.0)) if norms else 0.0


def _ranks(values: Array) -> Array:
    """Return ranks from 1; ties share their mean."""
    _, group, size = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(size) - (size - 1) / 2)[group]


def _numbers(labels: Any, predictions: Any) -> tuple[Array, Array]:
    return _labels(as_floats(labels, "labels"), as_floats(predictions, "predictions"))


METRICS: dict[str, Callable[[Any, Any], float]] = {
    "accuracy": accuracy,
    "exact_match": accuracy,
    "precision": precision,
    "recall": recall,
    "f1": f1,
    "macro_f1": macro_f1,
    "micro_f1": micro_f1,
    "weighted_f1": weighted_f1,
    "matthews": matthews_correlation,
    "matthews_correlation": matthews_correlation,
    "roc_auc": roc_auc,
    "average_precision": average_precision,
    "pearson": pearson,
    "spearman": spearman,
    "mse": mse,
    "mae": mae,
    "r2": r2,
}
"""Every score by name: (labels, predictions or, for rankings, scores) -> float."""


def metric_named(name: str) -> Callable[[Any, Any], float]:
    """Return the score of that name; the error names the nearest one."""
    if name not in METRICS:
        raise UsageError(f"There is no metric {name!r}.", nearest(name, METRICS))
    return METRICS[name]


# Tasks ---------------------------------------------------------------------------------------------


def score(task: str, logits: Any, labels: Any) -> dict[str, float]:
    """Return the task's metrics (`TASK_METRICS`) from raw logits [n, k]; undefined ones are left out."""
    outputs, truth = checked(task, logits, labels)
    values = {name: metric_named(name)(truth, evidence(task, name, outputs)) for name in TASK_METRICS[task]}
    return {name: value for name, value in values.items() if math.isfinite(value)}


def probabilities(task: str, logits: Any) -> Array:
    """Return softmax for one label per row, sigmoid for several, the numbers themselves for regression."""
    outputs = checked_logits(task, logits)
    if task == "regression":
        return outputs
    # An infinite logit means certainty instead of nan.
    outputs = np.nan_to_num(outputs, nan=np.nan, posinf=1e30, neginf=-1e30)
    if task == "multilabel":
        small = np.exp(-np.abs(outputs))
        return np.asarray(np.where(outputs >= 0, 1.0, small) / (1.0 + small))
    powers = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def predicted(task: str, logits: Any) -> Array:
    """Return class numbers [n], 0/1 columns [n, k] (probability at least 0.5), or numbers [n] for regression."""
    outputs = checked_logits(task, logits)
    if task == "regression":
        return outputs[:, 0]
    if task == "multilabel":
        return (probabilities(task, outputs) >= 0.5).astype(np.int64)
    # A nan never wins, so that a diverged model still gets a score.
    return np.asarray(np.where(np.isnan(outputs), -np.inf, outputs).argmax(axis=1))


def evidence(task: str, name: str, logits: Any) -> Array:
    """Return what the metric compares with the labels: predicted labels, or the model's confidence."""
    if name not in FROM_MARGINS:
        return predicted(task, logits)
    outputs = checked_logits(task, logits)
    # Differences of logits instead of probabilities, which saturate at 1.0 and would tie.
    with np.errstate(invalid="ignore"):
        return outputs[:, 1] - outputs[:, 0] if task == "binary" else outputs


def checked(task: str, logits: Any, labels: Any) -> tuple[Array, Array]:
    """Return logits [n, k] as float64 and labels of the task's shape and range."""
    outputs = checked_logits(task, logits)
    truth = as_array(labels, "labels")
    check_rows(truth, outputs, ("labels", "logits"))
    check_finite(truth, "labels")
    if task == "multilabel":
        if truth.shape != outputs.shape:
            raise UsageError(f"labels has shape {truth.shape}, but logits {outputs.shape}.")
        if not np.isin(truth, (0, 1)).all():
            raise UsageError(f"labels holds {truth[~np.isin(truth, (0, 1))][0]!r}, but 0 or 1 is expected.")
        return outputs, truth.astype(np.int64)
    truth = flat_column(truth)
    if truth.ndim != 1:
        raise UsageError(f"labels has shape {truth.shape}, but {task} takes one label per row.")
    if task == "regression":
        return outputs, as_floats(truth, "labels")
    _check_classes(truth, outputs.shape[1])
    return outputs, truth.astype(np.int64)


def checked_logits(task: str, logits: Any) -> Array:
    """Return logits as float64 [n, k] with the task's number of columns."""
    if task not in MAIN_METRIC:
        raise UsageError(f"There is no task {task!r}.", nearest(task, MAIN_METRIC))
    outputs = as_floats(logits, "logits")
    if task == "regression" and outputs.ndim == 1:
        outputs = outputs[:, None]
    width = {"binary": 2, "regression": 1}.get(task)
    if outputs.ndim != 2 or (width is not None and outputs.shape[1] != width):
        raise UsageError(f"logits has shape {outputs.shape}, but {task} takes [rows, {width or 'labels'}].")
    return outputs


def _check_classes(labels: Array, classes: int) -> None:
    whole = labels.dtype.kind in "iu" or (labels.dtype.kind == "f" and (labels == np.floor(labels)).all())
    wrong = labels[(labels < 0) | (labels >= classes)] if whole else labels
    if len(wrong):
        raise UsageError(
            f"labels holds {wrong[0].item()!r}, but class numbers from 0 to {classes - 1} are expected.",
            "Leave rows without a label out of the evaluation.",
        )
