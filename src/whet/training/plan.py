"""Plans a training: the steps at which it logs, evaluates, saves and stops, and its state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from whet.config import Config
from whet.errors import UsageError, nearest
from whet.records import Record
from whet.training.choice import Rule


def make_plan(config: Config, total: int, metric: str, has_validation: bool) -> Plan:
    """When to log, evaluate, save and stop."""
    from whet.metrics.scores import higher_is_better

    rules = config.evaluate
    evaluations = spread(min(rules.evaluations, total), total)
    if rules.eval_every:
        regular = every(rules.eval_every)
        evaluations = lambda step: regular(step) or step == total  # noqa: E731
    saves = every(config.run.save_every) if config.run.save_every else evaluations
    return Plan(
        total_steps=total,
        log=every(config.run.log_every or max(1, total // 100)),
        evaluate=evaluations if has_validation else lambda step: False,
        save=lambda step: saves(step) or step == total,
        higher_is_better=metric != "loss" and higher_is_better(metric),
        metric=metric,
        patience=rules.patience,
        min_improvement=rules.min_improvement,
        steady=rules.choice == "steady",
    )


def choose_metric(asked: str, task: str) -> str:
    """Return the metric that decides: the requested one, if this task has it."""
    from whet.metrics.scores import MAIN_METRIC, TASK_METRICS

    if asked == "auto":
        return MAIN_METRIC[task]
    known = [*TASK_METRICS[task], "loss"]
    if asked not in known:
        raise UsageError(f"metric is {asked!r}, and a {task} task has no such metric.", nearest(asked, known))
    return asked


@dataclass
class State:
    """The state of a run apart from tensors. Every field is written into checkpoints."""

    step: int = 0
    best_step: int = -1
    best_score: float | None = None
    stale: int = 0
    """Evaluations since the best one."""
    best_loss: float | None = None
    best_error: float | None = None
    evaluated: int = -1
    saved: int = -1
    seconds: float = 0.0
    ended: str = ""


@dataclass(frozen=True)
class SavePoint:
    """Asks the caller to save."""

    step: int
    reason: str


@dataclass(frozen=True)
class StepDone:
    """A step is done; nothing was read from the device."""

    step: int


Event = Record | SavePoint | StepDone


Due = Callable[[int], bool]


@dataclass
class Plan:
    """When to log, evaluate, save and stop."""

    total_steps: int
    log: Due
    evaluate: Due
    save: Due
    higher_is_better: bool = True
    metric: str = ""
    patience: int | None = None
    min_improvement: float = 0.0
    steady: bool = False
    """Whether a better score must exceed its standard error (choice.py)."""
    save_best: bool = True
    save_last: bool = True

    @property
    def rule(self) -> Rule:
        return Rule(self.metric, self.higher_is_better, self.min_improvement, self.steady)


def every(steps: int | None) -> Due:
    """Return the multiples of `steps` up to the end; none for None."""
    return lambda step: bool(steps) and step > 0 and step % steps == 0  # type: ignore[operator]


def spread(count: int, total: int) -> Due:
    """Return `times` steps spread evenly over the run, the last at its end."""
    chosen = {round(total * k / count) for k in range(1, count + 1)} - {0} if count else set()
    return lambda step: step in chosen
