"""What is due at which step, as the settings ask for it."""

from __future__ import annotations

from typing import Any

import pytest

from whet.config import make_config
from whet.errors import UsageError
from whet.training.plan import Plan, State, choose_metric, make_plan


def plan(total: int = 10, metric: str = "accuracy", has_validation: bool = True, **settings: Any) -> Plan:
    return make_plan(make_config({"model": "minilm", **settings}), total, metric, has_validation)


def due(rule: Any, total: int = 10) -> list[int]:
    return [step for step in range(total + 1) if rule(step)]


@pytest.mark.parametrize(
    ("settings", "evaluations"),
    [
        ({"evaluations": 2}, [5, 10]),
        ({"evaluations": 50}, list(range(1, 11))),
        ({"eval_every": 4}, [4, 8, 10]),
        ({"eval_every": 5}, [5, 10]),
    ],
)
def test_evaluations_are_as_asked_for_and_at_the_end(settings: dict[str, Any], evaluations: list[int]) -> None:
    found = plan(**settings)
    assert due(found.evaluate) == due(found.save) == evaluations
    assert due(plan(has_validation=False, **settings).evaluate) == []


def test_saves_have_steps_of_their_own_and_the_last() -> None:
    assert due(plan(save_every=3).save) == [3, 6, 9, 10]


@pytest.mark.parametrize(("total", "asked", "first"), [(10, None, 1), (250, None, 2), (250, 7, 7)])
def test_about_a_hundred_lines_are_logged_or_as_many_as_asked_for(total: int, asked: int | None, first: int) -> None:
    settings = {} if asked is None else {"log_every": asked}
    assert due(plan(total, **settings).log, total) == list(range(first, total + 1, first))


@pytest.mark.parametrize(("metric", "higher"), [("accuracy", True), ("loss", False), ("mae", False), ("f1", True)])
def test_less_is_better_for_errors(metric: str, higher: bool) -> None:
    assert plan(metric=metric).rule.higher_is_better is higher


def test_the_metric_is_the_tasks_own_or_the_one_asked_for() -> None:
    assert choose_metric("auto", "regression") in ("pearson", "spearman")
    assert choose_metric("loss", "binary") == "loss"
    with pytest.raises(UsageError, match="'spearman', and a binary task"):
        choose_metric("spearman", "binary")


def test_before_its_first_step_a_run_has_nothing() -> None:
    state = State()
    assert (state.step, state.stale, state.seconds, state.ended) == (0, 0, 0.0, "")
    assert (state.best_step, state.evaluated, state.saved) == (-1, -1, -1)
    assert state.best_score is state.best_loss is state.best_error is None
