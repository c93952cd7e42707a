"""Confidence intervals of scores, and tests of whether two models differ on the same rows.

Proportions (accuracy, exact match) have closed forms: Wilson's interval, and McNemar's exact test for two models.
Every other metric is bootstrapped: rows are drawn with replacement, and the interval contains the middle 95% of the
scores. If rows have one class each, every class keeps its number of rows, and averages use the same classes in every
draw: a draw without a rare class would be an easier task. Draws use a seed, so equal arrays give equal intervals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist
from typing import Any

import numpy as np

from whet.errors import UsageError
from whet.metrics import counts as of
from whet.metrics import rankings
from whet.metrics.arrays import as_array, as_floats, check_rows, flat_column
from whet.metrics.scores import TASK_METRICS, checked, evidence, metric_named, one_label_per_row, score
from whet.utils.arrays import Array

Metric = str | Callable[[Array, Array], float]

PROPORTIONS = frozenset({"accuracy", "exact_match"})

Weighted = Callable[[Array, Array, Array], Array]
"""A metric of (labels, predictions, weights [..., n]): one value per set of weights."""


def _counted(measure: Callable[[of.Counts], of.Floats]) -> Weighted:
    return lambda truth, predicted, weights: measure(of.count(truth, predicted, weights))


def _averaged_f1(average: str) -> Weighted:
    return lambda truth, predicted, weights: of.averaged(of.f1, of.count(truth, predicted, weights), average)


def _of_class_1(measure: Callable[[of.Counts], of.Floats]) -> Weighted:
    return lambda truth, predicted, weights: of.of_class(measure, of.count(truth, predicted, weights), 1)


_WEIGHTED: dict[str, Weighted] = {
    "accuracy": _counted(of.accuracy),
    "exact_match": _counted(of.accuracy),
    "precision": _of_class_1(of.precision),
    "recall": _of_class_1(of.recall),
    "f1": _of_class_1(of.f1),
    "macro_f1": _averaged_f1("macro"),
    "micro_f1": _averaged_f1("micro"),
    "weighted_f1": _averaged_f1("weighted"),
    "matthews": _counted(of.matthews),
    "matthews_correlation": _counted(of.matthews),
    "roc_auc": partial(rankings.ranked, rankings.roc_auc),
    "average_precision": partial(rankings.ranked, rankings.average_precision),
}

Resampled = Callable[[Array, Array, Array], Array]
"""A metric of (labels [n], predictions [n], drawn rows [resamples, n]): one value per resample."""


def _pearsons(truth: Array, predicted: Array, rows: Array) -> Array:
    return _correlations(truth[rows], predicted[rows])


def _spearmans(truth: Array, predicted: Array, rows: Array) -> Array:
    found = _correlations(_resampled_ranks(truth, rows), _resampled_ranks(predicted, rows))
    return np.where(np.isfinite(predicted[rows]).all(axis=1), found, 0.0)


def _correlations(x: Array, y: Array) -> Array:
    """Return `scores.pearson` of each pair of rows, by sums: matrix products would start threads for each."""
    with np.errstate(invalid="ignore", divide="ignore"):
        defined = np.isfinite(x).all(axis=1) & np.isfinite(y).all(axis=1)
        defined &= (np.ptp(x, axis=1) > 0) & (np.ptp(y, axis=1) > 0)
        # Scaled before multiplying: neither 1e200 nor 1e-200 may overflow or vanish.
        x, y = (values / np.abs(values).max(axis=1, keepdims=True) for values in (x, y))
        x, y = (values - values.mean(axis=1, keepdims=True) for values in (x, y))
        products, squares = np.einsum("ij,ij->i", x, y), [np.einsum("ij,ij->i", values, values) for values in (x, y)]
        norms = np.sqrt(squares[0]) * np.sqrt(squares[1])
        return np.where(defined & (norms > 0), np.clip(products / norms, -1.0, 1.0), 0.0)


def _resampled_ranks(values: Array, rows: Array) -> Array:
    """Return the ranks within each resample, ties sharing their mean; counted instead of sorted."""
    distinct, group = np.unique(values, return_inverse=True)
    drawn = group[rows]
    places = drawn + len(distinct) * np.arange(len(rows))[:, None]
    counts = np.bincount(places.ravel(), minlength=len(distinct) * len(rows)).reshape(len(rows), -1)
    ranks = np.cumsum(counts, axis=1) - (counts - 1) / 2
    return np.asarray(np.take_along_axis(ranks, drawn, axis=1))


_RESAMPLED: dict[str, Resampled] = {"pearson": _pearsons, "spearman": _spearmans}

_CELLS_AT_ONCE = 250_000  # resamples are drawn in blocks of at most this many numbers, which fit into the cache


@dataclass(frozen=True)
class Interval:
    """A score and its confidence interval."""

    value: float
    low: float
    high: float
    n: int
    confidence: float = 0.95


@dataclass(frozen=True)
class Paired:
    """Two models on the same rows; `difference` is b - a."""

    metric: str
    a: float
    b: float
    difference: float
    low: float
    high: float
    p_value: float
    n: int
    test: str
    """`mcnemar` or `bootstrap`."""
    confidence: float = 0.95

    @property
    def visible(self) -> bool:
        """Whether the difference is significant on these rows."""
        return self.p_value < 1 - self.confidence


def wilson(right: float, n: int, confidence: float = 0.95) -> Interval:
    """Return Wilson's interval for `right` rows of `n`; it stays within 0 and 1 and is accurate at both ends."""
    if n < 1 or not 0 <= right <= n:
        raise UsageError(f"wilson got {right} right of {n} rows.")
    z, share = _z(confidence), right / n
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    # At 0 and n right rows the end is exact; rounding must not exclude the score from its interval.
    low, high = max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))
    return Interval(share, low, high, n, confidence)


def bootstrap(
    metric: Metric,
    labels: Any,
    predictions: Any,
    *,
    confidence: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> Interval:
    """Return the percentile interval of a metric: a name in `METRICS`, or any function (labels, predictions)."""
    truth, predicted = _rows(labels, predictions)
    value = _value(metric, truth, predicted)
    if metric in PROPORTIONS:
        truth, predicted = one_label_per_row(truth, predicted)
    draws = np.concatenate([scores for (scores,) in _draws(metric, truth, (predicted,), resamples, seed)])
    low, high = _middle(draws, confidence, metric)
    return Interval(value, low, high, len(truth), confidence)


def score_intervals(
    task: str, logits: Any, labels: Any, *, confidence: float = 0.95, resamples: int = 1000, seed: int = 0
) -> dict[str, Interval]:
    """Return an interval for every metric that `score` gives for these logits."""
    outputs, truth = checked(task, logits, labels)
    found: dict[str, Interval] = {}
    for name, value in score(task, outputs, truth).items():
        if name in PROPORTIONS:
            found[name] = wilson(round(value * len(truth)), len(truth), confidence)
        else:
            found[name] = bootstrap(
                name,
                truth,
                evidence(task, name, outputs),
                confidence=confidence,
                resamples=resamples,
                seed=seed,
            )
    return {name: found[name] for name in TASK_METRICS[task] if name in found}


def standard_error(task: str, logits: Any, labels: Any, metric: str, *, resamples: int = 200, seed: int = 0) -> float:
    """Return the standard deviation of a metric over samples of this size; never 0 for a proportion."""
    outputs, truth = checked(task, logits, labels)
    if metric in PROPORTIONS:
        right = score(task, outputs, truth)[metric] * len(truth)
        share = (right + 0.5) / (len(truth) + 1)  # a perfect score on few rows is not certain
        return math.sqrt(share * (1 - share) / len(truth))
    draws = np.concatenate(
        [scores for (scores,) in _draws(metric, truth, (evidence(task, metric, outputs),), resamples, seed)]
    )
    draws = draws[np.isfinite(draws)]
    return float(draws.std()) if len(draws) else 0.0


def absent_classes(task: str, labels: Any, classes: int) -> list[int]:
    """Return the classes or columns without any row, which no average can include."""
    truth = as_array(labels, "labels")
    if task == "regression":
        return []
    held = truth.any(axis=0) if task == "multilabel" else np.isin(np.arange(classes), truth)
    return np.flatnonzero(~held).tolist()


def paired(
    labels: Any,
    a: Any,
    b: Any,
    metric: Metric = "accuracy",
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Paired:
    """Test whether b differs from a on the same rows: McNemar's exact test for accuracy, else a paired bootstrap.

    `a` and `b` are predictions, or scores for a ranking such as roc_auc.
    """
    truth, first = _rows(labels, a, ("labels", "a"))
    _, second = _rows(labels, b, ("labels", "b"))
    if metric in PROPORTIONS:
        return _mcnemar(str(metric), truth, first, second, confidence)
    one, two = _value(metric, truth, first), _value(metric, truth, second)
    gaps = np.concatenate([y - x for x, y in _draws(metric, truth, (first, second), resamples, seed)])
    gaps = gaps[np.isfinite(gaps)]
    low, high = _middle(gaps, confidence, metric)
    # The share of resamples on the other side of zero, counting the data itself as one resample.
    beyond = 1 + min(int((gaps <= 0).sum()), int((gaps >= 0).sum()))
    p_value = min(1.0, 2 * beyond / (len(gaps) + 1))
    return Paired(_name(metric), one, two, two - one, low, high, p_value, len(truth), "bootstrap", confidence)


def smallest_visible(n: int, p: float, *, disagreement: float | None = None, confidence: float = 0.95) -> float:
    """Return the difference in accuracy, in points, below which two models on `n` rows cannot be told apart.

    `p` is their accuracy. `disagreement` is the share of rows that exactly one of them gets right; without it, their
    errors count as independent. Two runs of one model agree more often, so the result is conservative.
    """
    if n < 1 or not 0 <= p <= 1:
        raise UsageError(f"smallest_visible got {n} rows and accuracy {p}.", "Accuracy is a share from 0 to 1.")
    z = _z(confidence)
    # Shrunk towards a half, as in Wilson's interval: a perfect score on ten rows is not certain.
    share = (p * n + z * z / 2) / (n + z * z)
    apart = 2 * share * (1 - share) if disagreement is None else disagreement
    return 100 * z * math.sqrt(apart / n)


def _mcnemar(metric: str, truth: Array, first: Array, second: Array, confidence: float) -> Paired:
    from scipy.special import bdtr

    one, two = _value(metric, truth, first), _value(metric, truth, second)
    a_right, b_right = (np.equal(*one_label_per_row(truth, predicted)) for predicted in (first, second))
    n, only_a, only_b = len(truth), int((a_right & ~b_right).sum()), int((b_right & ~a_right).sum())
    apart = only_a + only_b
    p_value = min(1.0, 2 * float(bdtr(min(only_a, only_b), apart, 0.5))) if apart else 1.0
    # Bonett and Price's interval adds one row of each kind of disagreement, so that zero seen is not zero.
    z, share_a, share_b = _z(confidence), (only_a + 1) / (n + 2), (only_b + 1) / (n + 2)
    half = z * math.sqrt((share_a + share_b - (share_b - share_a) ** 2) / (n + 2))
    middle = share_b - share_a
    difference = (only_b - only_a) / n
    low, high = max(-1.0, min(difference, middle - half)), min(1.0, max(difference, middle + half))
    return Paired(metric, one, two, difference, low, high, p_value, n, "mcnemar", confidence)


def _draws(
    metric: Metric, truth: Array, predicted: tuple[Array, ...], resamples: int, seed: int
) -> Iterator[tuple[Array, ...]]:
    """Yield scores of resampled rows, block by block, for each set of predictions on the same rows."""
    if resamples < 1:
        raise UsageError(f"resamples={resamples}: at least 1 is needed.")
    random = np.random.default_rng(seed)
    if isinstance(metric, str) and metric in _WEIGHTED:
        by_class = truth.ndim == 1 and metric not in PROPORTIONS
        yield from _weighted_draws(_WEIGHTED[metric], truth, predicted, resamples, random, by_class)
        return
    if isinstance(metric, str) and metric in _RESAMPLED and truth.ndim == 1:
        labels, *numbers = (as_floats(values, "labels") for values in (truth, *predicted))
        for size in _blocks(resamples, len(truth)):
            rows = random.integers(0, len(truth), size=(size, len(truth)))
            yield tuple(_RESAMPLED[metric](labels, values, rows) for values in numbers)
        return
    measure = metric_named(metric) if isinstance(metric, str) else metric
    for size in _blocks(resamples, len(truth)):
        rows = random.integers(0, len(truth), size=(size, len(truth)))
        yield tuple(np.array([measure(truth[pick], values[pick]) for pick in rows]) for values in predicted)


def _weighted_draws(
    measure: Weighted,
    truth: Array,
    predicted: tuple[Array, ...],
    resamples: int,
    random: np.random.Generator,
    by_class: bool,
) -> Iterator[tuple[Array, ...]]:
    """Draw equal rows together: the counts of the distinct rows are one multinomial draw per class."""
    every = [truth, *predicted]
    table = np.column_stack([np.unique(part, return_inverse=True)[1].reshape(part.shape) for part in every])
    _, where, times = np.unique(table, axis=0, return_index=True, return_counts=True)
    strata = table[where, 0] if by_class else np.zeros(len(where), np.int64)
    own = [np.flatnonzero(strata == stratum) for stratum in np.unique(strata)]
    for size in _blocks(resamples, len(where)):
        weights = np.zeros((size, len(where)), np.int64)
        for rows in own:
            drawn = times[rows].sum()
            weights[:, rows] = random.multinomial(drawn, times[rows] / drawn, size=size)
        yield tuple(measure(truth[where], values[where], weights) for values in predicted)


def _blocks(resamples: int, width: int) -> Iterator[int]:
    most = max(1, _CELLS_AT_ONCE // width)
    for start in range(0, resamples, most):
        yield min(most, resamples - start)


def _middle(draws: Array, confidence: float, metric: Metric) -> tuple[float, float]:
    draws = draws[np.isfinite(draws)]
    if not len(draws):
        raise UsageError(f"{_name(metric)} is not defined on any resample of these rows.")
    outside = (1 - confidence) / 2
    low, high = np.quantile(draws, [outside, 1 - outside])
    return float(low), float(high)


def _value(metric: Metric, truth: Array, predicted: Array) -> float:
    value = float((metric_named(metric) if isinstance(metric, str) else metric)(truth, predicted))
    if not math.isfinite(value):
        raise UsageError(f"{_name(metric)} of these {len(truth)} rows is {value}: there is no interval to give.")
    return value


def _rows(labels: Any, predicted: Any, names: tuple[str, str] = ("labels", "predictions")) -> tuple[Array, Array]:
    truth, values = flat_column(as_array(labels, names[0])), flat_column(as_array(predicted, names[1]))
    check_rows(truth, values, names)
    return truth, values


def _name(metric: Metric) -> str:
    return metric if isinstance(metric, str) else getattr(metric, "__name__", "the metric")


def _z(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise UsageError(f"confidence={confidence}: a share between 0 and 1 is expected, such as 0.95.")
    return NormalDist().inv_cdf(0.5 + confidence / 2)
