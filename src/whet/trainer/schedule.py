"""A torch schedule driven by the engine's loop: the rate of a step, kept and restored without pickle."""

from __future__ import annotations

import json
from typing import Any

import torch


class Schedule:
    """Any learning rate schedule; one of plateaus moves with evaluations and not with steps."""

    def __init__(self, scheduler: Any, optimizer: torch.optim.Optimizer, total: int) -> None:
        self.scheduler, self.optimizer, self.total = scheduler, optimizer, total
        self.of_plateaus = isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
        self._known: tuple[int, float] = (-1, 0.0)
        # The engine may update the weights itself; torch would warn that the schedule went first.
        optimizer._opt_called = True  # type: ignore[attr-defined]
        if len({group["lr"] for group in optimizer.param_groups}) > 1:
            # The engine sets one rate for all groups; with several, each gets its own back just before it is used.
            optimizer.register_step_pre_hook(self._own_rates)

    def rate(self, step: int) -> float:
        """The rate of a step; the same answer while the schedule moves on after it."""
        if self._known[0] != step:
            self._rates = [float(group["lr"]) for group in self.optimizer.param_groups]
            self._known = (step, self._rates[0])
        return self._known[1]

    def step(self) -> None:
        if not self.of_plateaus:
            self._own_rates()  # some schedules compute the next rate from the group's present one
            self.scheduler.step()

    def after_evaluation(self, score: float) -> None:
        if self.of_plateaus:
            self.scheduler.step(score)

    def state(self) -> dict[str, Any] | None:
        """As JSON; None for a schedule that holds something else, which is wound forward instead."""
        try:
            found: dict[str, Any] = json.loads(json.dumps(self.scheduler.state_dict()))
        except (TypeError, ValueError):
            return None
        found["rates"] = [float(group["lr"]) for group in self.optimizer.param_groups]
        return found

    def load(self, state: dict[str, Any] | None, steps: int) -> None:
        if state is None:
            for _ in range(steps):
                self.scheduler.step()
            return
        rates = state.pop("rates")
        self.scheduler.load_state_dict(state)
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate

    def _own_rates(self, *_: Any) -> None:
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate
