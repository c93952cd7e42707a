from __future__ import annotations

import math

import numpy as np
import pytest

from whet.errors import UsageError
from whet.metrics.conformal import covered, in_set, nonconformity, quantile_for
from whet.metrics.scores import probabilities


def rows(task: str, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Chances and labels of a model that is right more often than not, and not calibrated."""
    if task == "regression":
        labels = rng.normal(0, 2, count)
        return (labels + rng.standard_t(3, count))[:, None], labels
    if task == "multilabel":
        labels = (rng.random((count, 4)) < 0.4).astype(int)
        return probabilities(task, 5 * (labels - 0.5) + rng.normal(0, 2, (count, 4))), labels
    labels = rng.integers(0, 5, count)
    return probabilities("multiclass", 3 * np.eye(5)[labels] + rng.normal(0, 1.5, (count, 5))), labels


@pytest.mark.parametrize("task", ["multiclass", "multilabel", "regression"])
@pytest.mark.parametrize("coverage", [0.8, 0.9])
def test_sets_hold_the_truth_as_often_as_was_asked_over_many_splits(task: str, coverage: float) -> None:
    rng = np.random.default_rng(0)
    found = []
    for _ in range(60):
        chances, labels = rows(task, 1200, rng)
        limit = quantile_for(coverage, nonconformity(task, chances[:400], labels[:400]))
        found.append(covered(task, chances[400:], labels[400:], limit).mean())
    assert np.mean(found) == pytest.approx(coverage, abs=0.01)


def test_the_limit_is_the_row_that_the_theorem_names() -> None:
    strange = np.arange(1, 100) / 100
    assert quantile_for(0.9, strange) == pytest.approx(0.90)  # ceil(100 × 0.9) = the 90th of 99
    assert quantile_for(0.905, strange) == pytest.approx(0.91)
    with pytest.raises(UsageError, match="It takes at least 9 rows"):
        quantile_for(0.9, strange[:8])
    assert math.isclose(quantile_for(0.9, strange[:9]), 0.09)


@pytest.mark.parametrize("coverage", [0, 1, -0.1, math.nan])
def test_a_coverage_that_is_no_share_is_refused(coverage: float) -> None:
    with pytest.raises(UsageError, match="above 0 and below 1"):
        quantile_for(coverage, np.arange(100))


def test_the_set_holds_exactly_the_labels_within_the_limit() -> None:
    chances = np.array([[0.7, 0.2, 0.1], [0.4, 0.35, 0.25]])
    assert in_set(chances, 0.7).tolist() == [[True, False, False], [True, True, False]]
    assert covered("multiclass", chances, np.array([1, 1]), 0.7).tolist() == [False, True]
    assert in_set(chances, 0.1).sum() == 0  # no label fits: the set may be empty


@pytest.mark.parametrize("task", ["multiclass", "multilabel", "regression"])
def test_the_row_at_the_limit_is_inside(task: str) -> None:
    chances, labels = {
        "multiclass": ([[0.75, 0.25], [0.5, 0.5]], [0, 1]),
        "multilabel": ([[0.75, 0.25], [0.5, 0.25]], [[1, 0], [1, 0]]),
        "regression": ([[1.0], [2.5]], [0.75, 2.0]),
    }[task]
    strange = nonconformity(task, chances, labels)
    assert strange.tolist() == [0.25, 0.5]
    assert covered(task, chances, labels, 0.5).tolist() == [True, True]
    assert covered(task, chances, labels, 0.25).tolist() == [True, False]
    if task != "regression":
        assert in_set(chances, 0.25).tolist() == [[True, False], [False, False]]


def test_a_row_of_several_labels_is_as_strange_as_its_least_likely_one() -> None:
    found = nonconformity("multilabel", [[0.9, 0.3], [0.9, 0.3], [0.9, 0.3]], [[1, 1], [1, 0], [0, 0]])
    assert found.tolist() == pytest.approx([0.7, 0.1, 0.0])
