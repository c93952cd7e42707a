"""Baselines beside the model: what simpler answers score on the same rows, and whether these rows can tell them apart.

`linear` makes the baselines' logits. The commonest answer of the training rows is always one more baseline where
those are given.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from whet.errors import UsageError
from whet.metrics.arrays import Array
from whet.metrics.intervals import PROPORTIONS, Paired, bootstrap, paired, wilson
from whet.metrics.majority import majority
from whet.metrics.scores import (
    MAIN_METRIC,
    checked,
    evidence,
    higher_is_better,
    one_label_per_row,
    probabilities,
    score,
)

COMMONEST = "commonest"

_RESAMPLED_NUMBERS = 20_000_000  # rows times resamples of a paired bootstrap: a few seconds


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """A simpler answer to the same rows."""

    name: str
    scores: dict[str, float]
    """As `score` gives them."""
    test: Paired
    """The baseline (a) against the model (b), by the metric of the standing."""
    interval: tuple[float, float] | None = None
    """The 95% interval of `value`; None where these rows give none."""
    association: float = 0.0
    """As `association` gives it."""
    above_commonest: float | None = None
    """The p-value of being better than the commonest answer; 1.0 where it is not better, None where it is unknown."""
    trained_on: int | None = None
    """Training rows, where they are fewer than the model's."""

    @property
    def value(self) -> float:
        return self.test.a

    @property
    def p_value(self) -> float:
        return self.test.p_value


@dataclass(frozen=True, kw_only=True)
class Standing:
    """The model among its baselines, on the same rows."""

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
    """All rows of the split, where `rows` are a sample of them."""

    @property
    def value(self) -> float:
        return self.scores[self.metric]

    @property
    def sentence(self) -> str:
        """`accuracy on 872 rows: fine-tuned .763, frozen .710, TF-IDF .677, commonest .505`, and what that shows."""
        shown = [(self.name, self.scores[self.metric]), *((each.name, each.value) for each in self.baselines)]
        listed = ", ".join(f"{name} {_short(value)}" for name, value in shown)
        of = "" if self.of_rows is None else f" of {self.of_rows:,}"
        return f"{self.metric} on {self.rows:,}{of} rows: {listed}{self._judged()}.{self._fewer_rows()}"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        found = dataclasses.asdict(self)
        for each, shown in zip(self.baselines, found["baselines"], strict=True):
            shown |= {"value": each.value, "p_value": each.p_value}
        return {**found, "value": self.value, "sentence": self.sentence}

    def _judged(self) -> str:
        """What is bad news first: one sentence has room for one."""
        equal = [each for each in self.baselines if not each.test.visible]
        better = [each for each in self.baselines if each.test.visible and self._is_worse_than(each)]
        if better:
            return f"; {self.name} is worse than {_listed(better)}"
        if equal:
            return f"; these rows cannot tell {self.name} from {_listed(equal)}"
        if len(self.baselines) == 1:
            return f"; {self.name} is better (p = {self.baselines[0].p_value:.2g})"
        highest = max((each.p_value for each in self.baselines), default=None)
        return "" if highest is None else f"; {self.name} is better than all of them (p at most {highest:.2g})"

    def _is_worse_than(self, baseline: Baseline) -> bool:
        return (baseline.test.difference < 0) == higher_is_better(self.metric)

    def _fewer_rows(self) -> str:
        fewer = [each for each in self.baselines if each.trained_on is not None]
        of = "" if self.train_rows is None else f" of {self.train_rows:,}"
        return "".join(f" {each.name} was trained on {each.trained_on:,}{of} rows." for each in fewer)


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
    """The model's logits and those of each baseline, by name, against the labels of the same rows.

    `metric` is the task's main one where it is not said, or not defined on these rows (a loss never is). `trained_on`
    has how many training rows a baseline took; `train_labels` are all of them, and with folds simply all labels.
    """
    outputs, truth = checked(kind, logits, labels)
    scores = score(kind, outputs, truth)
    decides = metric if metric in scores else MAIN_METRIC[kind]
    every = {each: checked(kind, values, truth)[0] for each, values in baselines.items()}
    train_rows = None if train_labels is None else len(train_labels)
    if train_labels is not None:
        every[COMMONEST] = commonest_predictions(kind, outputs.shape[1], train_labels, len(truth))
    taken = {each: rows for each, rows in (trained_on or {}).items() if train_rows is None or rows < train_rows}
    resamples = int(np.clip(_RESAMPLED_NUMBERS // len(truth), 200, 2000))
    predicted = {each: evidence(kind, decides, values) for each, values in {name: outputs, **every}.items()}
    found = [
        Baseline(
            name=each,
            scores=score(kind, values, truth),
            test=paired(truth, predicted[each], predicted[name], decides, resamples=resamples),
            interval=_interval(decides, truth, predicted[each]),
            association=association(kind, values, truth),
            above_commonest=_above(predicted.get(COMMONEST), predicted[each], truth, decides, resamples),
            trained_on=taken.get(each),
        )
        for each, values in every.items()
    ]
    found.sort(key=lambda each: -each.value if higher_is_better(decides) else each.value)
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
    """How far the answers agree with the labels beyond chance, in standard deviations of shuffled labels.

    It sees what accuracy does not: answers that name one class on every row, and are surer of it where it is right.
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
        except UsageError:  # not defined on any resample of these rows
            return None
    # A bootstrap of rows that are all alike knows no others: an interval of no width would claim to be certain.
    return (found.low, found.high) if found.low < found.high else None


def _above(commonest: Array | None, predicted: Array, truth: Array, metric: str, resamples: int) -> float | None:
    if commonest is None:
        return None
    test = paired(truth, commonest, predicted, metric, resamples=resamples)
    return test.p_value if (test.difference > 0) == higher_is_better(metric) and test.difference else 1.0


def commonest_predictions(kind: str, outputs: int, train_labels: Any, rows: int) -> Array:
    """Logits of one constant answer: the training labels' commonest, or their mean."""
    answer = majority(kind, train_labels, train_labels).label
    if kind == "regression":
        return np.full((rows, 1), float(answer))
    if kind == "multilabel":
        return np.tile(np.where(np.asarray(answer) > 0, 1.0, -1.0), (rows, 1))
    return np.tile(np.where(np.arange(outputs) == int(answer), 1.0, 0.0), (rows, 1))


def _short(value: float) -> str:
    """Three digits, without the 0 before the point."""
    return f"{value:.3f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.3f}"


def _listed(baselines: list[Baseline]) -> str:
    *most, last = [f"{each.name} (p = {each.p_value:.2g})" for each in baselines]
    return f"{', '.join(most)} and {last}" if most else last
