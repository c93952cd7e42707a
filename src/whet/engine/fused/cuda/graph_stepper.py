"""Training steps on CUDA as one replay per shape.

A shape is (rows, tokens rounded up, longest row rounded up). Tokens that fill the bucket form a row of their own at
the end, which is not read, so its gradient is exactly zero. Each shape is captured when it is first needed. Inputs
are copied at once through pinned memory, ahead of the device; nothing is read back.

The update of a step runs on a side stream at the beginning of the next replay, during the forward pass (adamw.py).
`finish_pending_update` runs it before the weights are read.

With several processes a replay ends with the gradients. They are summed between replays, and the norm is computed
after that. Processes may replay different shapes, so no collective can be part of a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whet.config import TrainConfig
from whet.data.tokens.batches import pack
from whet.engine.fused.cpu.adamw import corrections
from whet.engine.fused.cuda.adamw import CudaUpdate, Words
from whet.engine.fused.cuda.compile import compiling_ahead
from whet.engine.fused.cuda.graph_encoder import LENGTH_BUCKET, capture
from whet.engine.fused.cuda.layers import CudaLayerOps
from whet.engine.fused.encoder import Inputs
from whet.engine.fused.network import FusedNetwork, head_logits
from whet.engine.fused.stepper import FusedStepper
from whet.engine.losses import Loss
from whet.engine.network import BatchSource, Rows
from whet.engine.stepper import split, step_seed
from whet.utils.cuda_streams import stream_of
from whet.utils.device import Hardware
from whet.utils.safetensors_files import Groups

TOKEN_BUCKET = 64
LARGE = 1024
"""For each multiple of this many tokens, buckets grow by TOKEN_BUCKET: shapes are few, and there is little filling."""
STAGES = 4

# torch has no type annotations for these.
_cuda: Any = torch.cuda

Shape = tuple[int, int, int]
Summed = Callable[[Sequence[Tensor]], None]
Part = tuple[bool, bool]
"""Whether a micro-batch is the first of its step, and whether it is the last."""


@dataclass
class Stage:
    """Pinned copies of a graph's inputs; the event tells when they may be overwritten."""

    buffer: Tensor
    copied: torch.cuda.Event


@dataclass
class Captured:
    """The static inputs of a shape and its graphs."""

    shape: Shape
    buffer: Tensor
    """Integers followed by floats, so that one copy transfers both. One number is padding: it aligns tokens and
    floats like separate tensors, since Triton compiles again for another alignment."""
    whole: Tensor
    real: Tensor
    stages: list[Stage]
    graphs: dict[Part, torch.cuda.CUDAGraph] = field(default_factory=dict)
    turn: int = 0


class GraphStepper(FusedStepper):
    """Takes steps by replaying graphs."""

    def __init__(
        self, network: FusedNetwork, loss: Loss, config: TrainConfig, hardware: Hardware, *, least: int = 0
    ) -> None:
        """`least` is the length of a short batch; the few shorter ones need no graphs of their own."""
        super().__init__(network, _never, config, hardware)
        self.batch_size, self.min_tokens_per_row = config.batch_size, least / config.batch_size
        assert isinstance(network.pieces, CudaLayerOps)
        self.pieces, self.loss, device = network.pieces, loss, hardware.device
        self.step_loss = torch.zeros((), device=device)
        self.step_at = torch.zeros((), dtype=torch.int64, device=device)
        self.captured: dict[Shape, Captured] = {}
        self.compiled = False
        self.pool = torch.cuda.graph_pool_handle()
        # One of each for all graphs: every stream has its own cuBLAS workspace.
        self.main = stream_of(self, device, priority=-1)  # the forward pass has priority over the update
        self.update = CudaUpdate(network.flat, self.rule, self.clip, network.pieces.side_stream)
        self.turns = 0
        """Number of replays so far; the update marks with it which vocabulary rows it has done."""
        self.pending: tuple[float, float, float] | None = None
        """The learning rate and bias corrections of the pending update."""
        self.pending_step = -1
        network.finish_pending_update = self.finish_pending_update

    def __call__(self, step: int, feed: BatchSource, rows: Rows, share: Rows, rate: float) -> None:
        divisor = feed.loss_divisor(rows)
        parts = self.parts(rows, feed.rows(share), divisor)
        if not self.model.training:  # setting the mode of every module takes half a millisecond
            self.model.train()
        for micro, (part, divisor) in enumerate(parts):
            shape, whole, real = self._filled(feed, part, step, micro, divisor)
            kind = self._kind(micro, len(parts))
            self._replay(self._prepared(shape, kind), kind, whole, real)
            if self.pending is not None:  # the first replay applied it: a step that fails later must not apply it again
                self._updated()
        if self.synchronized is not None:
            self._sum_over_processes(self.synchronized, step, computed=len(parts) > 0)
        self.pending, self.pending_step = (rate, *corrections(self.rule, step + 1)), step
        self.count(feed, rows)

    def prepare(self, feed: BatchSource, rows: Rows) -> None:
        parts = split(feed.rows(rows), self.micro_rows)
        for micro, part in enumerate(parts):
            shape, _, _ = self._filled(feed, part, 0, micro, 1.0)
            self._prepared(shape, self._kind(micro, len(parts)))

    def forward_backward(self, feed: BatchSource, rows: Rows) -> None:
        # the first shape that training needs
        kind = self._kind(0, len(split(feed.rows(feed.order.at(0)), self.micro_rows)))
        self.model.train()
        with self._without_update():
            shape, whole, real = self._filled(feed, rows, 0, 0, 1.0)
            self._replay(self._prepared(shape, kind), kind, whole, real)

    def _kind(self, micro: int, micros: int) -> Part:
        return micro == 0, micro == micros - 1 and self.synchronized is None

    @contextmanager
    def _without_update(self) -> Iterator[None]:
        """Compute without taking a step: no update follows, and the totals are restored."""
        self.finish_pending_update()
        window = (
            self.window.loss,
            self.window.grad_norm,
            self.window.first_nonfinite_step,
            self.step_loss,
            self.update.scale,
        )
        before = [tensor.clone() for tensor in window]
        try:
            yield
        finally:  # also after running out of memory halfway
            for target, source in zip(window, before, strict=True):
                target.copy_(source)
            self.zero()

    def _sum_over_processes(self, summed: Summed, step: int, *, computed: bool) -> None:
        if not computed:
            self.finish_pending_update()  # no replay has applied the update that needs the last step's gradients
            self.step_loss.zero_()
        self.sum_gradients(summed, computed=computed)
        summed([self.step_loss])
        self.update.add_step(self.window, self.step_loss, self.step_at.fill_(step), layers_squared=False)

    def finish_pending_update(self) -> None:
        """Apply the pending update, if there is one."""
        if self.pending is None:
            return
        rates = torch.tensor(self.pending, dtype=torch.float32).to(self.hardware.device)
        self.update.run(rates)
        self.zero()
        self.update.scale.fill_(-1.0)
        self._updated()

    def _updated(self) -> None:
        """Note that the pending update is applied, and count the weights after its step in the running mean."""
        self.pending = None
        if self.average is not None:
            self.average.update(self.pending_step + 1)

    def swap_average(self) -> None:
        self.finish_pending_update()
        super().swap_average()

    def tensors(self) -> Groups:
        self.finish_pending_update()
        return super().tensors()

    def load(self, groups: Mapping[str, Mapping[str, Tensor]]) -> None:
        self.finish_pending_update()  # the pending update belongs to the weights that are replaced
        super().load(groups)

    def zero(self) -> None:
        """Zero what the next step adds to: the head's gradients and the rows of the embeddings."""
        self.update.zero()

    # Inputs

    def _filled(self, feed: Any, rows: Rows, step: int, micro: int, divisor: float) -> tuple[Shape, Any, Any]:
        """Return the batch as two arrays in the layout of the graph."""
        packed = pack(feed.tokens, rows)
        count, used = len(rows), len(packed.input_ids)
        places = max(self.micro_rows, count)
        missing = places - count
        tokens = _bucketed(used + missing + 1)
        # Micro-batches may have been halved, or come from a checkpoint with larger batches.
        least = _bucketed(int(self.min_tokens_per_row * min(self.micro_rows, self.batch_size)))
        if least - used <= (missing + 1) * LENGTH_BUCKET:
            tokens = max(tokens, least)
        # Missing rows share the filling with the last one.
        filling = np.arange(1, missing + 2) * (tokens - used) // (missing + 1)
        longest = max(packed.max_length, int(np.diff(filling, prepend=0).max()))
        longest = -(-longest // LENGTH_BUCKET) * LENGTH_BUCKET
        by_token = np.zeros((3, tokens), dtype=np.int64)
        by_token[0, :used] = self.network.flat.new_id[packed.input_ids]
        by_token[1, :used] = packed.position_ids  # the filling may be longer than any row; all of it has position 0
        by_token[1] += self.network.shift
        if packed.token_type_ids is not None:
            by_token[2, :used] = packed.token_type_ids
        order = np.zeros(tokens, dtype=np.int64)
        order[:used] = np.argsort(by_token[0, :used], kind="stable")
        heads = np.flatnonzero(np.diff(by_token[0, order[:used]], prepend=-1))
        starts = np.full(tokens + 1, used, dtype=np.int64)
        starts[: len(heads)] = heads
        offsets = np.concatenate([packed.cu_seqlens, used + filling]).astype(np.int64)
        first = offsets[:-1]
        labels = np.zeros((places, *feed.tokens.labels.shape[1:]), dtype=np.float32)
        labels[:count] = packed.labels
        share = np.zeros(places, dtype=np.float32)
        shares = feed.shares(rows)
        share[:count] = 1 / divisor if shares is None else shares / divisor
        seed = step_seed(self.seed, step, self.rank, micro) >> 1
        self.turns += 1
        whole = np.concatenate([[seed, step, self.turns], offsets, first, by_token.ravel(), order, starts, [0]])
        real = np.concatenate([np.asarray(self.pending or (0.0, 1.0, 1.0), dtype=np.float32), share, labels.ravel()])
        return (places, tokens, longest), whole, real

    def _inputs(self, captured: Captured) -> tuple[Inputs, Words, Tensor, Tensor]:
        places, tokens, longest = captured.shape
        sizes = [1, 1, 1, places + 2, places + 1, tokens, tokens, tokens, tokens, tokens + 1, 1]
        seed, _, turn, offsets, first, ids, positions, types, order, starts, _ = torch.split(captured.whole, sizes)
        self.pieces.seed = seed
        layout = (order, starts, self.network.shift, longest)
        inputs = Inputs(ids, positions, types, offsets.int(), first, longest, layout)
        share, labels = captured.real[3 : 3 + places], captured.real[3 + places :]
        return inputs, Words(order, starts, ids, turn), share, labels.view(places, -1).squeeze(-1)

    # Graphs

    def _prepared(self, shape: Shape, part: Part) -> Captured:
        """Return the graph of this shape; a new shape is captured on a batch of filling only."""
        if shape not in self.captured:
            places, tokens, _ = shape
            wide = self.loss.task.outputs if self.loss.task.kind == "multilabel" else 1
            wholes, reals = 2 * places + 8 + 5 * tokens, 3 + places * (1 + wide)
            buffer = torch.zeros(wholes + -(-reals // 2), dtype=torch.int64, device=self.hardware.device)
            pinned = torch.zeros(STAGES, len(buffer), dtype=torch.int64).pin_memory()
            stages = [Stage(part, _cuda.Event()) for part in pinned]
            real = buffer[wholes:].view(torch.float32)[:reals]
            self.captured[shape] = Captured(shape, buffer, buffer[:wholes], real, stages)
        captured = self.captured[shape]
        if part not in captured.graphs:
            self._capture(captured, part)
        return captured

    def _capture(self, captured: Captured, part: Part) -> None:
        """Run once outside a graph, so that kernels are compiled and memory is allocated; then capture.

        Gradients of a started step are saved and restored.
        """
        kept = [] if part[0] else [group.gradient.clone() for group in self.network.flat.groups()]
        with self._without_update():
            captured.graphs[part] = self._new_graph(captured, part)
        for group, gradient in zip(self.network.flat.groups(), kept, strict=False):
            group.gradient.copy_(gradient)

    def _new_graph(self, captured: Captured, part: Part) -> torch.cuda.CUDAGraph:
        places, tokens, _ = captured.shape
        captured.whole.zero_()
        captured.whole[3 + places + 1] = tokens
        captured.whole[-(tokens + 2) :] = tokens
        work: Callable[[], None] = lambda: self._work(captured, part)  # noqa: E731
        self.main.wait_stream(torch.cuda.current_stream(self.hardware.device))
        with torch.cuda.stream(self.main):
            if not self.compiled:
                self._compile(captured, part)
            work()
        torch.cuda.current_stream(self.hardware.device).wait_stream(self.main)
        return capture(work, self.main, self.pool, self.hardware.device)

    def _compile(self, captured: Captured, part: Part) -> None:
        """Compile all kernels of a step and of an evaluation at once, before they are needed."""
        with compiling_ahead(self.hardware.device):
            self._work(captured, part)
            self.update.run(captured.real[:3])
            with torch.no_grad():
                self.network.encoder.first_hidden(self._inputs(captured)[0], training=False)
        self.compiled = True

    def _replay(self, captured: Captured, part: Part, whole: Any, real: Any) -> None:
        stage = captured.stages[captured.turn % STAGES]
        captured.turn += 1
        stage.copied.synchronize()  # waits only if the host is four steps ahead
        staged = stage.buffer.numpy()
        staged[: len(whole)] = whole
        staged[len(whole) :].view(np.float32)[: len(real)] = real
        captured.buffer.copy_(stage.buffer, non_blocking=True)
        stage.copied.record(torch.cuda.current_stream(self.hardware.device))
        # Attention and the head draw from torch's generator; a replay reads its seed.
        torch.cuda.default_generators[self.hardware.device.index or 0].manual_seed(int(whole[0]))
        captured.graphs[part].replay()

    def _work(self, captured: Captured, part: Part) -> None:
        """The work of a graph: the pending update during the forward pass, the backward pass, and the norm."""
        first, last = part
        inputs, words, share, labels = self._inputs(captured)
        encoder = self.network.encoder
        encoder.before_layer = self.update.run_beside(captured.real[:3], words) if first else []
        encoder.after_layer = self.update.square_layer_beside if last else ignore
        self.pieces.add = not first
        hidden = encoder.first_hidden(inputs, training=True, add=not first)
        logits = head_logits(self.model, hidden[: share.shape[0]])
        if self.loss.task.kind in ("binary", "multiclass"):
            labels = labels.long()
        rows = self.loss.rows(logits, labels)
        loss = (rows * share).sum()
        if self.loss.contrastive:
            loss = self.loss.mixed(rows, labels, hidden[: share.shape[0], 0], share)
        loss.backward()  # type: ignore[no-untyped-call]
        self.step_loss.copy_(loss.detach()) if first else self.step_loss.add_(loss.detach())
        if last:
            self.update.add_step(self.window, self.step_loss, captured.whole[1], layers_squared=True)
        encoder.before_layer = []  # events of a capture are invalid outside of it


def _bucketed(tokens: int) -> int:
    bucket = TOKEN_BUCKET * max(1, tokens // LARGE)
    return -(-tokens // bucket) * bucket


def ignore(*_: Any) -> None:
    """Do nothing."""


def _never(batch: Any) -> Tensor:
    raise AssertionError("a captured step has its own loss")
