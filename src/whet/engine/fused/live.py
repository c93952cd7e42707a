"""Fused steps for a loop in which the user may read and change model and optimizer between any two steps.

The weights of the module and the moments of torch's AdamW are views of the engine's buffers, with the whole vocabulary.
So both are current after every call, changes to them take effect, and nothing has to be copied back at the end.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from whet.data.tokens.table import Tokens
from whet.engine.fused.cpu.adamw import AdamW, norm_of_gradients, update_on_cpu
from whet.engine.fused.moments import Moments, updates_of
from whet.engine.fused.network import FusedNetwork
from whet.engine.given import why_not_adamw
from whet.engine.losses import Loss
from whet.utils.device import Hardware


class LiveStep:
    """Computes forward, backward and update on the CPU; torch's AdamW holds the settings and the state."""

    def __init__(
        self, model: Any, optimizer: torch.optim.Optimizer, hardware: Hardware, most: tuple[int, int] = (0, 0)
    ) -> None:
        """`most` is the largest number of rows and tokens of a batch; only a GPU needs it."""
        self.optimizer, self.most = optimizer, most
        found = [(parameter, parameter.grad) for parameter in model.parameters()]
        # Dropout is a function of this seed and the number of updates: the same after the same manual_seed.
        self.network = FusedNetwork(model, hardware, seed=torch.initial_seed() % (1 << 63), most=most)
        self.flat = self.network.flat
        self.moments = Moments(self.flat, optimizer)
        (beta1, beta2), epsilon = optimizer.param_groups[0]["betas"], optimizer.param_groups[0]["eps"]
        decays = [group["weight_decay"] for group in optimizer.param_groups]
        self.rule = AdamW(beta1, beta2, epsilon, max(decays), everywhere=min(decays) == max(decays))
        self.updates = 0
        self._head_gradients = [parameter.grad for parameter in self.flat.head if parameter.grad is not None]
        for parameter, gradient in found:
            parameter.grad = gradient  # what is there already is not the engine's
        self._take_state()

    def why_not(self) -> str:
        """Follow changes of the optimizer's state since the last update; return why that is not possible, if so."""
        if not self.moments.are_given():
            if reason := why_not_adamw(self.optimizer, self.network.model, fused=True, everywhere=True):
                return reason
            self._take_state()
        if self.moments.steps is not None:
            if bool((self.moments.steps != self.moments.steps[0]).any()):
                return "parameters have had different numbers of steps"
            self.updates = int(self.moments.steps[0])
        return ""

    def takes(self, tokens: Tokens, clip: float) -> bool:
        """Return whether a batch is not larger than what memory was taken for, and clipped as was said then."""
        return True

    def close(self) -> None:
        """Give memory back that only this object needs."""

    def backward(self, tokens: Tokens, loss: Loss, divisor: float, micro: int) -> Tensor:
        """Add the gradient of the summed loss divided by `divisor` to that of the step; return that loss."""
        flat, network = self.flat, self.network
        if micro == 0:
            self._begin_group()
        for group in flat.groups():
            group.refresh()  # weights may have been changed by hand; autocast casts all of them at every step, too
        network.add, network.pieces.step, network.pieces.micro = micro > 0, self.updates, micro
        batch = network.collate(tokens, np.arange(len(tokens)))
        assert batch.labels is not None
        total = loss.total(network.logits(batch), batch.labels) / divisor
        total.backward()  # type: ignore[no-untyped-call]
        return total.detach()

    def update(self, divisor: float, clip: float) -> Tensor:
        """Update the weights by the gradient divided by `divisor`, clipped; return its norm before clipping."""
        norm = norm_of_gradients(self.flat) / divisor
        scale = float((clip / (norm + 1e-6)).clamp(max=1.0)) if clip > 0 else 1.0
        rate = float(self.optimizer.param_groups[0]["lr"])
        update_on_cpu(self.flat, self.rule, self.updates + 1, rate, scale / divisor)
        self.updates += 1
        self.moments.advance(self.updates)
        self.forget()
        return norm

    def hand_over(self) -> None:
        """Give every parameter the gradient of the group so far, so that autograd adds the rest."""
        for name, parameter in self.flat.named.items():
            group = self.flat.matrices if name in self.flat.matrices.places else self.flat.small
            parameter.grad = group.view(group.gradient, name).to(torch.float32, copy=True)
        self.network.pieces.clean()

    def forget(self) -> None:
        """Discard the gradients of this group, after an update or an error."""
        self.network.pieces.clean()
        for parameter in self.flat.head:
            parameter.grad = None

    def _begin_group(self) -> None:
        """Let autograd add the head's gradients into the zeroed buffers."""
        for parameter, gradient in zip(self.flat.head, self._head_gradients, strict=True):
            parameter.grad = gradient.zero_()

    def _take_state(self) -> None:
        for group in self.flat.groups():
            group.first.zero_()
            group.second.zero_()
        self.moments.read()
        self.updates = updates_of(self.optimizer)
        self.moments.write(self.updates)
