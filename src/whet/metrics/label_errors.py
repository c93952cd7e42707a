"""Confident learning (Northcutt, Jiang, Chuang 2021): which given labels are probably wrong.

The probabilities of each row must come from a model that was not trained on the row. The threshold of a label is the
mean probability that rows with this label give it. A row is found where the probability of another label reaches that
label's threshold, and the model prefers another label than the given one. This equals `find_label_issues` of cleanlab
with `filter_by="confident_learning"`, ranked by self-confidence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from whet.errors import UsageError
from whet.metrics.arrays import check_finite
from whet.utils.arrays import Array

SLACK = 1e-6
"""What a probability may be below its threshold by rounding."""


@dataclass(frozen=True, eq=False)
class LabelErrors:
    """What the probabilities say about each row's given label."""

    found: Array
    """Whether the given label is probably wrong [rows]."""
    likely: Array
    """The likely label: for rows that are found another one than the given [rows]."""
    order: Array
    """All row numbers, those whose given label is least probable first."""
    thresholds: Array
    """The mean probability that rows with a label give it [labels]; above 1 where no row has it."""

    @property
    def ranked(self) -> Array:
        """The row numbers that are found, those whose given label is least probable first."""
        ranked: Array = self.order[self.found[self.order]]
        return ranked


def find_label_errors(labels: Any, probabilities: Any) -> LabelErrors:
    """Judge given labels [rows] by out-of-fold probabilities [rows, labels]."""
    given, chances = _checked(labels, probabilities)
    rows = np.arange(len(given))
    own = chances[rows, given]
    thresholds = _mean_own(given, own, chances.shape[1])
    confident = chances >= thresholds - SLACK
    preferred = chances.argmax(axis=1)
    likely = np.where(confident.sum(axis=1) == 1, confident.argmax(axis=1), preferred)
    found = confident.any(axis=1) & (likely != given) & (preferred != given)
    return LabelErrors(found, likely, np.argsort(own, kind="stable"), thresholds)


def _mean_own(given: Array, own: Array, labels: int) -> Array:
    counts = np.bincount(given, minlength=labels)
    sums = np.bincount(given, weights=own, minlength=labels)
    return np.where(counts > 0, sums / np.maximum(1, counts), np.inf)


def _checked(labels: Any, probabilities: Any) -> tuple[Array, Array]:
    given, chances = np.asarray(labels), np.asarray(probabilities, np.float64)
    if chances.ndim != 2 or given.shape != chances.shape[:1]:
        raise UsageError(
            f"Labels have the shape {given.shape} and probabilities {chances.shape}: "
            "one label a row and [rows, labels] are expected."
        )
    if not np.issubdtype(given.dtype, np.integer):
        raise UsageError("Label errors are found for one label per row, as whole numbers.")
    check_finite(chances, "probabilities")
    if len(given) and not (given.min() >= 0 and given.max() < chances.shape[1]):
        raise UsageError(f"A label is {int(given.max())}, and there are {chances.shape[1]} columns of probabilities.")
    return given.astype(np.int64), chances
