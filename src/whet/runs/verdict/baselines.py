"""The model and its baselines, as the verdict reads their record."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from whet.metrics.scores import TASK_METRICS, higher_is_better
from whet.records import Baselines
from whet.runs.verdict.features import ROWS_TO_BLAME, CurveFeatures, few_rows

FOUND = 2.0
"""Standard deviations from which on predictions are related to the labels."""
VISIBLE = 0.05
"""P-value below which a difference counts as visible."""

IN_SENTENCES = {"frozen": "a linear model on the frozen encoder", "TF-IDF": "a linear model on TF-IDF"}
IN_FULL = {"frozen": "frozen model + linear", "TF-IDF": "TF-IDF + linear", "commonest": "commonest answer"}
"""Names of the baselines in tables: the linear model is logistic regression, or ridge for numbers."""
CONSTANT = "constant prediction"
"""Name of the commonest answer in a regression, which is the mean."""


def largest_record(made: Iterable[Baselines]) -> Baselines:
    """Return the record with the most rows; of equal ones the last, which has the test rows."""
    return max(enumerate(made), key=lambda pair: (pair[1].rows, pair[0]))[1]


def name_in_full(record: Baselines, name: str) -> str:
    """A baseline's name in tables."""
    if name == "commonest" and record.metric in TASK_METRICS["regression"]:
        return CONSTANT
    return IN_FULL.get(name, name)


def rows_in_words(record: Baselines, of: bool = False) -> str:
    """Return `252 test rows`, or `128 held-out rows` with folds."""
    of_all = f" of {record.of_rows:,}" if of and record.of_rows else ""
    return f"{record.rows:,}{of_all} {'held-out' if record.out_of_fold else record.split} rows"


def labels_to_blame(s: CurveFeatures) -> bool:
    """Return whether the rows can show that the labels do not depend on the texts.

    A task that is too hard for the model looks the same. Without baselines this cannot be decided. With them, the
    rows must be many, and no prediction may be related to the labels.
    """
    if s.data.baselines is None:
        return not few_rows(s)
    return s.left_open <= ROWS_TO_BLAME and not finds_something(s.data.baselines)


def finds_something(record: Baselines) -> bool:
    """Return whether the predictions of the model or of a baseline are related to the labels."""
    every = [record.association, *(float(baseline["association"]) for baseline in record.baselines)]
    return max(every) > FOUND or above_commonest(record) is not None


def rivals(record: Baselines) -> list[dict[str, Any]]:
    """Return the baselines that read the text, best first."""
    return [baseline for baseline in record.baselines if baseline["name"] != "commonest"]


def above_commonest(record: Baselines) -> dict[str, Any] | None:
    """Return the best baseline that is significantly better than the commonest answer."""
    better = (baseline for baseline in rivals(record) if baseline.get("above_commonest") is not None)
    return next((baseline for baseline in better if baseline["above_commonest"] < VISIBLE), None)


def baseline_ahead(record: Baselines) -> tuple[dict[str, Any], bool] | None:
    """Return the best baseline that the model does not beat, and whether it is significantly better.

    The commonest answer is reported separately.
    """
    ahead = next((baseline for baseline in rivals(record) if is_visible(baseline) and is_ahead(record, baseline)), None)
    if ahead is not None:
        return ahead, True
    equal = next((baseline for baseline in rivals(record) if not is_visible(baseline)), None)
    return None if equal is None else (equal, False)


def is_visible(other: dict[str, Any]) -> bool:
    """Return whether the model and this baseline differ significantly."""
    return bool(other["p_value"] < VISIBLE)


def is_ahead(record: Baselines, other: dict[str, Any]) -> bool:
    """Return whether this baseline has the better score."""
    return bool(other["value"] != record.value) and (other["value"] > record.value) == higher_is_better(record.metric)
