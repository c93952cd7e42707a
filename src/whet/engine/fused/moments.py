"""The state of torch's AdamW and the moments in the engine's flat buffers, kept equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whet.engine.fused.parameters import FlatModel

KINDS = ("exp_avg", "exp_avg_sq")


def updates_of(optimizer: torch.optim.Optimizer) -> int:
    """Return the number of updates the optimizer has made; AdamW corrects its moments by it."""
    return max((int(state["step"]) for state in optimizer.state.values() if state), default=0)


def moves_others(optimizer: torch.optim.Optimizer, word: Tensor, used: Callable[[], Any]) -> bool:
    """Return whether rows of the word embedding other than the used ones have moments."""
    state = optimizer.state.get(word)
    if not state:
        return False
    rest = torch.from_numpy(np.setdiff1d(np.arange(word.shape[0]), used()))
    return any(bool(state[kind][rest].any()) for kind in KINDS)


class Moments:
    """Copies the optimizer's state into the flat buffers, and gives it views of them."""

    def __init__(self, flat: FlatModel, optimizer: torch.optim.Optimizer) -> None:
        self.flat, self.optimizer = flat, optimizer
        self.steps: Tensor | None = None
        """The number of updates of each parameter, as the optimizer has it."""
        self._given: list[tuple[Tensor, dict[str, Tensor]]] = []
        self._copies: list[tuple[Tensor, Tensor]] = []
        """Moments of the word embedding in full size, and those of its used rows."""

    def read(self) -> None:
        """Copy the optimizer's moments, from a checkpoint or earlier steps, into the flat buffers."""
        names = {id(parameter): name for name, parameter in self.flat.named.items()}
        moments = self.flat.moments()
        for parameter, state in self.optimizer.state.items():
            if not state:
                continue
            name = names[id(parameter)]
            for kind in KINDS:
                values = state[kind]
                rows = values[torch.from_numpy(self.flat.used)] if name == self.flat.word else values
                moments[f"{name}:{kind}"].copy_(rows)

    def write(self, updates: int) -> None:
        """Give the optimizer the state after so many updates.

        Moments are views of the flat buffers. If those hold only a part of the vocabulary, the moment of the word
        embedding is a copy in full size.
        """
        self.steps, self._given, self._copies = None, [], []
        if not updates:
            return
        moments = self.flat.moments()
        self.steps = torch.full((len(self.flat.named),), float(updates), device=self._device_of_steps())
        for step, (name, parameter) in zip(self.steps, self.flat.named.items(), strict=True):
            state = {"step": step}
            for kind in KINDS:
                values = moments[f"{name}:{kind}"]
                if name == self.flat.word and len(self.flat.used) < parameter.shape[0]:
                    self._copies.append((torch.zeros_like(parameter).detach(), values))
                    values = self._copies[-1][0]
                state[kind] = values
            self._given.append((parameter, dict(state)))
            self.optimizer.state[parameter] = state
        self._fill_copies()

    def advance(self, updates: int) -> None:
        """Set the number of updates, and the moments that are not views."""
        if self.steps is None:
            self.write(updates)
        else:
            self.steps.fill_(updates)
            self._fill_copies()

    def _fill_copies(self) -> None:
        for whole, values in self._copies:
            whole[torch.from_numpy(self.flat.used)] = values

    def are_given(self) -> bool:
        """Return whether the optimizer's state is still exactly what `write` has given."""
        states = self.optimizer.state
        if not self._given:
            return not any(states.values())
        return len(states) == len(self._given) and all(
            (found := states.get(parameter)) is not None
            and found.keys() == given.keys()
            and all(found[kind] is given[kind] for kind in given)
            for parameter, given in self._given
        )

    def release(self) -> None:
        """Give every tensor of the optimizer's state memory of its own."""
        for state in self.optimizer.state.values():
            state.update({kind: value.clone() for kind, value in state.items()})

    def _device_of_steps(self) -> torch.device:
        """Return the device of the step counts: torch's fused AdamW has them on the device, others on the host."""
        group = self.optimizer.param_groups[0]
        return self.flat.device if group.get("fused") or group.get("capturable") else torch.device("cpu")
