"""Training steps on CUDA as one replay for each shape, for any model of the library.

A shape is (rows, longest row rounded up). Missing rows and tokens are padding; a missing row has a share of zero in the
loss, so its gradient is exactly zero. Each shape is captured when it is first needed. A model that cannot be captured,
because its host code reads numbers from the device, is trained by the plain step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from whet.config import TrainConfig
from whet.data.tokens.batches import pad
from whet.engine.captured.graphed_step import GraphedStep, Records
from whet.engine.captured.graphs import NotCapturable
from whet.engine.captured.network import CapturedNetwork
from whet.engine.captured.static_inputs import StaticInputs
from whet.engine.network import Batch, BatchSource, Rows
from whet.engine.stepper import LossOf, Stepper, split, step_seed
from whet.models.families import position_shift
from whet.utils.device import Hardware

LENGTH_BUCKET = 16
RARE = 0.05
"""This share of the batches is shorter than all others; they are padded to the others' length, to save graphs."""

Shape = tuple[int, int]


@dataclass
class Static:
    """A batch at a fixed place on the device."""

    shape: Shape
    inputs: StaticInputs
    labels: tuple[int, ...]
    """The shape of one row's labels."""
    integral: bool
    """Whether labels are classes."""

    def batch(self) -> Batch:
        places, width = self.shape
        blocks = self.inputs.integers.view(-1, places, width)
        types = ("token_type_ids",) if len(blocks) == 3 else ()
        names = ("input_ids", *types, "attention_mask")
        share, labels = self.inputs.reals[:places], self.inputs.reals[places:].view(places, *self.labels)
        return Batch(dict(zip(names, blocks, strict=True)), labels.long() if self.integral else labels, share=share)


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
        shortest: int = 0,
        recorder: Records | None = None,
    ) -> None:
        """`shortest` is the length to which shorter batches are padded."""
        super().__init__(
            model=network.model,
            loss_of=loss_of,
            optimizer=optimizer,
            hardware=hardware,
            clip=config.clip,
            seed=config.seed,
            micro_rows=config.batch_size,
        )
        self.network, self.shortest = network, shortest
        window = self.window
        totals = (window.loss, window.grad_norm, window.first_nonfinite_step)
        parameters, judge = self.parameters, self.add_step
        self.graphs = GraphedStep(parameters, optimizer, hardware, config.clip, judge, totals, recorder)
        self.batches: dict[Shape, Static] = {}

    def __call__(self, step: int, feed: BatchSource, rows: Rows, share: Rows, rate: float) -> None:
        if not self._tries(lambda: self._take(step, feed, rows, share, rate)):
            super().__call__(step, feed, rows, share, rate)

    def _tries(self, take: Callable[[], Any]) -> bool:
        """Do this by graphs; return whether that was possible. Nothing has happened otherwise."""
        if not self.network.captured:
            return False
        self.model.train()
        try:
            take()
        except NotCapturable as error:
            self.network.fall_back(str(error))
            self.forget()
        return self.network.captured

    def _take(self, step: int, feed: BatchSource, rows: Rows, share: Rows, rate: float) -> None:
        parts = self.parts(rows, feed.rows(share), feed.loss_divisor(rows))
        whole = len(parts) == 1 and self.synchronized is None
        # Everything is captured before the first replay, so that a failure leaves no half of a step.
        batches = [self._prepared(feed, part, whole) for part, _ in parts]
        if not parts:  # another process has all rows of this step
            self._prepared(feed, rows[:1], whole)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.graphs.begin(step)
        for micro, ((part, divisor), static) in enumerate(zip(parts, batches, strict=True)):
            static.inputs.fill(*self._filled(feed, part, divisor, static.shape))
            seed = step_seed(self.seed, step, self.rank, micro) >> 1
            self.graphs.replay(static.shape, seed, whole=whole)
        if self.synchronized is not None:
            self.synchronized([*self.graphs.gradients, self.graphs.loss])
        self.graphs.end(whole=whole)
        self.count(feed, rows)
        if self.average is not None:
            self.average.update(step + 1)

    def _prepared(self, feed: Any, rows: Rows, whole: bool) -> Static:
        """Return the place of this batch, with the graphs that it needs."""
        shape, tokens = self._shape(feed, rows), feed.tokens
        if shape not in self.batches:
            (places, width), wide = shape, tuple(tokens.labels.shape[1:])
            integers, reals = (2 + (tokens.types is not None)) * places * width, places * (1 + int(np.prod(wide)))
            integral = not wide and bool(np.issubdtype(tokens.labels.dtype, np.integer))
            static = Static(shape, StaticInputs(integers, reals, self.hardware.device), wide, integral)
            static.inputs.fill(*self._filled(feed, rows[:0], 1.0, shape))  # for the first run, before it is captured
            self.batches[shape] = static
        static = self.batches[shape]
        self.graphs.prepare(shape, lambda: self.loss_of(static.batch()), whole=whole)
        return static

    def _shape(self, feed: Any, rows: Rows) -> Shape:
        longest, config = int(feed.tokens.row_lengths[rows].max()), self.network.model.config
        width = bucket(max(longest, self.shortest))
        if limit := getattr(config, "max_position_embeddings", None):
            width = max(longest, min(width, limit - position_shift(config)))
        return max(self.micro_rows, len(rows)), width

    def _filled(self, feed: Any, rows: Rows, divisor: float, shape: Shape) -> tuple[Any, Any]:
        """Return the batch as integers and real numbers in the layout of the graph."""
        (places, width), pad_id = shape, self.network.model.config.pad_token_id or 0
        batch = pad(feed.tokens, rows, pad_id=pad_id)
        found = batch.pop("labels")
        integers = np.zeros((len(batch), places, width), dtype=np.int64)
        for block, (name, values) in zip(integers, batch.items(), strict=True):
            block[:] = pad_id if name == "input_ids" else 0
            block[: values.shape[0], : values.shape[1]] = values
            if name == "attention_mask":
                block[len(rows) :, 0] = 1  # attention over nothing is not a number
        labels = np.zeros((places, *found.shape[1:]), dtype=np.float32)
        labels[: len(rows)] = found
        share = np.zeros(places, dtype=np.float32)
        shares = feed.shares(rows)
        share[: len(rows)] = 1 / divisor if shares is None else shares / divisor
        return integers.ravel(), np.concatenate([share, labels.ravel()])

    def prepare(self, feed: BatchSource, rows: Rows) -> None:
        parts = split(feed.rows(rows), self.micro_rows)
        whole = len(parts) == 1 and self.synchronized is None
        self._tries(lambda: [self._prepared(feed, part, whole) for part in parts])

    def forward_backward(self, feed: BatchSource, rows: Rows) -> None:
        def compute() -> None:
            static = self._prepared(feed, rows, self.synchronized is None)
            with self.graphs.trial():
                static.inputs.fill(*self._filled(feed, rows, 1.0, static.shape))
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


def bucket(length: int) -> int:
    """Round a length up, to at most eight sizes between two powers of two, and to multiples of 16 at least."""
    grain = max(LENGTH_BUCKET, 1 << max(0, (length - 1).bit_length() - 3))
    return -(-length // grain) * grain


def shortest_batch(lengths: Any, rows: int) -> int:
    """Return a length that the longest row of one random batch in twenty stays below."""
    return int(np.quantile(lengths, RARE ** (1 / rows))) if len(lengths) else 0
