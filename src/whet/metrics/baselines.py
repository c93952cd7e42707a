"""Compares the model with its baselines on the same rows, with tests of whether the differences are visible.

`linear_models` makes the baselines' logits. If the training labels are given, their commonest answer is one more
baseline.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from whet.errors import UsageError
from whet.metrics.intervals import PROPORTIONS, Paired, bootstrap, paired, wilson
from whet.metrics.majority import majority
from whet.metrics.scores import (
    MAIN_METRIC,
    TASK_METRICS,
    checked,
    evidence,
    higher_is_better,
    one_label_per_row,
    probabilities,
    score,
)
from whet.utils.arrays import Array

COMMONEST = "commonest"

_RESAMPLED_NUMBERS = 20_000_000  # rows times resamples of a paired bootstrap: a few seconds


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """A baseline's result on the same rows."""

    name: str
    scores: dict[str, float]
    """In the format of `score`."""
    test: Paired
    """The baseline (a) against the model (b), by the metric of the standing."""
    interval: tuple[float, float] | None = None
    """The 95% interval of `value`; None if these rows give none."""
    association: float = 0.0
    """The result of `association`."""
    above_commonest: float | None = None
    """The p-value of being better than the commonest answer; 1.0 if it is not better, None if unknown."""
    trained_on: int | None = None
    """Number of training rows, if it is smaller than the model's."""

    @property
    def value(self) -> float:
        return self.test.a

    @property
    def p_value(self) -> float:
        return self.test.p_value


@dataclass(frozen=True, kw_only=True)
class Standing:
    """The model and its baselines on the same rows."""

    name: str
    metric: str
    rows: int
    scores: dict[str, float]
    baselines: tuple[Baseline, ...]
    """Best first."""
    interval: tuple[float, float] | None = None
    association: float = 0.0
    train_rows: int | None = None
    of_rows: int | None = None
    """Number of all rows of the split, if `rows` are a sample."""

    @property
    def value(self) -> float:
        return self.scores[self.metric]

    @property
    def sentence(self) -> str:
        """Return `accuracy on 872 rows: fine-tuned .763, frozen .710, TF-IDF .677, commonest .505`, and what that
        shows."""
        shown = [(self.name, self.scores[self.metric]), *((other.name, other.value) for other in self.baselines)]
        listed = ", ".join(f"{name} {_short(value)}" for name, value in shown)
        said = f"{listed}{self._judged()}."
        if self.metric in TASK_METRICS["regression"]:
            said = said.replace(COMMONEST, "constant")  # among numbers the constant answer is the mean
        of = "" if self.of_rows is None else f" of {self.of_rows:,}"
        return f"{self.metric} on {self.rows:,}{of} rows: {said}{self._fewer_rows()}"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        found = dataclasses.asdict(self)
        for baseline, shown in zip(self.baselines, found["baselines"], strict=True):
            shown |= {"value": baseline.value, "p_value": baseline.p_value}
        return {**found, "value": self.value, "sentence": self.sentence}

    def _judged(self) -> str:
        """Return the most important conclusion, the worst news first."""
        equal = [baseline for baseline in self.baselines if not baseline.test.visible]
        better = [baseline for baseline in self.baselines if baseline.test.visible and self._is_worse_than(baseline)]
        if better:
            return f"; {self.name} is worse than {_listed(better)}"
        if equal:
            return f"; these rows cannot tell {self.name} from {_listed(equal)}"
        if len(self.baselines) == 1:
            return f"; {self.name} is better (p = {self.baselines[0].p_value:.2g})"
        highest = max((baseline.p_value for baseline in self.baselines), default=None)
        return "" if highest is None else f"; {self.name} is better than all of them (p at most {highest:.2g})"

    def _is_worse_than(self, baseline: Baseline) -> bool:
        return (baseline.test.difference < 0) == higher_is_better(self.metric)

    def _fewer_rows(self) -> str:
        fewer = [baseline for baseline in self.baselines if baseline.trained_on is not None]
        of = "" if self.train_rows is None else f" of {self.train_rows:,}"
        return "".join(f" {baseline.name} was trained on {baseline.trained_on:,}{of} rows." for baseline in fewer)


def compare_baselines(
    kind: str,
    logits: Any,
    labels: Any,
    baselines: Mapping[str, Any],
    *,
    metric: str | None = None,
    train_labels: Any | None = None,
    trained_on: Mapping[str, int] | None = None,
    of_rows: int | None = None,
    name: str = "fine-tuned",
) -> Standing:
    """Compare the model's logits and those of each baseline, by name, with the labels of the same rows.

    `metric` defaults to the task's main one, also if it is not defined on these rows (a loss never is). `trained_on`
    is each baseline's number of training rows; `train_labels` are all training labels, or with folds all labels.
    """
    outputs, truth = checked(kind, logits, labels)
    scores = score(kind, outputs, truth)
    decides = metric if metric in scores else MAIN_METRIC[kind]
    every = {answer: checked(kind, values, truth)[0] for answer, values in baselines.items()}
    train_rows = None if train_labels is None else len(train_labels)
    if train_labels is not None:
        every[COMMONEST] = commonest_predictions(kind, outputs.shape[1], train_labels, len(truth))
    taken = {answer: rows for answer, rows in (trained_on or {}).items() if train_rows is None or rows < train_rows}
    resamples = int(np.clip(_RESAMPLED_NUMBERS // len(truth), 200, 2000))
    predicted = {answer: evidence(kind, decides, values) for answer, values in {name: outputs, **every}.items()}
    found = [
        Baseline(
            name=answer,
            scores=score(kind, values, truth),
            test=paired(truth, predicted[answer], predicted[name], decides, resamples=resamples),
            interval=_interval(decides, truth, predicted[answer]),
            association=association(kind, values, truth),
            above_commonest=_above(predicted.get(COMMONEST), predicted[answer], truth, decides, resamples),
            trained_on=taken.get(answer),
        )
        for answer, values in every.items()
    ]
    found.sort(key=lambda answer: -answer.value if higher_is_better(decides) else answer.value)
    return Standing(
        name=name,
        metric=decides,
        rows=len(truth),
        scores=scores,
        baselines=tuple(found),
        interval=_interval(decides, truth, predicted[name]),
        association=association(kind, outputs, truth),
        train_rows=train_rows,
        of_rows=of_rows,
    )


def association(kind: str, logits: Any, labels: Any) -> float:
    """Return the agreement of predictions and labels, in standard deviations over shuffled labels.

    It notices more than accuracy: for example predictions of one class on every row that are surer on the right rows.
    Mean and variance over all permutations of the labels have a closed form, so nothing is drawn.
    """
    outputs, truth = checked(kind, logits, labels)
    rows = len(truth)
    if rows < 2:
        return 0.0
    if kind == "regression":
        x, y = np.asarray(outputs, np.float64).reshape(rows, -1), np.asarray(truth, np.float64).reshape(rows, -1)
    else:
        x = np.asarray(probabilities(kind, outputs), np.float64).reshape(rows, -1)
        y = np.asarray(truth, np.float64) if kind == "multilabel" else np.eye(x.shape[1])[np.asarray(truth, int)]
    x, y = x - x.mean(axis=0), y - y.mean(axis=0)
    deviation = float(np.sqrt(max(0.0, float(((x.T @ x) * (y.T @ y)).sum())) / (rows - 1)))
    return float((x * y).sum()) / deviation if deviation > 1e-12 else 0.0


def _interval(metric: str, truth: Array, predicted: Array) -> tuple[float, float] | None:
    if metric in PROPORTIONS:
        true, given = one_label_per_row(truth, predicted)
        found = wilson(int((true == given).sum()), len(true))
    else:
        try:
            found = bootstrap(
                metric, truth, predicted, resamples=int(np.clip(_RESAMPLED_NUMBERS // len(truth), 200, 1000))
            )
        except UsageError:  # undefined on every resample of these rows
            return None
    # If all rows are alike, a bootstrap interval has no width, which would suggest certainty.
    return (found.low, found.high) if found.low < found.high else None


def _above(commonest: Array | None, predicted: Array, truth: Array, metric: str, resamples: int) -> float | None:
    if commonest is None:
        return None
    test = paired(truth, commonest, predicted, metric, resamples=resamples)
    return test.p_value if (test.difference > 0) == higher_is_better(metric) and test.difference else 1.0


def commonest_predictions(kind: str, outputs: int, train_labels: Any, rows: int) -> Array:
    """Return logits of a constant answer: the commonest training label, or their mean."""
    answer = majority(kind, train_labels, train_labels).label
    if kind == "regression":
        return np.full((rows, 1), float(answer))
    if kind == "multilabel":
        return np.tile(np.where(np.asarray(answer) > 0, 1.0, -1.0), (rows, 1))
    return np.tile(np.where(np.arange(outputs) == int(answer), 1.0, 0.0), (rows, 1))


def _short(value: float) -> str:
    """Format three digits without the leading 0."""
    return f"{value:.3f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.3f}"


def _listed(baselines: list[Baseline]) -> str:
    *most, last = [f"{baseline.name} (p = {baseline.p_value:.2g})" for baseline in baselines]
    return f"{', '.join(most)} and {last}" if most else last
