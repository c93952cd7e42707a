"""torch's AdamW as launches that a graph can hold: rates, step counts and the decision to skip are on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from whet.engine.captured.graphs import NotCapturable

MOMENTS = ("exp_avg", "exp_avg_sq")


class DeviceAdamW:
    """Updates parameters by the state and the settings of a torch optimizer, which both stay true for its user."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self._counts = torch.zeros(0)
        """How many updates each parameter has had, on the device."""
        self._counts_of_user: Tensor | None = None
        """The same on the host, for an optimizer that counts there."""
        self._given: list[tuple[Tensor, dict[str, Tensor]]] = []
        self._updates = 0
        self.places: dict[Tensor, int] = {}
        """The parameters that are updated, each with the place of its count."""

    def begin(self, trained: Sequence[Tensor]) -> None:
        """Give the optimizer a state for these parameters, as its first step would, with all counts side by side."""
        states = [self._state_of(parameter) for parameter in trained]
        counts = torch.tensor([float(state["step"]) for state in states])
        self._counts = counts.to(trained[0].device, copy=True)
        self._counts_of_user, self._updates = None if self._counts_on_device() else counts, int(counts[0])
        shown = self._counts if self._counts_of_user is None else self._counts_of_user
        for state, count in zip(states, shown, strict=True):
            state["step"] = count
        self.places = {parameter: index for index, parameter in enumerate(trained)}
        self._given = [(parameter, dict(state)) for parameter, state in zip(trained, states, strict=True)]

    def is_current(self) -> bool:
        """Return whether the optimizer's state is still what `begin` has given it."""
        states = self.optimizer.state
        return bool(self._given) and all(
            (found := states.get(parameter)) is not None
            and all(found.get(kind) is value for kind, value in own.items())
            for parameter, own in self._given
        )

    def run(self, rates: Tensor, scale: Tensor, skip: Tensor) -> None:
        """Update every parameter that has a gradient, which is divided by `scale` first; nothing if `skip` is 1."""
        self._counts.add_(1.0 - skip)
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            members = [parameter for parameter in group["params"] if parameter.grad is not None]
            for kind in sorted({parameter.dtype for parameter in members}, key=str):
                self._update([each for each in members if each.dtype == kind], group, rate, scale, skip)

    def count(self) -> None:
        """Count an update for an optimizer that counts on the host."""
        if self._counts_of_user is not None:
            self._counts_of_user.add_(1.0)
            self._updates += 1

    def follow_user(self) -> None:
        """Take over the counts of steps that torch's own optimizer has taken in between."""
        if self._counts_of_user is not None and int(self._counts_of_user[0]) != self._updates:
            self._counts.copy_(self._counts_of_user)
            self._updates = int(self._counts_of_user[0])

    def _update(self, members: list[Tensor], group: dict[str, Any], rate: Tensor, scale: Tensor, skip: Tensor) -> None:
        if any(parameter not in self.places for parameter in members):
            raise NotCapturable("other weights get a gradient than in the trial")
        first, second = ([self.optimizer.state[each][kind] for each in members] for kind in MOMENTS)
        beta1, beta2 = group["betas"]
        torch._fused_adamw_(
            members,
            [parameter.grad for parameter in members],  # type: ignore[misc]
            first,
            second,
            [],
            [self._counts[self.places[parameter]] for parameter in members],
            lr=rate,
            beta1=float(beta1),
            beta2=float(beta2),
            weight_decay=float(group["weight_decay"]),
            eps=float(group["eps"]),
            amsgrad=False,
            maximize=False,
            grad_scale=scale,
            found_inf=skip,
        )

    def _state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.optimizer.state[parameter]
        if not state:
            state["step"] = torch.zeros(())
            for kind in MOMENTS:
                state[kind] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return state

    def _counts_on_device(self) -> bool:
        """torch counts on the device for a fused or capturable AdamW, else on the host."""
        group = self.optimizer.param_groups[0]
        return bool(group.get("fused") or group.get("capturable"))
