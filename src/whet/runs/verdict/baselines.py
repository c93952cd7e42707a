"""The model among its baselines, as the verdict reads their record."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from whet.metrics.scores import higher_is_better
from whet.records import Baselines
from whet.runs.verdict.features import ROWS_TO_BLAME, CurveFeatures, few_rows

FOUND = 2.0
"""Standard deviations from which on answers have something to do with the labels."""
VISIBLE = 0.05
"""The p-value below which these rows can tell two answers apart."""

IN_SENTENCES = {"frozen": "a linear model on the frozen encoder", "TF-IDF": "a linear model on TF-IDF"}
IN_FULL = {"frozen": "frozen model + linear", "TF-IDF": "TF-IDF + linear", "commonest": "commonest answer"}
"""The baselines' names in tables: logistic regression, or ridge for numbers, is the linear model."""


def largest_record(made: Iterable[Baselines]) -> Baselines:
    """The record of most rows: those say most; of equals the last one, which has the test rows."""
    return max(enumerate(made), key=lambda pair: (pair[1].rows, pair[0]))[1]


def rows_in_words(found: Baselines, of: bool = False) -> str:
    """`252 test rows`, or `128 held-out rows` where folds held them out."""
    of_all = f" of {found.of_rows:,}" if of and found.of_rows else ""
    return f"{found.rows:,}{of_all} {'held-out' if found.out_of_fold else found.split} rows"


def labels_to_blame(s: CurveFeatures) -> bool:
    """Whether the rows can show that labels do not follow from the texts.

    A task beyond the model looks the same. Without baselines nothing speaks for that; with them, the rows must be
    many, and none of the answers may have anything to do with the labels.
    """
    if s.data.baselines is None:
        return not few_rows(s)
    return s.left_open <= ROWS_TO_BLAME and not finds_something(s.data.baselines)


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


def baseline_ahead(found: Baselines) -> tuple[dict[str, Any], bool] | None:
    """The best baseline that the model is not better than, and whether it is visibly better than the model.

    The commonest answer has a line of its own.
    """
    ahead = next((each for each in rivals(found) if is_visible(each) and is_ahead(found, each)), None)
    if ahead is not None:
        return ahead, True
    equal = next((each for each in rivals(found) if not is_visible(each)), None)
    return None if equal is None else (equal, False)


def is_visible(other: dict[str, Any]) -> bool:
    """Whether these rows can tell the model and this baseline apart."""
    return bool(other["p_value"] < VISIBLE)


def is_ahead(found: Baselines, other: dict[str, Any]) -> bool:
    """Whether this baseline has the better score."""
    return bool(other["value"] != found.value) and (other["value"] > found.value) == higher_is_better(found.metric)
