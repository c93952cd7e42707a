"""The training loop: a generator of events; the caller saves, logs and draws.

The loop can be entered at any step. What is due at a step (evaluate, save, stop) is decided at its top from the
state. So a run that was interrupted between a step and its evaluation continues with that evaluation.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from whet.data.tokens.batches import rank_slice
from whet.engine.network import BatchSource
from whet.engine.optimizer import Rate
from whet.engine.stepper import Stepper
from whet.errors import Diverged
from whet.records import End, Evaluation, Finding, Step
from whet.training.plan import Event, Plan, SavePoint, State, StepDone
from whet.utils.memory import free_cached_memory, is_memory_error, no_room_for_one_row, no_room_together, peak_memory_mb


def train(
    state: State,
    plan: Plan,
    feed: BatchSource,
    stepper: Stepper,
    rate: Rate,
    evaluate: Callable[[State], Evaluation],
    *,
    rank: int = 0,
    world: int = 1,
) -> Iterator[Event]:
    """Train from the state's step to the end of the plan."""
    clock = _Clock(state)
    while True:
        if plan.evaluate(state.step) and state.evaluated != state.step:
            check_finite(stepper, feed)
            yield _judged(evaluate(state), state, plan)
        # Decided by the state: the evaluation may have been made before an interruption.
        best, reason = state.best_step == state.step, _over(state, plan)
        wanted = plan.save(state.step) or (best and plan.save_best) or bool(reason and plan.save_last)
        if state.saved != state.step and state.step > 0 and wanted:
            check_finite(stepper, feed)
            state.seconds = clock.seconds()
            yield SavePoint(state.step, "best" if best else "schedule")
        if reason:
            state.ended, state.seconds = reason, clock.seconds()
            yield End(
                step=state.step,
                reason=reason,
                best_step=state.best_step,
                best_score=state.best_score,
                seconds=state.seconds,
            )
            return
        epoch, index = divmod(state.step, feed.order.steps_per_epoch)
        rows = feed.order.batch(epoch, index)
        yield from step_within_memory(
            state.step,
            stepper,
            partial(stepper, state.step, feed, rows, rank_slice(rows, rank, world), rate(state.step)),
        )
        state.step += 1
        if stepper.hardware.device.type == "cpu":
            check_finite(stepper, feed)  # free if there is no queue to wait for
        if plan.log(state.step):
            check_finite(stepper, feed)
            yield _step_record(state, stepper, feed, rate, clock)
        state.seconds = clock.seconds()
        yield StepDone(state.step)


def check_finite(stepper: Stepper, feed: BatchSource) -> None:
    """Read the device's flag; raise Diverged with the rows of the step if it was not finite."""
    bad = int(stepper.window.first_nonfinite_step)
    if bad < 0:
        return
    epoch, index = divmod(bad, feed.order.steps_per_epoch)
    error = Diverged(
        f"The loss or its gradient stopped being finite at step {bad + 1}; the weights stay as they were before it.",
        "Try a tenth of the learning rate (--lr), a warm-up (--warmup 0.1), and clipping at 1.0 (--clip 1).",
    )
    error.step, error.rows = bad, feed.order.batch(epoch, index).tolist()  # type: ignore[attr-defined]
    raise error


def _judged(record: Evaluation, state: State, plan: Plan) -> Evaluation:
    """Return whether this is the best evaluation so far by the plan's rule."""
    state.evaluated = state.step
    rule = plan.rule
    if rule.score(record) is None:
        return record
    best = rule.replaces(record, _best_so_far(record, state, plan))
    if best:
        state.best_score, state.best_step, state.stale = rule.score(record), state.step, 0
        state.best_loss, state.best_error = record.loss, record.error
    else:
        state.stale += 1
    return dataclasses.replace(record, best=best)


def _best_so_far(record: Evaluation, state: State, plan: Plan) -> Evaluation | None:
    """Return the part of the best evaluation that the rule needs."""
    if state.best_score is None:
        return None
    loss = math.inf if state.best_loss is None else state.best_loss
    return dataclasses.replace(record, metrics={plan.metric: state.best_score}, loss=loss, error=state.best_error)


def _over(state: State, plan: Plan) -> str:
    if plan.patience is not None and state.stale >= plan.patience:
        return "patience"
    return "finished" if state.step >= plan.total_steps else ""


def step_within_memory(step: int, stepper: Stepper, take: Callable[[], None]) -> Iterator[Finding]:
    """Take a step. If memory runs out, halve the micro-batch and repeat the step; the effective batch stays the
    same."""
    while True:
        try:
            take()
            return
        except (torch.OutOfMemoryError, RuntimeError, MemoryError) as error:
            if not is_memory_error(error):
                raise
            if stepper.lockstep:
                raise no_room_together(error, stepper.micro_rows) from None
            if stepper.micro_rows <= 1:
                raise no_room_for_one_row(error) from None
        stepper.zero()
        stepper.micro_rows = (stepper.micro_rows + 1) // 2
        free_cached_memory(stepper.hardware.device)
        yield Finding(
            # Recorded at the current step: resuming before it finds the same again.
            step=step + 1,
            about="memory",
            sentence=f"Out of memory: micro-batches of {stepper.micro_rows} rows from here on, the same rows per step.",
            details={"micro_rows": stepper.micro_rows},
        )


def _step_record(state: State, stepper: Stepper, feed: BatchSource, rate: Rate, clock: _Clock) -> Step:
    window = stepper.window
    # The only place in a step that waits for the device.
    loss, norm = float(window.loss) / max(1, window.steps), float(window.grad_norm)
    record = Step(
        step=state.step,
        epoch=round(state.step / feed.order.steps_per_epoch, 6),
        loss=loss,
        learning_rate=rate(state.step - 1),
        grad_norm=norm,
        seconds=round(clock.seconds(), 3),
        rows_per_second=round(window.rows / max(clock.lap(), 1e-9), 2),
        memory_mb=round(peak_memory_mb(stepper.hardware.device), 1),
        uncompared=window.uncompared,
    )
    window.clear()
    return record


class _Clock:
    """Time spent on this run without interruptions, by a monotonic clock."""

    def __init__(self, state: State) -> None:
        self._before = state.seconds
        self._start = self._lap = time.monotonic()

    def seconds(self) -> float:
        return self._before + time.monotonic() - self._start

    def lap(self) -> float:
        now = time.monotonic()
        lap, self._lap = now - self._lap, now
        return lap


def as_values(state: State, stepper: Stepper) -> dict[str, Any]:
    """Return the plain part of a checkpoint: the state and the sums since the last log."""
    window = stepper.window
    return {
        "state": dataclasses.asdict(state),
        "window": {
            "loss": float(window.loss),
            "grad_norm": float(window.grad_norm),
            "steps": window.steps,
            "rows": window.rows,
            "uncompared": window.uncompared,
        },
        "micro_rows": stepper.micro_rows,
    }


def restore_values(values: dict[str, Any], state: State, stepper: Stepper) -> None:
    """The inverse of `as_values`."""
    for name, value in values["state"].items():
        setattr(state, name, value)
    window = stepper.window
    window.loss.fill_(values["window"]["loss"])
    window.grad_norm.fill_(values["window"]["grad_norm"])
    window.steps, window.rows = values["window"]["steps"], values["window"]["rows"]
    window.uncompared = values["window"].get("uncompared", 0)
    stepper.micro_rows = values["micro_rows"]
