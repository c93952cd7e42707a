"""Measures the calibration of probabilities, and fits a temperature that corrects it.

With one label per row, the probability is that of the predicted class. With several labels per row, each column of
each row is a yes-or-no answer of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from whet.errors import UsageError
from whet.metrics.arrays import check_finite
from whet.metrics.scores import checked, predicted, probabilities
from whet.utils.arrays import Array

COLDEST, HOTTEST = 0.05, 20.0
"""Range of temperatures. Logits that are always right would get 0, logits without information infinity."""
PRECISION = 1e-6
"""Precision of the logarithm of a temperature."""
BOUND = 1e-3
"""A temperature this close to a bound may lie beyond it."""

MIN_ROWS, MIN_OF_A_KIND = 50, 5
"""Smallest number of rows, and of right and of wrong answers among them, for a fitted temperature to be used."""


@dataclass(frozen=True)
class Bin:
    """The answers with a confidence in (low, high]: their mean confidence and accuracy."""

    low: float
    high: float
    n: int
    confidence: float
    accuracy: float


def reliability(task: str, logits: Any, labels: Any, *, bins: int = 10, temperature: float = 1.0) -> tuple[Bin, ...]:
    """Return bins of equal width from 0 to 1, without empty ones."""
    if bins < 1:
        raise UsageError(f"bins={bins}: at least 1 is needed.")
    confidence, right = _answers(task, logits, labels, temperature)
    place = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
    size = np.bincount(place, minlength=bins)
    sure, hits = (np.bincount(place, weights=part, minlength=bins) for part in (confidence, right))
    return tuple(
        Bin(k / bins, (k + 1) / bins, int(size[k]), float(sure[k] / size[k]), float(hits[k] / size[k]))
        for k in np.flatnonzero(size).tolist()
    )


def expected_calibration_error(
    task: str, logits: Any, labels: Any, *, bins: int = 10, temperature: float = 1.0
) -> float:
    """Return the mean gap between confidence and accuracy over the bins, weighted by size."""
    found = reliability(task, logits, labels, bins=bins, temperature=temperature)
    total = sum(each.n for each in found)
    return sum(each.n * abs(each.confidence - each.accuracy) for each in found) / total


def negative_log_likelihood(task: str, logits: Any, labels: Any, *, temperature: float = 1.0) -> float:
    """Return the evaluation loss of these logits divided by the temperature."""
    outputs, truth = _checked(task, logits, labels, temperature)
    if task == "multilabel":
        # log(1 + exp(x)) - x·y by way of the absolute value, so that exp never overflows.
        losses = np.maximum(outputs, 0) - outputs * truth + np.log1p(np.exp(-np.abs(outputs)))
        return float(losses.mean())
    top = outputs.max(axis=1)
    total = top + np.log(np.exp(outputs - top[:, None]).sum(axis=1))
    return float((total - outputs[np.arange(len(truth)), truth]).mean())


def fit_temperature(task: str, logits: Any, labels: Any) -> float:
    """Return the temperature between 0.05 and 20 that minimises the negative log likelihood.

    Dividing logits by it changes no predicted label, only the probabilities. Above 1 the model was overconfident. Fit
    it on rows that the model was not trained on.
    """
    outputs, truth = _checked(task, logits, labels, 1.0)
    right = truth
    if task != "multilabel":  # only differences within a row matter
        outputs, right = outputs - outputs.max(axis=1, keepdims=True), np.eye(outputs.shape[1])[truth]

    def too_sure(log_temperature: float) -> float:
        """The slope of the loss in 1/T. It only rises, because the loss is convex in 1/T."""
        surplus = probabilities(task, outputs / math.exp(log_temperature)) - right
        return float((surplus * outputs).sum())

    if too_sure(0.0) == 0:
        return 1.0  # all logits are equal, for example: no temperature is better than another
    # Bisection in log T, where 0.5 and 2 are equally far from 1. Importing scipy's optimizers would take longer.
    cold, hot = math.log(COLDEST), math.log(HOTTEST)
    while hot - cold > PRECISION:
        middle = (cold + hot) / 2
        cold, hot = (middle, hot) if too_sure(middle) > 0 else (cold, middle)
    return math.exp((cold + hot) / 2)


def usable_temperature(task: str, logits: Any, labels: Any) -> tuple[float, str]:
    """Return the temperature for new rows; 1 and the reason if these rows cannot determine it.

    A few rows without a mistake would give probabilities near 1.
    """
    if len(labels) < MIN_ROWS:
        return 1.0, f"{len(labels)} rows are too few, {MIN_ROWS} are needed"
    _, right = _answers(task, logits, labels, 1.0)
    for kind, count in (("wrong", int((right == 0).sum())), ("right", int(right.sum()))):
        if count < MIN_OF_A_KIND:
            return 1.0, f"{count} {kind} answers are too few, {MIN_OF_A_KIND} are needed"
    found = fit_temperature(task, logits, labels)
    if not COLDEST * (1 + BOUND) < found < HOTTEST * (1 - BOUND):
        return 1.0, f"the search for a temperature ended at its bound, {divisor_in_words(found)}"
    return found, ""


def divisor_in_words(temperature: float) -> str:
    """Format a temperature; at a bound, say that it may lie beyond."""
    if temperature > HOTTEST * (1 - BOUND):
        return f"{HOTTEST:g} or more"
    if temperature < COLDEST * (1 + BOUND):
        return f"{COLDEST:g} or less"
    return f"{temperature:.2f}"


def _answers(task: str, logits: Any, labels: Any, temperature: float) -> tuple[Array, Array]:
    """Return for each answer its confidence, and whether it is right."""
    outputs, truth = _checked(task, logits, labels, temperature)
    chances, said = probabilities(task, outputs), predicted(task, outputs)
    sure = np.maximum(chances, 1 - chances).ravel() if task == "multilabel" else chances.max(axis=1)
    return sure, (said == truth).astype(np.float64).ravel()


def _checked(task: str, logits: Any, labels: Any, temperature: float) -> tuple[Array, Array]:
    if task == "regression":
        raise UsageError("A regression gives no probabilities: there is nothing to calibrate.")
    if not temperature > 0:
        raise UsageError(f"temperature={temperature}: a number above 0 is expected.")
    outputs, truth = checked(task, logits, labels)
    check_finite(outputs, "logits")
    return outputs / temperature, truth
