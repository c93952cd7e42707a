"""Forward, backward, clipping and update as graphs, for inputs at fixed places.

A step of one micro-batch is one graph. With several micro-batches or processes, one graph for each shape adds
gradients to buffers, and another ends the step. Processes are summed between the two, never in a graph, because they
may replay different shapes. Before a capture the work runs as a trial: without an update, and with the totals restored.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from whet.engine.captured.adamw import DeviceAdamW
from whet.engine.captured.graphs import NotCapturable, Recorder
from whet.engine.captured.static_inputs import StaticInputs
from whet.utils.device import Hardware, precision, synchronize
from whet.utils.memory import is_memory_error

Work = Callable[[], Any]
LossOf = Callable[[], Tensor]
"""Computes the loss of the static inputs of one shape."""
SLOWER = 1.5
"""A graph must be slower than single launches by this factor before a trial gives it up: one measurement is noisy."""
Judge = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Notes a step's number, loss and gradient norm; returns a flag on the device: whether it may change the weights."""


class Records(Protocol):
    """What launches and captures work; see `graphs.Recorder`."""

    def launch(self, work: Work) -> None:
        """Run the work without a graph."""

    def capture(self, work: Work) -> Work:
        """Return the work as one launch."""

    def seed(self, seed: int) -> None:
        """Seed what the next launch or replay draws."""

    def forget(self) -> None:
        """Begin anew: all graphs are gone."""


class GraphedStep:
    """Graphs of a model's steps; `prepare` captures, `begin`, `replay` and `end` take a step."""

    def __init__(
        self,
        parameters: Sequence[Tensor],
        optimizer: torch.optim.Optimizer,
        hardware: Hardware,
        clip: float,
        judge: Judge,
        totals: Sequence[Tensor],
        recorder: Records | None = None,
    ) -> None:
        """`totals` are what `judge` writes to; a trial restores them."""
        self.parameters, self.optimizer, self.hardware, self.clip = parameters, optimizer, hardware, clip
        self.judge, self.totals = judge, totals
        self.recorder: Records = recorder or Recorder(hardware.device)
        self.update = DeviceAdamW(optimizer)
        self.loss = torch.zeros((), device=hardware.device)
        """The loss of the step so far."""
        self.gradients: list[Tensor] = []
        """With several micro-batches or processes: the gradients of a step in one buffer for each type."""
        self.several = False
        """Whether other processes wait for this one's sums: then a part that cannot be captured is launched."""
        self._control = StaticInputs(1, 3 + len(optimizer.param_groups), hardware.device)
        """The step's number; whether it is a trial, the divisor of its gradients, their largest norm, and the rates."""
        self._graphs: dict[tuple[Hashable, bool], Work] = {}
        self._end: Work | None = None
        self._tried = self._begun = False

    def prepare(self, key: Hashable, loss_of: LossOf, *, whole: bool) -> None:
        """Capture the step of these static inputs, or the part of a step, unless that was done before."""
        current = self.update.is_current()
        if current and (key, whole) in self._graphs and (whole or self._end is not None):
            return
        with self._in_memory(), self.trial():
            if not current:
                self._begin_optimizer(loss_of)
            if (key, whole) not in self._graphs:
                work = (lambda: self._whole(loss_of)) if whole else (lambda: self._part(loss_of))
                self._graphs[key, whole] = self._captured(work, tries=whole and not self._tried)
            if not whole and self._end is None:
                self._end = self._captured(self._end_of_parts, tries=False)

    def has(self, key: Hashable, *, whole: bool) -> bool:
        """Return whether these static inputs can be computed without a capture."""
        return (key, whole) in self._graphs and self.update.is_current()

    @property
    def begun(self) -> bool:
        """Whether a step is unfinished; then nothing may be captured."""
        return self._begun

    def begin(self, step: int, divisor: float = 1.0) -> None:
        """Begin a step with the optimizer's rates; its gradients are to be divided by `divisor`."""
        rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        self.update.follow_user()
        self._begun = True
        self._control.fill([step], [0.0, divisor, self.clip if self.clip > 0 else math.inf, *rates])

    def replay(self, key: Hashable, seed: int | None, *, whole: bool) -> None:
        """Compute these static inputs; without a seed, dropout continues torch's generator."""
        if seed is not None:
            self.recorder.seed(seed)
        self._graphs[key, whole]()

    def end(self, *, whole: bool) -> None:
        """End the step; a whole one has updated the weights already."""
        if not whole:
            assert self._end is not None
            self._end()
        self.update.count()
        self._begun = False

    def hand_over(self) -> None:
        """Move the gradients of an unfinished step from the buffers to the parameters."""
        given = [None if view is None else view.clone() for view in self._views()]
        self.zero()
        self._assign(given)
        self._begun = False

    def abandon(self) -> None:
        """Leave the step unfinished for good."""
        self._begun = False

    def zero(self) -> None:
        """Discard the gradients of an unfinished step."""
        self._assign(None)
        for buffer in [*self.gradients, self.loss]:
            buffer.zero_()

    def forget(self) -> None:
        """Give the memory of all graphs back. No step may be unfinished."""
        self._graphs.clear()
        self._end, self.gradients, self._begun = None, [], False
        self.recorder.forget()

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Compute without taking a step: the update is skipped, and everything else is restored."""
        before = [tensor.clone() for tensor in self.totals]
        self._control.fill([0], [1.0, 1.0, math.inf, *[0.0] * len(self.optimizer.param_groups)])
        try:
            yield
        finally:
            self.zero()
            for target, source in zip(self.totals, before, strict=True):
                target.copy_(source)

    @contextmanager
    def _in_memory(self) -> Iterator[None]:
        """Give all graphs' memory back if there is not enough for another one."""
        try:
            yield
        except (torch.OutOfMemoryError, RuntimeError, MemoryError) as error:
            if is_memory_error(error):
                self.forget()
            raise

    def _begin_optimizer(self, loss_of: LossOf) -> None:
        """Find the parameters that get a gradient, and give the optimizer a state for them."""
        self.forget()
        self.recorder.launch(lambda: self._backward(loss_of))
        self.update.begin([parameter for parameter in self.parameters if parameter.grad is not None])
        self._assign(None)

    def _captured(self, work: Work, *, tries: bool) -> Work:
        self.recorder.launch(work)
        if self.several:
            try:
                return self.recorder.capture(work)
            except NotCapturable:
                return lambda: self.recorder.launch(work)
        if not tries:
            return self.recorder.capture(work)
        launched = self._time(lambda: self.recorder.launch(work))
        replay = self.recorder.capture(work)
        replay()
        replayed = self._time(replay)
        if self.hardware.device.type == "cuda" and replayed > SLOWER * launched:
            raise NotCapturable(
                f"a step takes {1000 * replayed:.1f} ms as a graph, and {1000 * launched:.1f} ms without"
            )
        self._tried = True
        return replay

    def _time(self, work: Work) -> float:
        synchronize(self.hardware.device)
        started = time.perf_counter()
        work()
        synchronize(self.hardware.device)
        return time.perf_counter() - started

    # The work of a graph

    def _whole(self, loss_of: LossOf) -> None:
        self._assign(None)
        self.loss.copy_(self._backward(loss_of))
        self._update_weights()
        self._assign(None)
        self.loss.zero_()

    def _part(self, loss_of: LossOf) -> None:
        self._assign(self._views())
        self.loss.add_(self._backward(loss_of))
        self._assign(None)

    def _end_of_parts(self) -> None:
        self._assign(self._views())
        self._update_weights()
        self.zero()

    def _backward(self, loss_of: LossOf) -> Tensor:
        with precision(self.hardware):
            loss = loss_of()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _update_weights(self) -> None:
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        step, (trial, divisor, clip, *_) = self._control.integers[0], self._control.reals
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients))) / divisor  # type: ignore[arg-type]
        good = self.judge(step, self.loss, norm)
        scale = ((norm + 1e-6) / clip).clamp(min=1.0) * divisor
        self.update.run(self._control.reals[3:], scale, torch.maximum((~good).float(), trial))

    def _assign(self, gradients: Sequence[Tensor | None] | None) -> None:
        for index, parameter in enumerate(self.parameters):
            parameter.grad = None if gradients is None else gradients[index]

    def _views(self) -> list[Tensor | None]:
        """Return the place of each parameter's gradient in the buffers; None for one that never gets any."""
        trained = [each for each in self.parameters if each in self.update.places]
        kinds = sorted({each.dtype for each in trained}, key=str)
        members = {kind: [each for each in trained if each.dtype == kind] for kind in kinds}
        if not self.gradients:
            device = self.hardware.device
            self.gradients = [
                torch.zeros(sum(each.numel() for each in members[kind]), dtype=kind, device=device) for kind in kinds
            ]
        views: dict[Tensor, Tensor] = {}
        for kind, buffer in zip(kinds, self.gradients, strict=True):
            pieces = torch.split(buffer, [each.numel() for each in members[kind]])
            views |= {each: piece.view_as(each) for each, piece in zip(members[kind], pieces, strict=True)}
        return [views.get(each) for each in self.parameters]
