"""One optimizer step: forward, backward, clip, optimizer, schedule, zero, in this order.

Nothing here reads a number back from the device. Losses are summed there. A step with gradients that are not finite
does not change the weights, nor does any later one. So the state stays the last good one until the next log,
evaluation or save checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from whet.data.tokens.batches import rank_slice
from whet.engine.average import Average
from whet.engine.network import Batch, BatchSource, Rows
from whet.engine.state_tensors import load_state_tensors, state_tensors
from whet.utils.device import Hardware, precision
from whet.utils.safetensors_files import Groups

LossOf = Callable[[Batch], Tensor]
"""Maps a batch to the sum of its rows' losses."""


@dataclass
class StepTotals:
    """Sums since the last log, kept on the device."""

    loss: Tensor
    grad_norm: Tensor
    first_nonfinite_step: Tensor
    """The first step with a loss or gradients that are not finite; -1 if there is none."""
    steps: int = 0
    rows: int = 0
    uncompared: int = 0
    """Micro-batches of all processes in which no two rows had the same class for the contrastive loss."""

    @classmethod
    def empty(cls, device: torch.device) -> StepTotals:
        zero = torch.zeros((), dtype=torch.float64 if device.type != "mps" else torch.float32, device=device)
        return cls(zero, zero.clone(), torch.full((), -1, dtype=torch.int64, device=device))

    def clear(self) -> None:
        self.loss.zero_()
        self.steps = self.rows = self.uncompared = 0


@dataclass
class Stepper:
    """Turns the rows of a step into an optimizer step."""

    lockstep: ClassVar[bool] = False
    """Whether all processes must make the same passes; then none may retry with fewer rows."""

    model: torch.nn.Module
    loss_of: LossOf
    optimizer: torch.optim.Optimizer
    hardware: Hardware
    clip: float
    seed: int
    micro_rows: int
    """The largest number of rows per forward pass; halved after running out of memory."""
    rank: int = 0
    world: int = 1
    synchronized: Callable[[Sequence[Tensor]], None] | None = None
    """Sums tensors over processes in place; None for one process."""
    varying: bool = False
    """Whether steps may use different parameters; then processes exchange which ones every time."""
    groups: Sequence[tuple[Rows, float]] = field(default=(), init=False)
    """Parts of the next step with divisors of their own, if its loss is not one mean over all rows."""
    parameters: list[Tensor] = field(init=False)
    window: StepTotals = field(init=False)
    average: Average | None = field(default=None, init=False)
    """The running mean of the weights, if one is kept."""
    _trained: list[Tensor] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.window = StepTotals.empty(self.hardware.device)

    def __call__(self, step: int, feed: BatchSource, rows: Rows, share: Rows, rate: float) -> None:
        """Take step number `step`, counted from 0, on the texts `rows`; this process computes `share` of them."""
        whole = feed.loss_divisor(rows)
        seed_step(self.seed, step, self.rank)
        self.model.train()
        loss = torch.zeros((), device=self.hardware.device)
        for micro, (part, divisor) in enumerate(self.parts(rows, feed.rows(share), whole)):
            loss += self.backward(feed.batch(part), divisor, step=step, micro=micro)
        if self.synchronized is not None:
            # Every process divided by the divisor of the whole step, so the sum is what one process would have
            # computed.
            self.sum_gradients(self.synchronized, computed=len(share) > 0)
            self.synchronized([loss])
        self._update(step, loss, rate)
        self.count(feed, rows)
        if self.average is not None:
            self.average.update(step + 1)

    def count(self, feed: BatchSource, rows: Rows) -> None:
        """Add a finished step to the totals. Every process counts the micro-batches of all processes."""
        self.window.steps += 1
        self.window.rows += len(rows)
        for rank in range(self.world):
            parts = split(feed.rows(rank_slice(rows, rank, self.world)), self.micro_rows)
            self.window.uncompared += sum(feed.nothing_to_compare(part) for part in parts)

    def parts(self, rows: Rows, share: Rows, divisor: float) -> Sequence[tuple[Rows, float]]:
        """Return the micro-batches of this process, each with the divisor of its loss."""
        groups = self.groups or [(share, divisor)]
        return [(part, divisor) for group, divisor in groups for part in split(group, self.micro_rows)]

    def sum_gradients(self, summed: Callable[[Sequence[Tensor]], None], *, computed: bool) -> None:
        """Sum gradients over all processes; a process without rows contributes zeros."""
        if self._trained is None or self.varying:
            found = torch.tensor([float(each.grad is not None) for each in self.parameters])
            found = found.to(self.hardware.device)
            summed([found])
            # A parameter that no process uses keeps no gradient, so the optimizer skips it, as with one process.
            self._trained = [each for each, used in zip(self.parameters, found.tolist(), strict=True) if used]
        for kind in sorted({each.dtype for each in self._trained}, key=str):
            members = [each for each in self._trained if each.dtype == kind]
            parts = [torch.zeros_like(each) if each.grad is None else each.grad for each in members]
            flat = torch.cat([part.reshape(-1) for part in parts])
            summed([flat])
            pieces = torch.split(flat, [each.numel() for each in members])
            for each, piece in zip(members, pieces, strict=True):
                each.grad = piece.view_as(each)

    def backward(self, batch: Batch, divisor: float, *, step: int = 0, micro: int = 0) -> Tensor:
        """Add this micro-batch's gradients to those of the step; return its part of the step's loss."""
        with precision(self.hardware):
            loss = self.loss_of(batch) / divisor
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def reseed(self, seed: int) -> None:
        """Draw dropout from another seed from here on."""
        self.seed = seed

    def prepare(self, feed: BatchSource, rows: Rows) -> None:
        """Prepare a step of these rows; does nothing here."""

    def forward_backward(self, feed: BatchSource, rows: Rows) -> None:
        """Run forward and backward without an update, to measure the cost of a step."""
        self.model.train()
        self.backward(feed.batch(rows), divisor=1.0)
        self.zero()

    def zero(self) -> None:
        """Discard the gradients of an unfinished step."""
        self.optimizer.zero_grad(set_to_none=True)

    def tensors(self) -> Groups:
        """Return everything that training changes, by name, for a checkpoint."""
        groups = state_tensors(self.model, self.optimizer)
        if self.average is not None:
            groups["average"] = self.average.named()
        return groups

    def load(self, groups: Mapping[str, Mapping[str, Tensor]]) -> None:
        """The inverse of `tensors`; weights alone are enough to predict."""
        load_state_tensors(groups, self.model, self.optimizer)
        self.load_average(groups)

    def load_average(self, groups: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Load the running mean of a checkpoint. Without one there, the mean starts here."""
        if self.average is not None and "optimizer" in groups:
            self.average.load(groups.get("average"))

    def keep_average(self, decay: float) -> None:
        """Keep the running mean of the weights from here on."""
        self.average = Average(decay, self.averaged_tensors(), self.name_averages)

    def averaged_tensors(self) -> list[Tensor]:
        """Return the trained tensors in the form in which they are updated."""
        return [parameter.detach() for parameter in self.parameters]

    def name_averages(self, means: Sequence[Tensor]) -> dict[str, Tensor]:
        """Map tensors in the order of `averaged_tensors` to the names of the parameters."""
        trained = [name for name, parameter in self.model.named_parameters() if parameter.requires_grad]
        return dict(zip(trained, means, strict=True))

    def swap_average(self) -> None:
        """Exchange the model's weights with the averaged ones; a second call undoes it."""
        assert self.average is not None
        self.average.swap()

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Context in which the model has the averaged weights."""
        self.swap_average()
        try:
            yield
        finally:
            self.swap_average()

    def finished_model(self) -> Any:
        """Return the module with the current weights, for saving. Called on every process, because a sharded model is
        gathered."""
        self.tensors()  # brings the module up to date
        return self.model

    def _update(self, step: int, loss: Tensor, rate: float) -> None:
        norm = self.clipped(self.clip if self.clip > 0 else float("inf"))
        good = self.add_step(step, loss, norm)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        if self.hardware.device.type == "cpu":
            if bool(good):
                self.optimizer.step()
        else:
            # The fused update skips itself on the device if this is 1.
            self.optimizer.found_inf = (~good).float()  # type: ignore[attr-defined]
            self.optimizer.step()
        self.zero()

    def clipped(self, limit: float) -> Tensor:
        """Clip the gradients to this norm; return the norm before."""
        return torch.nn.utils.clip_grad_norm_(self.parameters, limit)

    def add_step(self, step: int | Tensor, loss: Tensor, norm: Tensor) -> Tensor:
        """Add the step to the totals; return a flag on the device: whether it may change the weights."""
        window = self.window
        good = torch.isfinite(norm) & torch.isfinite(loss) & (window.first_nonfinite_step < 0)
        window.first_nonfinite_step.copy_(
            torch.where(good | (window.first_nonfinite_step >= 0), window.first_nonfinite_step, step)
        )
        window.loss += torch.where(good, loss, torch.full_like(loss, float("nan"))).to(window.loss.dtype)
        window.grad_norm.copy_(norm)
        return good


def seed_step(seed: int, step: int, rank: int = 0) -> None:
    """Seed dropout by (seed, step), so that there is no generator state to save."""
    torch.manual_seed(step_seed(seed, step, rank))


def step_seed(seed: int, step: int, rank: int = 0, micro: int = 0) -> int:
    """Return 64 bits that differ for every step, process and micro-batch."""
    mixed = np.random.SeedSequence([seed, step, rank, micro]).generate_state(2, np.uint32)
    return int(mixed[0]) << 32 | int(mixed[1])


def split(rows: Rows, most: int) -> Sequence[Rows]:
    """Split rows into parts of at most `most`, in order."""
    return [rows[start : start + most] for start in range(0, len(rows), most)]
