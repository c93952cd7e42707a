"""Sets of labels that hold the right one in a chosen share of rows, by split conformal prediction.

The strangeness of a row is how unlikely its true label was, 1 - p; for several labels the least likely of the true
ones; for a number how far off the prediction was. The set of a new row has every label that is no stranger than the
right share of the rows that were kept aside. If new rows come from where those came from, the set holds the truth in at
least the chosen share of them, and in at most 1 / (rows + 1) more. A set may be empty: no label fits the row.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from whet.errors import UsageError
from whet.metrics.arrays import Array

ROUNDING = 1e-9
"""0.9 / (1 - 0.9) is a little more than 9 in binary numbers."""


def nonconformity(task: str, chances: Any, labels: Any) -> Array:
    """One number a row; `chances` are probabilities [rows, labels], or predictions [rows, 1] for regression."""
    values, truth = np.asarray(chances, np.float64), np.asarray(labels)
    if task == "regression":
        return np.asarray(np.abs(values.reshape(-1) - truth))
    if task == "multilabel":
        return np.asarray(1 - np.where(truth > 0, values, 1.0).min(axis=1))
    return np.asarray(1 - values[np.arange(len(truth)), truth.astype(np.int64)])


def quantile_for(coverage: float, scores: Any) -> float:
    """The strangeness up to which a label belongs into the set."""
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
    """Which labels belong into the set of each row, [rows, labels]."""
    return np.asarray(1 - np.asarray(chances, np.float64) <= limit)


def covered(task: str, chances: Any, labels: Any, limit: float) -> Array:
    """For each row whether its set holds the truth."""
    return nonconformity(task, chances, labels) <= limit
