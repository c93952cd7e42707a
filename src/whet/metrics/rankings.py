"""Ranking metrics: how well scores order the rows of class 1 before the others.

As in `counts`, rows may have weights with leading axes [..., n], and so have the results. Rows are sorted once for
all resamples.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from whet.metrics.counts import Floats, ratio
from whet.utils.arrays import Array

Ranking = Callable[[Floats, Floats], Floats]
"""Weights of class 1 and of the rest [..., groups], grouped by equal score, best score first."""


def roc_auc(ones: Floats, rest: Floats) -> Floats:
    """Return the share of pairs in the right order, ties counting half; nan if a class is missing."""
    below = rest.sum(axis=-1, keepdims=True) - np.cumsum(rest, axis=-1)
    pairs = ones.sum(axis=-1) * rest.sum(axis=-1)
    return np.where(pairs > 0, ratio((ones * (below + rest / 2)).sum(axis=-1), pairs), np.nan)


def average_precision(ones: Floats, rest: Floats) -> Floats:
    """Return the mean precision at the rows of class 1; nan if there are none."""
    hits, total = np.cumsum(ones, axis=-1), ones.sum(axis=-1)
    precision = ratio(hits, hits + np.cumsum(rest, axis=-1))
    return np.where(total > 0, ratio((ones * precision).sum(axis=-1), total), np.nan)


def ranked(measure: Ranking, labels: Array, scores: Array, weights: Array | None = None) -> Floats:
    """Return the measure of one score per row, or its mean over the columns on which it is defined."""
    w = np.ones(len(labels)) if weights is None else np.asarray(weights, dtype=np.float64)
    if labels.ndim == 1:
        return measure(*_grouped(labels == 1, scores, w))
    each = np.stack([measure(*_grouped(labels[:, k] == 1, scores[:, k], w)) for k in range(labels.shape[1])])
    defined = ~np.isnan(each)
    mean = ratio(np.where(defined, each, 0.0).sum(axis=0), defined.sum(axis=0))
    return np.where(defined.any(axis=0), mean, np.nan)


def _grouped(positive: Array, scores: Array, weights: Floats) -> tuple[Floats, Floats]:
    order = np.argsort(-scores, kind="stable")
    starts = np.flatnonzero(np.append(True, scores[order][1:] != scores[order][:-1]))
    positive, weights = positive[order], weights[..., order]
    ones = np.add.reduceat(weights * positive, starts, axis=-1)
    return ones, np.add.reduceat(weights * ~positive, starts, axis=-1)
