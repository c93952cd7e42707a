"""The loop's rules: what counts as better, when patience ends, what is due, what a checkpoint brings back."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
import torch

from tests.engine.test_stepper import make_stepper
from whet.data.tokens.batches import BatchOrder
from whet.errors import Diverged, EnvironmentFault
from whet.records import Evaluation
from whet.training.loop import (
    _Clock,
    _judged,
    _over,
    _step_record,
    as_values,
    check_finite,
    restore_values,
    step_within_memory,
)
from whet.training.plan import Plan, State, every, spread


def never(step: int) -> bool:
    return False


def judge(scores: list[float], **rules: Any) -> tuple[list[bool], State]:
    """Evaluations with these scores, one a step; which of them were the best so far, and the state after them."""
    state, best = State(), []
    plan = Plan(total_steps=100, log=never, evaluate=never, save=never, **{"metric": "accuracy", **rules})
    for state.step, score in enumerate(scores, start=1):
        loss = score if plan.metric == "loss" else 0.5
        scored = {"loss": loss, "metrics": {"accuracy": score}, "rows": 8}
        record = Evaluation(step=state.step, epoch=0, split="validation", **scored)
        best.append(_judged(record, state, plan).best)
    return best, state


def test_of_equal_scores_the_first_is_the_best() -> None:
    best, state = judge([0.5, 0.7, 0.7, 0.6])
    assert best == [True, True, False, False]
    assert (state.best_step, state.best_score, state.stale) == (2, 0.7, 2)


def test_where_less_is_better_the_smallest_is_the_best() -> None:
    best, state = judge([0.5, 0.7, 0.4], metric="loss", higher_is_better=False)
    assert best == [True, False, True]
    assert (state.best_step, state.stale) == (3, 0)


@pytest.mark.parametrize("min_improvement, best", [(0.0, 3), (0.125, 3), (0.25, 1)])
def test_an_improvement_counts_above_its_least(min_improvement: float, best: int) -> None:
    assert judge([0.5, 0.625, 0.75], min_improvement=min_improvement)[1].best_step == best


@pytest.mark.parametrize("stale, reason", [(1, ""), (2, "patience"), (3, "patience")])
def test_patience_is_the_number_of_evaluations_without_gain(stale: int, reason: str) -> None:
    plan = Plan(total_steps=9, log=never, evaluate=never, save=never, patience=2)
    assert _over(State(step=5, stale=stale), plan) == reason


@pytest.mark.parametrize("step, reason", [(8, ""), (9, "finished"), (10, "finished")])
def test_without_patience_the_plan_ends_at_its_last_step(step: int, reason: str) -> None:
    plan = Plan(total_steps=9, log=never, evaluate=never, save=never)
    assert _over(State(step=step, stale=50), plan) == reason


def due(rule: Any, total: int = 10) -> list[int]:
    return [step for step in range(total + 1) if rule(step)]


def test_what_is_due_every_so_often_is_never_due_at_the_beginning() -> None:
    assert due(every(4)) == [4, 8]
    assert due(every(None)) == []


def test_what_is_spread_ends_with_the_plan() -> None:
    assert due(spread(4, 10)) == [2, 5, 8, 10]
    assert due(spread(0, 10)) == []
    assert due(spread(30, 10)) == list(range(1, 11))


def test_a_checkpoint_brings_back_the_sums_since_the_last_log() -> None:
    stepper, feed = make_stepper(micro_rows=3)
    stepper(0, feed, np.arange(8), np.arange(8), 1e-2)
    stepper.window.uncompared = 2
    values = as_values(State(step=1, best_step=1, best_score=0.5, stale=3, seconds=2.5), stepper)
    assert values["window"]["loss"] > 0
    assert values["window"]["grad_norm"] > 0
    fresh, state = make_stepper()[0], State()
    restore_values(values, state, fresh)
    assert as_values(state, fresh) == values


def test_a_step_record_is_about_the_steps_since_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    now = itertools.count(100, 4)
    monkeypatch.setattr("whet.training.loop.time.monotonic", lambda: next(now))
    stepper, feed = make_stepper()
    clock, state = _Clock(State()), State()
    for state.step, loss in ((2, 3.0), (4, 5.0)):
        for _ in range(2):
            stepper.add_step(state.step, torch.tensor(loss), torch.tensor(1.0))
            stepper.count(feed, np.arange(8))
        record = _step_record(state, stepper, feed, lambda step: step / 10, clock)
        assert (record.loss, record.epoch, record.learning_rate) == (loss, state.step, (state.step - 1) / 10)
        assert record.rows_per_second == 16 / 8 if state.step > 2 else 16 / 4  # two readings of the clock apart
        assert record.seconds == (4 if state.step == 2 else 12)


def test_a_run_that_diverges_names_the_step_and_its_rows() -> None:
    stepper, feed = make_stepper()
    feed = dataclasses.replace(feed, order=BatchOrder(rows=8, batch_size=3, seed=0))
    check_finite(stepper, feed)
    stepper.window.first_nonfinite_step.fill_(4)
    with pytest.raises(Diverged, match="step 5") as raised:
        check_finite(stepper, feed)
    assert (raised.value.step, raised.value.rows) == (4, feed.order.batch(1, 1).tolist())  # type: ignore[attr-defined]


def test_out_of_memory_the_same_step_is_taken_in_smaller_parts() -> None:
    stepper, _ = make_stepper(micro_rows=5)
    taken: list[int] = []

    def take(room: int) -> None:
        taken.append(stepper.micro_rows)
        if stepper.micro_rows > room:
            raise torch.OutOfMemoryError("CUDA out of memory")

    found = list(step_within_memory(6, stepper, lambda: take(2)))
    assert taken == [5, 3, 2]
    assert [(each.step, each.details) for each in found] == [(7, {"micro_rows": 3}), (7, {"micro_rows": 2})]
    assert list(step_within_memory(7, stepper, lambda: take(2))) == []
    with pytest.raises(EnvironmentFault, match="One row"):
        list(step_within_memory(8, stepper, lambda: take(0)))
    assert taken[-2:] == [2, 1]


def test_other_errors_than_of_memory_are_not_tried_again() -> None:
    stepper, _ = make_stepper(micro_rows=5)
    with pytest.raises(ZeroDivisionError):
        list(step_within_memory(6, stepper, lambda: 1 // 0))
    with pytest.raises(RuntimeError, match="shapes"):
        list(step_within_memory(6, stepper, lambda: (_ for _ in ()).throw(RuntimeError("shapes"))))
    assert stepper.micro_rows == 5
