"""The counts per class from which accuracy, precision, recall, F1 and Matthews are computed.

Rows may have weights with leading axes [..., n]; every count and every score then has those axes. So a bootstrap of a
thousand resamples is one matrix product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from whet.errors import UsageError
from whet.utils.arrays import Array

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Counts:
    """Rows per class, arrays [..., k]: `hit` correctly predicted, `predicted` as the class, `true` of the class."""

    classes: Array
    hit: Floats
    predicted: Floats
    true: Floats
    rows: Floats
    fixed: bool
    """Whether the columns are several labels per row; otherwise they are the classes in labels or predictions."""


def count(labels: Array, predictions: Array, weights: Array | None = None) -> Counts:
    """Counts over single labels [n] or 0/1 columns [n, k]."""
    if labels.ndim == 2:
        classes: Array = np.arange(labels.shape[1])
        true, predicted = labels != 0, predictions != 0
    else:
        classes = np.union1d(labels, predictions)
        true, predicted = labels[:, None] == classes, predictions[:, None] == classes
    w = np.ones(len(labels)) if weights is None else np.asarray(weights, dtype=np.float64)
    return Counts(classes, w @ (true & predicted), w @ predicted, w @ true, w.sum(axis=-1), fixed=labels.ndim == 2)


def ratio(top: Array, bottom: Array) -> Floats:
    """Return top / bottom, and 0 if bottom is 0."""
    top, bottom = np.asarray(top, dtype=np.float64), np.asarray(bottom, dtype=np.float64)
    return np.divide(top, bottom, out=np.zeros(np.broadcast_shapes(top.shape, bottom.shape)), where=bottom != 0)


def accuracy(counts: Counts) -> Floats:
    return ratio(counts.hit.sum(axis=-1), counts.rows)


def precision(counts: Counts) -> Floats:
    return ratio(counts.hit, counts.predicted)


def recall(counts: Counts) -> Floats:
    return ratio(counts.hit, counts.true)


def f1(counts: Counts) -> Floats:
    return ratio(2 * counts.hit, counts.predicted + counts.true)


def matthews(counts: Counts) -> Floats:
    """Return the multi-class Matthews correlation; 0 if labels or predictions are all one class."""
    squared = counts.rows**2
    together = counts.hit.sum(axis=-1) * counts.rows - (counts.predicted * counts.true).sum(axis=-1)
    alone = (squared - (counts.predicted**2).sum(axis=-1)) * (squared - (counts.true**2).sum(axis=-1))
    return ratio(together, np.sqrt(alone))


def of_class(measure: Callable[[Counts], Floats], counts: Counts, label: object) -> Floats:
    """Return the measure of one class."""
    known = counts.classes.tolist()
    if counts.fixed or len(known) > 2:
        raise UsageError(
            f"average='binary' scores one class of two, but there are {len(known)}: {known[:6]}.",
            "Choose average='macro', 'micro' or 'weighted'.",
        )
    if label in known:
        return measure(counts)[..., known.index(label)]
    if len(known) == 2:
        raise UsageError(f"pos_label={label!r} is not one of the labels {known}.", f"Try pos_label={known[1]!r}.")
    return np.zeros(counts.rows.shape)


def averaged(measure: Callable[[Counts], Floats], counts: Counts, average: str) -> Floats:
    """Return the measure over all classes: unweighted (macro), by size (weighted), or of the summed counts (micro)."""
    if average == "micro":
        hit, predicted, true = (
            part.sum(axis=-1, keepdims=True) for part in (counts.hit, counts.predicted, counts.true)
        )
        return measure(replace(counts, hit=hit, predicted=predicted, true=true))[..., 0]
    each = measure(counts)
    if average == "weighted":
        return ratio((each * counts.true).sum(axis=-1), counts.true.sum(axis=-1))
    if average == "macro":
        # Always over the same classes: a resample without a rare class must not score better for it.
        return np.asarray(each.mean(axis=-1))
    raise UsageError(f"average={average!r} is unknown.", "Choose 'binary', 'macro', 'micro' or 'weighted'.")
