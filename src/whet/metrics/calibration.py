"""Whether a probability of 0.8 is right eight times in ten, and the one number that mends it when it is not.

With one label a row, the probability in question is that of the predicted class. With several, each column of
each row is a yes-or-no answer of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from whet.errors import UsageError
from whet.metrics.arrays import Array, check_finite
from whet.metrics.scores import checked, predicted, probabilities

COLDEST, HOTTEST = 0.05, 20.0
"""Temperatures looked at. Logits that are never wrong ask for 0, logits that know nothing for infinity."""
PRECISION = 1e-6
"""How closely the logarithm of a temperature is found."""
BOUND = 1e-3
"""A temperature that is so near to the coldest or hottest one may lie beyond it."""

MIN_ROWS, MIN_OF_A_KIND = 50, 5
"""Rows, and right and wrong answers among them, that it takes to fit a temperature that is used."""


@dataclass(frozen=True)
class Bin:
    """The answers whose confidence lies in (low, high]: mean confidence, and the share that is right."""

    low: float
    high: float
    n: int
    confidence: float
    accuracy: float


def reliability(task: str, logits: Any, labels: Any, *, bins: int = 10, temperature: float = 1.0) -> tuple[Bin, ...]:
    """Bins of equal width from 0 to 1; those that hold no answer are left out."""
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
    """The mean gap between confidence and accuracy, over the bins, by their size."""
    found = reliability(task, logits, labels, bins=bins, temperature=temperature)
    total = sum(each.n for each in found)
    return sum(each.n * abs(each.confidence - each.accuracy) for each in found) / total


def negative_log_likelihood(task: str, logits: Any, labels: Any, *, temperature: float = 1.0) -> float:
    """The evaluation loss of these logits divided by the temperature."""
    outputs, truth = _checked(task, logits, labels, temperature)
    if task == "multilabel":
        # log(1 + exp(x)) - x·y, by way of the absolute value: exp never overflows.
        losses = np.maximum(outputs, 0) - outputs * truth + np.log1p(np.exp(-np.abs(outputs)))
        return float(losses.mean())
    top = outputs.max(axis=1)
    total = top + np.log(np.exp(outputs - top[:, None]).sum(axis=1))
    return float((total - outputs[np.arange(len(truth)), truth]).mean())


def fit_temperature(task: str, logits: Any, labels: Any) -> float:
    """The temperature between 0.05 and 20 that minimises the negative log likelihood.

    Dividing logits by it changes no predicted label, only how sure the model says it is. Above 1 the model
    was overconfident. Fit it on rows that the model was not trained on.
    """
    outputs, truth = _checked(task, logits, labels, 1.0)
    right = truth
    if task != "multilabel":  # only how far logits of a row are apart counts
        outputs, right = outputs - outputs.max(axis=1, keepdims=True), np.eye(outputs.shape[1])[truth]

    def too_sure(log_temperature: float) -> float:
        """The slope of the loss by 1/T, which only rises, since the loss is convex in it."""
        surplus = probabilities(task, outputs / math.exp(log_temperature)) - right
        return float((surplus * outputs).sum())

    if too_sure(0.0) == 0:
        return 1.0  # as when all logits are equal: no temperature is better than another
    # By halves, in log T, where 0.5 and 2 are equally far from 1: done before scipy's optimizers were imported.
    cold, hot = math.log(COLDEST), math.log(HOTTEST)
    while hot - cold > PRECISION:
        middle = (cold + hot) / 2
        cold, hot = (middle, hot) if too_sure(middle) > 0 else (cold, middle)
    return math.exp((cold + hot) / 2)


def usable_temperature(task: str, logits: Any, labels: Any) -> tuple[float, str]:
    """The temperature for probabilities of new rows; 1 where these rows cannot tell it, and why.

    A few rows without a mistake would ask for certainty.
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
    """A temperature for people: where the search ended at its bound, the bound says less than it seems to."""
    if temperature > HOTTEST * (1 - BOUND):
        return f"{HOTTEST:g} or more"
    if temperature < COLDEST * (1 + BOUND):
        return f"{COLDEST:g} or less"
    return f"{temperature:.2f}"


def _answers(task: str, logits: Any, labels: Any, temperature: float) -> tuple[Array, Array]:
    """For each answer: how sure it was, and whether it is right."""
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
