"""Formats scores: digits that fit, the class that F1 belongs to, and each task's words for the constant answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeGuard

from whet.errors import shortened_list

OF_ONE_CLASS = frozenset({"f1", "precision", "recall"})
"""In binary tasks these measure the second class only."""
IN_LABEL_UNITS = frozenset({"mse", "mae", "rmse"})
"""Errors in the labels' units; other scores are between -1 and 1, or nearly so."""
SHARES = frozenset({"accuracy", "exact_match", "precision", "recall"})
"""Scores that are written in percent."""
MAX_LABELS = 6


def is_number(value: Any) -> TypeGuard[int | float]:
    """Return whether a recorded value is a number; truth values are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def number(value: float) -> str:
    """Format a label, or an error in its units: four significant digits."""
    if not math.isfinite(value):
        return "not finite"
    if value == 0 or 1e-4 <= abs(value) < 1e4:
        return f"{value:.4g}"
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e12 else f"{value:.3e}"


def is_share(metric: str) -> bool:
    """Return whether this metric is shown in percent."""
    return metric in SHARES


def score_text(metric: str, value: float) -> str:
    """Format a score in a sentence or table: shares in percent, errors in label units, others with three decimals."""
    if not math.isfinite(value):
        return "not finite"
    if metric in IN_LABEL_UNITS:
        return number(value)
    return f"{100 * value:.1f}%" if is_share(metric) else f"{value:.3f}"


def score(metric: str, value: float) -> str:
    """Format a score in the result of a command: four decimals, so that it can be copied."""
    return number(value) if metric in IN_LABEL_UNITS else f"{value:.4f}"


def metric_of(metric: str, task: str, labels: Sequence[str]) -> str:
    """Return the metric with the class that it belongs to: `f1 of 'paraphrase'`."""
    if task == "binary" and metric in OF_ONE_CLASS and len(labels) == 2:
        return f"{metric} of {labels[1]!r}"
    return metric


def answer(label: Any) -> str:
    """Format a constant answer: a class, the labels of a row, or a number."""
    if isinstance(label, float):
        return number(label)
    if isinstance(label, list | tuple):
        return shortened_list(list(map(str, label)), MAX_LABELS) if label else "none of the labels"
    return repr(label)


def constant(task: str) -> str:
    """Return the name of the constant answer: numbers have no majority."""
    return "constant" if task == "regression" else "majority"


def always(task: str, label: Any) -> str:
    """Return `always 'different'`, or `always 3.435, the mean of the training labels`."""
    return f"always {answer(label)}" + (", the mean of the training labels" if task == "regression" else "")


def always_giving(task: str, label: Any) -> str:
    """Return it for a sentence: `always answering 'different'`, `always predicting 3.435`."""
    if label is None or label == "":
        return "always giving the commonest answer"
    return f"always {'predicting' if task == 'regression' else 'answering'} {answer(label)}"
