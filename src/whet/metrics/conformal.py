"""Split conformal prediction: sets of labels that contain the right one in a chosen share of rows.

The nonconformity of a row is 1 - p of its true label; with several labels per row, that of the least likely true one;
for a number, the distance to the prediction. The set of a new row contains every label whose nonconformity is at most
the matching quantile of the calibration rows. If new rows are drawn like those, the set contains the truth in at
least the chosen share of rows, and in at most 1 / (rows + 1) more. A set may be empty if no label fits.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from whet.errors import UsageError
from whet.utils.arrays import Array

ROUNDING = 1e-9
"""Tolerance for rounding: 0.9 / (1 - 0.9) is slightly above 9 in floating point."""


def nonconformity(task: str, chances: Any, labels: Any) -> Array:
    """Return one number per row; `chances` are probabilities [rows, labels], or predictions [rows, 1] for
    regression."""
    values, truth = np.asarray(chances, np.float64), np.asarray(labels)
    if task == "regression":
        return np.asarray(np.abs(values.reshape(-1) - truth))
    if task == "multilabel":
        return np.asarray(1 - np.where(truth > 0, values, 1.0).min(axis=1))
    return np.asarray(1 - values[np.arange(len(truth)), truth.astype(np.int64)])


def quantile_for(coverage: float, scores: Any) -> float:
    """Return the quantile of nonconformity up to which a label belongs to the set."""
    if not 0 < coverage < 1:
        raise UsageError(f"The coverage is {coverage:g}.", "It must be above 0 and below 1, such as 0.9.")
    values = np.sort(np.asarray(scores, np.float64))
    place = math.ceil((len(values) + 1) * coverage - ROUNDING)
    if place > len(values):
        needed = math.ceil(coverage / (1 - coverage) - ROUNDING)
        raise UsageError(
            f"{len(values)} rows cannot hold a coverage of {coverage:g}.", f"It takes at least {needed} rows."
        )
    return float(values[place - 1])


def in_set(chances: Any, limit: float) -> Array:
    """Return which labels are in the set of each row, [rows, labels]."""
    return np.asarray(1 - np.asarray(chances, np.float64) <= limit)


def covered(task: str, chances: Any, labels: Any, limit: float) -> Array:
    """Return for each row whether its set contains the truth."""
    return nonconformity(task, chances, labels) <= limit
