from __future__ import annotations

import numpy as np
import pytest

from whet.errors import UsageError
from whet.metrics.thresholds import (
    Goal,
    across_folds,
    choose_confidence,
    choose_threshold,
    expected_abstention,
    expected_of,
    parse_goal,
)

RNG = np.random.default_rng(3)
TRUTH = RNG.random(400) < 0.3
CHANCES = np.clip(np.where(TRUTH, 0.65, 0.35) + RNG.normal(0, 0.2, 400), 0.001, 0.999).round(3)


def rates(threshold: float) -> tuple[float, float, int]:
    said = threshold <= CHANCES
    return (TRUTH & said).sum() / said.sum(), (TRUTH & said).sum() / TRUTH.sum(), int(said.sum())


@pytest.mark.parametrize(
    ("text", "goal"),
    [
        ("precision>=0.95", Goal("precision", 0.95)),
        (" Recall >= .9 ", Goal("recall", 0.9)),
        ("f1", Goal("f1")),
        ("cost=fp:1,fn:10", Goal("cost", false_positive=1, false_negative=10)),
        ("precision>=1", Goal("precision", 1.0)),
    ],
)
def test_goals_are_read_and_written(text: str, goal: Goal) -> None:
    assert parse_goal(text) == goal
    assert parse_goal(str(goal)) == goal


@pytest.mark.parametrize(
    "text", ["", "precision", "precision>=1.5", "precision>=0", "cost=fp:0,fn:0", "cost=fp:1", "auc"]
)
def test_other_goals_are_refused_with_the_forms_there_are(text: str) -> None:
    with pytest.raises(UsageError, match=r"precision>=0\.95"):
        parse_goal(text)


def test_a_least_precision_is_met_with_the_most_recall() -> None:
    threshold = choose_threshold(parse_goal("precision>=0.8"), TRUTH, CHANCES)
    precision, recall, given = rates(threshold)
    assert precision >= 0.8
    assert given >= 10
    others = [rates(value) for value in np.unique(CHANCES) if (value <= CHANCES).sum() >= 10]
    assert recall == max(other[1] for other in others if other[0] >= 0.8)


def test_a_least_recall_is_met_with_the_most_precision() -> None:
    precision, recall, _ = rates(choose_threshold(parse_goal("recall>=0.9"), TRUTH, CHANCES))
    assert recall >= 0.9
    assert precision == max(other[0] for other in map(rates, np.unique(CHANCES)) if other[1] >= 0.9)


def test_the_best_f1_is_found() -> None:
    def f1(threshold: float) -> float:
        precision, recall, _ = rates(threshold)
        return 2 * precision * recall / (precision + recall) if precision + recall else 0.0

    assert f1(choose_threshold(Goal("f1"), TRUTH, CHANCES)) == pytest.approx(max(map(f1, np.unique(CHANCES))))


@pytest.mark.parametrize("costs", [(1, 10), (10, 1), (1, 1), (1, 0), (0, 1)])
def test_the_lowest_cost_is_found(costs: tuple[float, float]) -> None:
    goal = Goal("cost", false_positive=costs[0], false_negative=costs[1])

    def cost(threshold: float) -> float:
        said = threshold <= CHANCES
        return costs[0] * (said & ~TRUTH).sum() + costs[1] * (~said & TRUTH).sum()

    threshold = choose_threshold(goal, TRUTH, CHANCES)
    assert cost(threshold) == min(cost(value) for value in [*np.unique(CHANCES), 2.0])


def test_a_threshold_lies_between_two_rows_and_ties_go_together() -> None:
    assert choose_threshold(Goal("f1"), [0, 0, 1, 1], [0.1, 0.2, 0.8, 0.9]) == pytest.approx(0.5)
    assert choose_threshold(Goal("f1"), [0, 1, 1, 1], [0.5, 0.5, 0.5, 0.5]) == pytest.approx(0.25)


def test_a_goal_that_no_row_supports_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"No threshold reaches precision>=0.9 .*highest with at least 10 rows is 0.500"
    ):
        choose_threshold(parse_goal("precision>=0.9"), [0, 1] * 10, [0.5] * 20)
    with pytest.raises(UsageError, match="there are too few"):
        choose_threshold(parse_goal("precision>=0.9"), [0, 1], [0.1, 0.9])
    with pytest.raises(UsageError, match="No row has the label"):
        choose_threshold(Goal("f1"), [0, 0], [0.1, 0.9])


def test_what_is_expected_is_measured_on_rows_left_out() -> None:
    """Chances that say nothing: chosen on all rows a threshold looks better than it is."""
    rng = np.random.default_rng(2)
    truth, chances = rng.random(300) < 0.5, rng.random(300)
    goal = parse_goal("precision>=0.6")
    said = chances >= choose_threshold(goal, truth, chances)
    assert (truth & said).sum() / said.sum() >= 0.6
    expected = expected_of(goal, truth, chances)
    assert expected.precision.value < 0.6
    assert expected.precision.low < 0.5 < expected.precision.high


def test_every_row_is_left_out_once() -> None:
    seen: list[int] = []

    def answer(kept: np.ndarray, left: np.ndarray) -> np.ndarray:
        assert not set(kept) & set(left)
        assert len(kept) + len(left) == 57
        seen.extend(left.tolist())
        return left

    assert across_folds(57, answer).tolist() == list(range(57))
    assert sorted(seen) == list(range(57))


def test_an_error_is_kept_to_by_leaving_the_unsure_rows() -> None:
    rng = np.random.default_rng(1)
    confidence = rng.uniform(0.5, 1, 1000)
    right = rng.random(1000) < confidence
    cut = choose_confidence(0.1, right, confidence)
    kept = confidence >= cut
    assert (~right[kept]).mean() <= 0.1
    assert kept.mean() > 0.25  # error 0.1 is that of rows surer than 0.8 on average
    left = expected_abstention(0.1, right, confidence)
    assert left.error.low < 0.1 < left.error.high
    assert left.answered.value == pytest.approx(kept.mean(), abs=0.05)


def test_rows_that_prove_nothing_are_no_ground_to_answer() -> None:
    with pytest.raises(UsageError, match=r"the lowest that they can prove is 0\.200"):
        choose_confidence(0.05, [True] * 4 + [False], [0.9, 0.9, 0.8, 0.8, 0.5])
    with pytest.raises(UsageError, match="above 0 and below 1"):
        choose_confidence(5, [True], [0.9])


@pytest.mark.parametrize(("rows", "reached"), [(10, True), (9, False)])
def test_a_precision_counts_from_ten_rows_on(rows: int, reached: bool) -> None:
    truth = np.arange(40) < rows
    chances = np.where(truth, 0.9, 0.1)
    if reached:
        assert choose_threshold(parse_goal("precision>=0.95"), truth, chances) == pytest.approx(0.5)
    else:
        with pytest.raises(UsageError, match="the highest with at least 10 rows is 0\\.225"):
            choose_threshold(parse_goal("precision>=0.95"), truth, chances)
