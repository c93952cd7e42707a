"""How scores are told: digits that fit, the class that F1 is of, and the constant answer in the words of each task."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeGuard

from whet.errors import shortened_list

OF_ONE_CLASS = frozenset({"f1", "precision", "recall"})
"""Of two classes these look at the second one alone."""
IN_LABEL_UNITS = frozenset({"mse", "mae", "rmse"})
"""Errors as large as the labels make them; the other scores are between -1 and 1, or nearly so."""
SHARES = frozenset({"accuracy", "exact_match", "precision", "recall"})
"""Scores that are written in percent."""
MAX_LABELS = 6


def is_number(value: Any) -> TypeGuard[int | float]:
    """Whether a recorded value is a number; a truth value is none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def number(value: float) -> str:
    """A label, or an error in its units: four digits that count."""
    if not math.isfinite(value):
        return "not finite"
    if value == 0 or 1e-4 <= abs(value) < 1e4:
        return f"{value:.4g}"
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e12 else f"{value:.3e}"


def is_share(metric: str) -> bool:
    """Whether this metric is written in percent."""
    return metric in SHARES


def score_text(metric: str, value: float) -> str:
    """A score in a sentence or a table: shares in percent, errors in label units, others with three decimals."""
    if not math.isfinite(value):
        return "not finite"
    if metric in IN_LABEL_UNITS:
        return number(value)
    return f"{100 * value:.1f}%" if is_share(metric) else f"{value:.3f}"


def score(metric: str, value: float) -> str:
    """A score in the result of a command: all four decimals, so that it can be copied."""
    return number(value) if metric in IN_LABEL_UNITS else f"{value:.4f}"


def metric_of(metric: str, task: str, labels: Sequence[str]) -> str:
    """The metric, with the class that it is of: `f1 of 'paraphrase'`."""
    if task == "binary" and metric in OF_ONE_CLASS and len(labels) == 2:
        return f"{metric} of {labels[1]!r}"
    return metric


def answer(label: Any) -> str:
    """A constant answer: a class, the labels of a row, or a number."""
    if isinstance(label, float):
        return number(label)
    if isinstance(label, list | tuple):
        return shortened_list(list(map(str, label)), MAX_LABELS) if label else "none of the labels"
    return repr(label)


def constant(task: str) -> str:
    """The name of the constant answer: no class has the majority among numbers."""
    return "constant" if task == "regression" else "majority"


def always(task: str, label: Any) -> str:
    """`always 'different'`, or `always 3.435, the mean of the training labels`."""
    return f"always {answer(label)}" + (", the mean of the training labels" if task == "regression" else "")


def always_giving(task: str, label: Any) -> str:
    """The same in a sentence: `always answering 'different'`, `always predicting 3.435`."""
    if label is None or label == "":
        return "always giving the commonest answer"
    return f"always {'predicting' if task == 'regression' else 'answering'} {answer(label)}"
