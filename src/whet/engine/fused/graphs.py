"""Whole training steps on CUDA as one replay for each shape.

A shape is (rows, tokens rounded up, longest row rounded up). Tokens that only fill the bucket form a row of their own
at the end, which nothing reads: its gradient is exactly zero. Each shape is captured when it is first needed. Inputs
go through pinned memory in one copy, ahead of the device; nothing is read back.

The update of a step runs at the beginning of the next replay, on a stream of its own: AdamW is bound by memory and
the forward pass is not, and layer by layer the forward pass waits only for its own weights. `settle` does an update
that is still pending, before anybody looks at the weights.

With several processes a replay ends with the gradients. They are summed between replays, and the norm is taken after
that: which shapes a process replays is its own affair, so nothing that all of them must do can be in a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whet.config import TrainConfig
from whet.data.batches import pack
from whet.engine.devices import Hardware
from whet.engine.feed import Feed, Rows
from whet.engine.fused import kernels
from whet.engine.fused.adamw import corrections
from whet.engine.fused.encoder import Inputs
from whet.engine.fused.flat import Group
from whet.engine.fused.pieces_cuda import CudaPieces
from whet.engine.fused.step import FusedNetwork, FusedStepper, head_logits
from whet.engine.losses import Loss
from whet.engine.step import split, step_seed
from whet.engine.tensors import Groups

TOKEN_BUCKET = 64
LARGE = 1024
"""Tokens from which on buckets are wider: a share of filling that stays the same, and few shapes to capture."""
LENGTH_BUCKET = 128
STAGES = 4
NORM_PROGRAMS = 512
UPDATE_PROGRAMS = 528
BLOCK = 1024

# torch's own annotations leave these untyped.
_cuda: Any = torch.cuda

Shape = tuple[int, int, int]
Summed = Callable[[Sequence[Tensor]], None]
Part = tuple[bool, bool]
"""Whether a micro-batch is the first of its step, and whether it is the last."""


@dataclass
class Stage:
    """Pinned copies of a graph's inputs; the event says when they may be written again."""

    whole: Tensor
    real: Tensor
    copied: torch.cuda.Event


@dataclass
class Captured:
    """The static inputs of a shape and its graphs."""

    shape: Shape
    whole: Tensor
    real: Tensor
    stages: list[Stage]
    graphs: dict[Part, torch.cuda.CUDAGraph] = field(default_factory=dict)
    turn: int = 0


class GraphStepper(FusedStepper):
    """Steps by replay."""

    def __init__(self, network: FusedNetwork, loss: Loss, config: TrainConfig, hardware: Hardware) -> None:
        super().__init__(network, _never, config, hardware)
        assert isinstance(network.pieces, CudaPieces)
        self.pieces, self.loss, device = network.pieces, loss, hardware.device
        self.step_loss = torch.zeros((), device=device)
        self.step_at = torch.zeros((), dtype=torch.int64, device=device)
        self.partial = torch.zeros(2 * NORM_PROGRAMS, device=device)
        self.scale = torch.full((), -1.0, device=device)
        """What a pending update multiplies gradients by; below 0 when none is pending."""
        self.captured: dict[Shape, Captured] = {}
        self.pool = torch.cuda.graph_pool_handle()
        self.beside = _cuda.Stream(device)
        self.pending: tuple[float, float, float] | None = None
        """The rate and bias corrections of the update that is still to be done."""
        network.settle = self.settle

    def __call__(self, step: int, feed: Feed, rows: Rows, share: Rows, rate: float) -> None:
        weight = feed.weight(rows)
        parts = split(share, self.micro_rows)
        self.model.train()
        for micro, part in enumerate(parts):
            shape, whole, real = self._filled(feed, part, step, micro, weight)
            kind = (micro == 0, micro == len(parts) - 1 and self.synchronized is None)
            self._replay(self._prepared(shape, kind), kind, whole, real)
        if self.synchronized is not None:
            self._sum_over_processes(self.synchronized, step, computed=len(parts) > 0)
        self.pending = (rate, *corrections(self.rule, step + 1))
        self.window.steps += 1
        self.window.rows += len(rows)

    def rehearse(self, feed: Feed, rows: Rows) -> None:
        shape, whole, real = self._filled(feed, rows, 0, 0, 1.0)
        self.model.train()
        self._replay(self._prepared(shape, (True, False)), (True, False), whole, real)

    def _sum_over_processes(self, summed: Summed, step: int, *, computed: bool) -> None:
        if not computed:
            self.settle()  # no replay has done the update that still needs the last step's gradients
            self.step_loss.zero_()
        self.sum_gradients(summed, computed=computed)
        summed([self.step_loss])
        self._note(self.step_at.fill_(step))

    def settle(self) -> None:
        """Do the update that is pending, if one is."""
        if self.pending is None:
            return
        rule = torch.tensor(self.pending, dtype=torch.float32).to(self.hardware.device)
        for _, group, start, end in self._segments():
            self._update_span(group, start, end, rule)
        self.zero()
        self.scale.fill_(-1.0)
        self.pending = None

    def tensors(self) -> Groups:
        self.settle()
        return super().tensors()

    def zero(self) -> None:
        """What the next step adds to: the head's gradients, and the rows of the embeddings."""
        flat = self.network.flat
        flat.zero_head()
        flat.matrices.gradient[flat.matrices.computes_until :].zero_()

    # Inputs

    def _filled(self, feed: Any, rows: Rows, step: int, micro: int, weight: float) -> tuple[Shape, Any, Any]:
        """The batch as two arrays, laid out as the graph reads them."""
        packed = pack(feed.tokens, rows)
        count, used = len(rows), len(packed.input_ids)
        places = max(self.micro_rows, count)
        missing = places - count
        bucket = TOKEN_BUCKET * max(1, used // LARGE)
        tokens = -(-(used + missing + 1) // bucket) * bucket
        longest = -(-max(packed.max_length, tokens - used) // LENGTH_BUCKET) * LENGTH_BUCKET
        by_token = np.zeros((3, tokens), dtype=np.int64)
        by_token[0, :used] = self.network.flat.new_id[packed.input_ids]
        by_token[1, :used] = packed.position_ids  # the filling may be longer than any row: all of it is place 0
        by_token[1] += self.network.shift
        if packed.token_type_ids is not None:
            by_token[2, :used] = packed.token_type_ids
        order = np.zeros(tokens, dtype=np.int64)
        order[:used] = np.argsort(by_token[0, :used], kind="stable")
        heads = np.flatnonzero(np.diff(by_token[0, order[:used]], prepend=-1))
        starts = np.full(tokens + 1, used, dtype=np.int64)
        starts[: len(heads)] = heads
        # A row that is not there is one token of the filling; what is left of it is the last row.
        ends = [np.arange(used + 1, used + missing + 1), [tokens]]
        offsets = np.concatenate([packed.cu_seqlens, *ends]).astype(np.int64)
        first = offsets[:-1]
        labels = np.zeros((places, *feed.tokens.labels.shape[1:]), dtype=np.float32)
        labels[:count] = packed.labels
        share = np.zeros(places, dtype=np.float32)
        share[:count] = 1 / weight
        seed = step_seed(self.seed, step, self.rank, micro) >> 1
        whole = np.concatenate([[seed, step], offsets, first, by_token.ravel(), order, starts])
        real = np.concatenate([np.asarray(self.pending or (0.0, 1.0, 1.0), dtype=np.float32), share, labels.ravel()])
        return (places, tokens, longest), whole, real

    def _inputs(self, captured: Captured) -> tuple[Inputs, Tensor, Tensor]:
        places, tokens, longest = captured.shape
        sizes = [1, 1, places + 2, places + 1, tokens, tokens, tokens, tokens, tokens + 1]
        seed, _, offsets, first, ids, positions, types, order, starts = torch.split(captured.whole, sizes)
        self.pieces.seed = seed
        layout = (order, starts, self.network.shift, longest)
        inputs = Inputs(ids, positions, types, offsets.int(), first, longest, layout)
        share, labels = captured.real[3 : 3 + places], captured.real[3 + places :]
        return inputs, share, labels.view(places, -1).squeeze(-1)

    # Graphs

    def _prepared(self, shape: Shape, part: Part) -> Captured:
        """The graph of this shape, captured if it is new. Capturing works on a batch of filling only."""
        if shape not in self.captured:
            places, tokens, _ = shape
            wide = self.loss.task.outputs if self.loss.task.kind == "multilabel" else 1
            whole = torch.zeros(2 * places + 5 + 5 * tokens + 1, dtype=torch.int64, device=self.hardware.device)
            real = torch.zeros(3 + places * (1 + wide), device=self.hardware.device)
            stages = [Stage(_pinned(whole), _pinned(real), _cuda.Event()) for _ in range(STAGES)]
            self.captured[shape] = Captured(shape, whole, real, stages)
        captured = self.captured[shape]
        if part not in captured.graphs:
            self._capture(captured, part)
        return captured

    def _capture(self, captured: Captured, part: Part) -> None:
        """Run once outside, so that kernels are compiled and libraries have their memory; then capture.

        The dry run must leave no trace: what is pending is settled first, gradients of a step that has begun are
        put aside, and the window is put back.
        """
        if part[0]:
            self.settle()
        kept = [] if part[0] else [group.gradient.clone() for group in self.network.flat.groups()]
        window = (self.window.loss, self.window.grad_norm, self.window.first_bad, self.step_loss, self.scale)
        before = [tensor.clone() for tensor in window]
        places, tokens, _ = captured.shape
        captured.whole.zero_()
        captured.whole[2 + places + 1] = tokens
        captured.whole[-(tokens + 1) :] = tokens
        work: Callable[[], None] = lambda: self._work(captured, part)  # noqa: E731
        side = _cuda.Stream(priority=-1)  # the forward pass goes before the update beside it
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            work()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # With several processes a thread of NCCL's asks for its events all the while, and may.
        mode = "global" if self.synchronized is None else "thread_local"
        with torch.cuda.graph(graph, pool=self.pool, stream=side, capture_error_mode=mode):
            work()
        captured.graphs[part] = graph
        for target, source in zip(window, before, strict=True):
            target.copy_(source)
        self.zero()
        for group, gradient in zip(self.network.flat.groups(), kept, strict=False):
            group.gradient.copy_(gradient)

    def _replay(self, captured: Captured, part: Part, whole: Any, real: Any) -> None:
        stage = captured.stages[captured.turn % STAGES]
        captured.turn += 1
        stage.copied.synchronize()  # only waits if the host is four steps ahead
        stage.whole.numpy()[:] = whole
        stage.real.numpy()[:] = real
        captured.whole.copy_(stage.whole, non_blocking=True)
        captured.real.copy_(stage.real, non_blocking=True)
        stage.copied.record()
        # Attention and the head draw from torch's generator, which a replay reads the seed of.
        torch.cuda.default_generators[self.hardware.device.index or 0].manual_seed(int(whole[0]))
        captured.graphs[part].replay()

    def _work(self, captured: Captured, part: Part) -> None:
        """What a graph holds: the pending update beside the forward pass, backward, and the norm."""
        first, last = part
        ready = self._update_beside(captured.real[:3]) if first else []
        self.network.encoder.before_layer = ready
        inputs, share, labels = self._inputs(captured)
        self.pieces.add = not first
        hidden = self.network.encoder.first_hidden(inputs, training=True, add=not first)
        self.network.encoder.before_layer = []  # events of a capture mean nothing outside of it
        if ready:
            torch.cuda.current_stream().wait_event(ready[-1])
        logits = head_logits(self.model, hidden[: share.shape[0]])
        if self.loss.task.kind in ("binary", "multiclass"):
            labels = labels.long()
        loss = (self.loss.rows(logits, labels) * share).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        self.step_loss.copy_(loss.detach()) if first else self.step_loss.add_(loss.detach())
        if last:
            self._note(captured.whole[1])

    # The update

    def _update_beside(self, rule: Tensor) -> list[torch.cuda.Event]:
        """The pending update on its own stream; an event for the embeddings, one a layer, one for the rest."""
        main = torch.cuda.current_stream()
        self.beside.wait_stream(main)
        ready: list[torch.cuda.Event] = []
        flat = self.network.flat
        with torch.cuda.stream(self.beside):
            for mark, group, start, end in self._segments():
                self._update_span(group, start, end, rule)
                if group is flat.small:
                    flat.zero_head()
                if mark == "embeddings":
                    flat.matrices.gradient[flat.matrices.computes_until :].zero_()
                if mark:
                    ready.append(_cuda.Event())
                    ready[-1].record(self.beside)
        return ready

    def _segments(self) -> list[tuple[str, Group, int, int]]:
        """Spans in the order in which the forward pass needs them. Biases and norms are small and come first."""
        flat = self.network.flat
        matrices, small = flat.matrices, flat.small
        spans = [("", small, 0, small.size), ("embeddings", matrices, matrices.computes_until, matrices.size)]
        layers = len(flat.layers)
        each = matrices.computes_until // layers
        return spans + [(f"layer {k}", matrices, k * each, (k + 1) * each) for k in range(layers)]

    def _update_span(self, group: Group, start: int, end: int, rule: Tensor) -> None:
        chosen = self.rule
        kernels.adamw[(min(UPDATE_PROGRAMS, -(-(end - start) // BLOCK)),)](
            group.master, group.first, group.second, group.gradient, group.compute, self.scale, rule,
            start, end, group.decays_until, group.computes_until,
            chosen.beta1, 1 - chosen.beta1, chosen.beta2, 1 - chosen.beta2, chosen.epsilon, chosen.weight_decay,
            BLOCK=BLOCK, COPY=group.compute is not group.master,
        )  # fmt: skip

    def _note(self, step: Tensor) -> None:
        """Norm, clipping factor and window of a step whose gradients are complete."""
        window = self.window
        for index, group in enumerate(self.network.flat.groups()):
            partial = self.partial[index * NORM_PROGRAMS : (index + 1) * NORM_PROGRAMS]
            kernels.squares[(NORM_PROGRAMS,)](group.gradient, group.size, partial, BLOCK=4096, num_warps=8)
        kernels.note[(1,)](
            self.partial, self.step_loss, step, window.loss, window.grad_norm, window.first_bad,
            self.scale, self.clip, COUNT=2 * NORM_PROGRAMS,
        )  # fmt: skip


def _never(batch: Any) -> Tensor:
    raise AssertionError("a captured step has its own loss")


def _pinned(like: Tensor) -> Tensor:
    return torch.zeros_like(like, device="cpu").pin_memory()
