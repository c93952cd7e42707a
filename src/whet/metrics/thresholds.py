"""Decision thresholds for a goal, and abstention from unsure answers.

A threshold looks better on the rows that it was chosen on. Its expected result is therefore measured across folds: it
is chosen on nine tenths of the rows and measured on the rest, ten times, and the counts are added.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from whet.errors import UsageError
from whet.metrics.intervals import Interval, bootstrap, wilson
from whet.utils.arrays import Array

FEWEST = 10
"""Smallest number of rows that a threshold may select; fewer would be luck."""
FOLDS = 10
_FORMS = 'precision>=0.95, recall>=0.9, f1 or cost=fp:1,fn:10 (in quotes: "precision>=0.95")'


@dataclass(frozen=True)
class Goal:
    """The goal of a threshold."""

    kind: str
    """`precision`, `recall`, `f1` or `cost`."""
    least: float = 0.0
    false_positive: float = 1.0
    false_negative: float = 1.0

    def __str__(self) -> str:
        if self.kind == "cost":
            return f"cost=fp:{self.false_positive:g},fn:{self.false_negative:g}"
        return self.kind if self.kind == "f1" else f"{self.kind}>={self.least:g}"


def parse_goal(text: str) -> Goal:
    """`precision>=0.95`, `recall>=0.9`, `f1`, `cost=fp:1,fn:10`."""
    plain = text.replace(" ", "").lower()
    if plain == "f1":
        return Goal("f1")
    if found := re.fullmatch(r"(precision|recall)>=(0?\.\d+|1(?:\.0*)?|0)", plain):
        least = float(found[2])
        if 0 < least <= 1:
            return Goal(found[1], least)
    if found := re.fullmatch(r"cost=fp:(\d+\.?\d*|\.\d+),fn:(\d+\.?\d*|\.\d+)", plain):
        costs = float(found[1]), float(found[2])
        if min(costs) >= 0 and max(costs) > 0:
            return Goal("cost", false_positive=costs[0], false_negative=costs[1])
    raise UsageError(f"The goal is {text!r}.", f"Write {_FORMS}.")


@dataclass(frozen=True)
class Expected:
    """The expected result of a threshold on rows like these."""

    precision: Interval
    recall: Interval
    f1: Interval
    cost: float
    """Per row, in the units of the goal."""
    chosen: float
    """Share of rows that get the label."""


def choose_threshold(goal: Goal, truth: Any, chances: Any) -> float:
    """Return the threshold on a label's probability that reaches the goal on these rows; it lies between two rows.

    For a minimum precision it is the one with the highest recall, for a minimum recall the one with the highest
    precision.
    """
    right, values = np.asarray(truth, bool), np.asarray(chances, np.float64)
    if not right.any():
        raise UsageError("No row has the label, so no threshold can be chosen for it.")
    # Candidate k selects the k + 1 rows with the highest probabilities; ties go together.
    order = np.argsort(-values, kind="stable")
    values, hits = values[order], np.cumsum(right[order])
    last = np.append(values[1:] != values[:-1], True)
    given, hits, at = (np.arange(len(values)) + 1)[last], hits[last], np.flatnonzero(last)
    precision, recall = hits / given, hits / right.sum()
    if goal.kind == "precision":
        fits = (precision >= goal.least) & (given >= FEWEST)
        if not fits.any():
            able = precision[given >= FEWEST]
            most = f"the highest with at least {FEWEST} rows is {able.max():.3f}" if len(able) else "there are too few"
            raise UsageError(
                f"No threshold reaches {goal} on these {len(values)} rows: {most}.",
                "Ask for less, or train with more validation rows.",
            )
        best = int(np.flatnonzero(fits)[np.argmax(recall[fits])])
    elif goal.kind == "recall":
        fits = recall >= goal.least
        best = int(np.flatnonzero(fits)[np.argmax(precision[fits])])
    elif goal.kind == "f1":
        best = int(np.argmax(2 * hits / (given + right.sum())))
    else:
        cost = goal.false_positive * (given - hits) + goal.false_negative * (right.sum() - hits)
        if goal.false_negative * right.sum() < cost.min():
            return _above(values[0])  # never predicting the label is cheapest
        best = int(np.argmin(cost))
    place = int(at[best])
    below = values[place + 1] if place + 1 < len(values) else 0.0
    return float((values[place] + below) / 2)


def _above(value: float) -> float:
    return float((1 + value) / 2) if value < 1 else math.nextafter(1.0, 2.0)


def expected_of(goal: Goal, truth: Any, chances: Any) -> Expected:
    """Return the result of `choose_threshold`, measured across folds."""
    right, values = np.asarray(truth, bool), np.asarray(chances, np.float64)

    def choose(rows: Array) -> float:
        try:
            return choose_threshold(goal, right[rows], values[rows])
        except UsageError:  # fewer rows may not reach what all of them reach
            return choose_threshold(goal, right, values)

    said = across_folds(len(right), lambda kept, left: values[left] >= choose(kept)).astype(bool)
    hits, given, there = int((said & right).sum()), int(said.sum()), int(right.sum())
    wrong = goal.false_positive * (given - hits) + goal.false_negative * (there - hits)
    return Expected(
        wilson(hits, given) if given else Interval(0.0, 0.0, 1.0, 0),
        wilson(hits, there),
        bootstrap("f1", right.astype(np.int64), said.astype(np.int64)),
        wrong / len(right),
        given / len(right),
    )


def across_folds(rows: int, answer: Callable[[Array, Array], Array]) -> Array:
    """Return `answer(kept, left)` of each row, from the fold in which it was left out."""
    folds = np.random.default_rng(0).permutation(rows) % min(FOLDS, rows)
    found = np.zeros(rows)
    for fold in range(folds.max() + 1):
        left = np.flatnonzero(folds == fold)
        kept = np.flatnonzero(folds != fold)
        found[left] = answer(kept if len(kept) else left, left)
    return found


@dataclass(frozen=True)
class Abstention:
    """The expected result of leaving unsure rows unanswered, measured across folds."""

    error: Interval
    """Share of wrong rows among the answered ones."""
    answered: Interval
    """Share of answered rows."""


def choose_confidence(error: float, right: Any, confidence: Any) -> float:
    """Return the lowest confidence from which on at most this share of answers is wrong.

    One additional wrong answer is counted, so that a few rows without a mistake prove nothing.
    """
    if not 0 < error < 1:
        raise UsageError(f"The error to keep to is {error:g}.", "It must be above 0 and below 1, such as 0.05.")
    sure = np.asarray(confidence, np.float64)
    order = np.argsort(-sure, kind="stable")
    sure, wrong = sure[order], np.cumsum(~np.asarray(right, bool)[order])
    last = np.append(sure[1:] != sure[:-1], True)
    rates = (wrong + 1) / (np.arange(len(sure)) + 2)
    fits = np.flatnonzero(last & (rates <= error))
    if not len(fits):
        raise UsageError(
            f"No confidence keeps the error to {error:g} on these {len(sure)} rows: the lowest that they can prove "
            f"is {rates[last].min():.3f}.",
            "Allow more, or decide on more rows.",
        )
    place = int(fits[-1])
    return float((sure[place] + sure[place + 1]) / 2) if place + 1 < len(sure) else 0.0


def expected_abstention(error: float, right: Any, confidence: Any) -> Abstention:
    """Return the result of `choose_confidence`, measured across folds."""
    good, sure = np.asarray(right, bool), np.asarray(confidence, np.float64)

    def choose(rows: Array) -> float:
        try:
            return choose_confidence(error, good[rows], sure[rows])
        except UsageError:
            return choose_confidence(error, good, sure)

    kept = across_folds(len(good), lambda kept, left: sure[left] >= choose(kept)).astype(bool)
    answered = int(kept.sum())
    wrong = int((kept & ~good).sum())
    return Abstention(wilson(wrong, answered) if answered else Interval(0.0, 0.0, 1.0, 0), wilson(answered, len(good)))
