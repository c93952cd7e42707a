"""The model among its baselines, as the verdict reads their record."""

from __future__ import annotations

from typing import Any

from whet.records import Baselines
from whet.runs.verdict.features import ROWS_TO_BLAME, Signs, few_rows

FOUND = 2.0
"""Standard deviations from which on answers have something to do with the labels."""
VISIBLE = 0.05
"""The p-value below which these rows can tell two answers apart."""


def labels_to_blame(s: Signs) -> bool:
    """Whether the rows can show that labels do not follow from the texts.

    A task beyond the model looks the same. Without baselines nothing speaks for that; with them, the rows must be
    many, and none of the answers may have anything to do with the labels.
    """
    if s.seen.beside is None:
        return not few_rows(s)
    return s.left_open <= ROWS_TO_BLAME and not finds_something(s.seen.beside)


def finds_something(found: Baselines) -> bool:
    """Whether any of the answers, the model's or a baseline's, has to do with the labels."""
    every = [found.association, *(float(each["association"]) for each in found.baselines)]
    return max(every) > FOUND or above_commonest(found) is not None


def rivals(found: Baselines) -> list[dict[str, Any]]:
    """The baselines that read the text, best first."""
    return [each for each in found.baselines if each["name"] != "commonest"]


def above_commonest(found: Baselines) -> dict[str, Any] | None:
    """The best baseline that is better than the commonest answer by more than luck."""
    better = (each for each in rivals(found) if each.get("above_commonest") is not None)
    return next((each for each in better if each["above_commonest"] < VISIBLE), None)


def outdone(found: Baselines, higher_is_better: bool) -> tuple[dict[str, Any], bool] | None:
    """The best baseline that the model is not better than, and whether it is visibly better than the model.

    Only visible differences count; the commonest answer has a line of its own.
    """
    for each in rivals(found):
        ahead = (each["value"] > found.value) == higher_is_better and each["value"] != found.value
        if each["p_value"] < VISIBLE and ahead:
            return each, True
    equal = next((each for each in rivals(found) if each["p_value"] >= VISIBLE), None)
    return None if equal is None else (equal, False)


def is_outdone(s: Signs) -> bool:
    """Whether a baseline that reads the text is visibly better than the model."""
    found = outdone(s.seen.beside, s.seen.higher_is_better) if s.seen.beside is not None else None
    return found is not None and found[1]


def better_than(found: Baselines, other: dict[str, Any], higher_is_better: bool) -> bool:
    """Whether the model is visibly better than this baseline."""
    ahead = (found.value > other["value"]) == higher_is_better and found.value != other["value"]
    return bool(ahead and other["p_value"] < VISIBLE)
