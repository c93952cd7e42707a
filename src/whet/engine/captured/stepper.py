"""Training steps on CUDA as one replay for each shape, for any model of the library.

Each shape of a batch (batches.py) is captured when it is first needed. A model that cannot be captured, because its
host code reads numbers from the device, is trained by the plain step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from whet.config import TrainConfig
from whet.engine.captured.batches import Format, Shape, StaticBatch
from whet.engine.captured.graphed_step import GraphedStep, Records
from whet.engine.captured.graphs import NotCapturable
from whet.engine.captured.network import CapturedNetwork
from whet.engine.network import BatchSource, Rows
from whet.engine.stepper import LossOf, Stepper, split, step_seed
from whet.utils.device import Hardware


class CapturedStepper(Stepper):
    """Takes steps by replaying graphs of the library's own forward and backward pass."""

    def __init__(
        self,
        network: CapturedNetwork,
        loss_of: LossOf,
        config: TrainConfig,
        hardware: Hardware,
        optimizer: Any,
        *,
        form: Format,
        recorder: Records | None = None,
    ) -> None:
        super().__init__(
            model=network.model,
            loss_of=loss_of,
            optimizer=optimizer,
            hardware=hardware,
            clip=config.clip,
            seed=config.seed,
            micro_rows=config.batch_size,
        )
        self.network, self.form = network, form
        window = self.window
        totals = (window.loss, window.grad_norm, window.first_nonfinite_step)
        parameters, judge = self.parameters, self.add_step
        self.graphs = GraphedStep(parameters, optimizer, hardware, config.clip, judge, totals, recorder)
        self.batches: dict[Shape, StaticBatch] = {}

    def __call__(self, step: int, feed: BatchSource, rows: Rows, share: Rows, rate: float) -> None:
        if not self._tries(lambda: self._take(step, feed, rows, share, rate)):
            super().__call__(step, feed, rows, share, rate)

    def _tries(self, take: Callable[[], Any]) -> bool:
        """Do this by graphs; return whether that was possible. Nothing has happened otherwise."""
        if not self.network.captured:
            return False
        if not self.model.training:
            self.model.train()
        try:
            take()
        except NotCapturable as error:
            self.network.fall_back(str(error))
            self.forget()
        return self.network.captured

    def _take(self, step: int, feed: BatchSource, rows: Rows, share: Rows, rate: float) -> None:
        parts = self.parts(rows, feed.rows(share), feed.loss_divisor(rows))
        self.graphs.several = self.synchronized is not None
        whole = len(parts) == 1 and not self.graphs.several
        # Everything is captured before the first replay, so that a failure leaves no half of a step.
        batches = [self._prepared(feed, part, whole) for part, _ in parts]
        if not parts:  # another process has all rows of this step
            self._prepared(feed, rows[:1], whole)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.graphs.begin(step)
        for micro, ((part, divisor), static) in enumerate(zip(parts, batches, strict=True)):
            self._fill(static, feed, part, divisor)
            seed = step_seed(self.seed, step, self.rank, micro) >> 1
            self.graphs.replay(static.shape, seed, whole=whole)
        if self.synchronized is not None:
            self.synchronized([*self.graphs.gradients, self.graphs.loss])
        self.graphs.end(whole=whole)
        self.count(feed, rows)
        if self.average is not None:
            self.average.update(step + 1)

    def _prepared(self, feed: Any, rows: Rows, whole: bool) -> StaticBatch:
        """Return the place of this batch, with the graphs that it needs."""
        shape = self.form.shape(feed.tokens, rows, self.micro_rows)
        if shape not in self.batches:
            self.batches[shape] = StaticBatch.like(self.form, shape, feed.tokens, self.hardware.device)
        static = self.batches[shape]
        self.graphs.prepare(shape, lambda: self.loss_of(static.batch()), whole=whole)
        return static

    def _fill(self, static: StaticBatch, feed: Any, rows: Rows, divisor: float) -> None:
        shares = feed.shares(rows)
        static.fill(feed.tokens, rows, (1.0 if shares is None else shares) / divisor)

    def prepare(self, feed: BatchSource, rows: Rows) -> None:
        parts = split(feed.rows(rows), self.micro_rows)
        whole = len(parts) == 1 and self.synchronized is None
        self._tries(lambda: [self._prepared(feed, part, whole) for part in parts])

    def forward_backward(self, feed: BatchSource, rows: Rows) -> None:
        def compute() -> None:
            static = self._prepared(feed, rows, self.synchronized is None)
            with self.graphs.trial():
                self._fill(static, feed, rows, 1.0)
                self.graphs.replay(static.shape, 0, whole=self.synchronized is None)

        if not self._tries(compute):
            super().forward_backward(feed, rows)

    def zero(self) -> None:
        super().zero()
        self.graphs.zero()

    def load(self, groups: Mapping[str, Mapping[str, Tensor]]) -> None:
        super().load(groups)
        self.forget()  # the optimizer's state has other places now

    def forget(self) -> None:
        """Give the memory of all graphs back; they are captured again when they are needed."""
        self.graphs.forget()
        self.batches.clear()
