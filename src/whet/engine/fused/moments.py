"""torch's AdamW and the engine's flat buffers: one state, seen from both sides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whet.engine.fused.parameters import FlatModel

KINDS = ("exp_avg", "exp_avg_sq")


def updates_of(optimizer: torch.optim.Optimizer) -> int:
    """How many updates the optimizer has made: AdamW corrects its moments by that number."""
    return max((int(state["step"]) for state in optimizer.state.values() if state), default=0)


def moves_others(optimizer: torch.optim.Optimizer, word: Tensor, used: Callable[[], Any]) -> bool:
    """Whether rows of the word embedding other than the used ones are still moving."""
    state = optimizer.state.get(word)
    if not state:
        return False
    rest = torch.from_numpy(np.setdiff1d(np.arange(word.shape[0]), used()))
    return any(bool(state[kind][rest].any()) for kind in KINDS)


class Moments:
    """The moments that the fused update moves, as the state of torch's optimizer."""

    def __init__(self, flat: FlatModel, optimizer: torch.optim.Optimizer) -> None:
        self.flat, self.optimizer = flat, optimizer

    def read(self) -> None:
        """Take the optimizer's moments, of a checkpoint or of earlier steps, into the flat buffers."""
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
        """Give the optimizer the state that it would have after so many updates.

        Moments are views of the flat buffers. Where those hold a part of the vocabulary, that of the word embedding is
        a copy in full size.
        """
        if not updates:
            return
        moments = self.flat.moments()
        steps = torch.full((len(self.flat.named),), float(updates), device=self._device_of_steps())
        for step, (name, parameter) in zip(steps, self.flat.named.items(), strict=True):
            state = {"step": step}
            for kind in KINDS:
                values = moments[f"{name}:{kind}"]
                if name == self.flat.word and len(self.flat.used) < parameter.shape[0]:
                    whole = torch.zeros_like(parameter).detach()
                    whole[torch.from_numpy(self.flat.used)] = values
                    values = whole
                state[kind] = values
            self.optimizer.state[parameter] = state

    def release(self) -> None:
        """Every tensor of the optimizer's state gets memory of its own."""
        for state in self.optimizer.state.values():
            state.update({kind: value.clone() for kind, value in state.items()})

    def _device_of_steps(self) -> torch.device:
        """torch's fused AdamW counts on the device, its other kinds on the host."""
        group = self.optimizer.param_groups[0]
        return self.flat.device if group.get("fused") or group.get("capturable") else torch.device("cpu")
