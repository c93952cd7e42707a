"""Fused steps on CUDA for a user's own loop: the same graphs as in a run, with the update at the end of each step."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from whet.config import TrainConfig
from whet.data.tokens.batches import BatchOrder
from whet.data.tokens.table import Tokens
from whet.engine.fused.cuda.graph_stepper import GraphStepper
from whet.engine.fused.live import LiveStep
from whet.engine.losses import Loss
from whet.engine.network import TokenBatches
from whet.utils.device import Hardware


class CudaLiveStep(LiveStep):
    """Takes whole steps by replays. The update is not put off, because the user may read the weights at any time."""

    def __init__(
        self,
        model: Any,
        optimizer: torch.optim.Optimizer,
        hardware: Hardware,
        most: tuple[int, int],
        loss: Loss,
        clip: float,
    ) -> None:
        super().__init__(model, optimizer, hardware, most)
        self.clip = clip
        config = TrainConfig(batch_size=most[0], clip=clip, seed=torch.initial_seed() % (1 << 63))
        self.stepper = GraphStepper(self.network, loss, config, hardware)
        self.stepper.rule = self.stepper.update.rule = self.rule

    def takes(self, tokens: Tokens, clip: float) -> bool:
        return len(tokens) <= self.most[0] and len(tokens.ids) <= self.most[1] and clip == self.clip

    def close(self) -> None:
        self.stepper.captured.clear()

    def backward(self, tokens: Tokens, loss: Loss, divisor: float, micro: int) -> Tensor:
        """Compute the gradient of the mean loss; return that loss. A batch is a step of its own here."""
        self._begin_group()
        for group in self.flat.groups():
            group.refresh()  # weights may have been changed by hand
        stepper, rows = self.stepper, np.arange(len(tokens))
        stepper.window.clear()
        stepper.window.first_nonfinite_step.fill_(-1)  # a loss that is not finite stops no later batch
        feed = TokenBatches(tokens, BatchOrder(len(tokens), len(tokens), 0), self.network, loss)
        stepper(self.updates, feed, rows, rows, float(self.optimizer.param_groups[0]["lr"]))
        return stepper.window.loss.float()

    def update(self, divisor: float, clip: float) -> Tensor:
        self.stepper.finish_pending_update()
        self.updates += 1
        self.moments.advance(self.updates)
        self.forget()
        return self.stepper.window.grad_norm.float()

    def hand_over(self) -> None:
        raise AssertionError("no group is unfinished between two calls")

    def forget(self) -> None:
        self._begin_group()
        self.stepper.pending = None
        self.stepper.zero()
        for parameter in self.flat.head:
            parameter.grad = None
