"""Forward passes on CUDA by replay, for networks that only predict.

A batch is a hundred launches and more, which take the host longer than its tokens take the device. So batches are
filled up to one of a few sizes, and the launches of a size are captured when it comes for the second time: the first
time they are launched one by one, on the same filled batch, for the same bits. Filling belongs to no row, and nothing
reads it; rows that are not there are empty.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whet.engine.fused.architectures import Shape
from whet.engine.fused.cuda.layers import CudaLayerOps
from whet.engine.fused.encoder import Encoder, Inputs
from whet.engine.fused.parameters import FlatModel

MIN_TOKENS, MAX_TOKENS = 1024, 16384
"""Smaller batches are filled up to the one; larger ones than the other keep the device busy while they are launched."""
MAX_ROWS = 1024
LENGTH_BUCKET = 128

# torch's own annotations leave these untyped.
_cuda: Any = torch.cuda

Size = tuple[int, int]
"""Tokens, and the longest row, both rounded up."""


def capture(work: Callable[[], None], stream: Any, pool: Any, device: torch.device) -> torch.cuda.CUDAGraph:
    """What `work` launches, as a graph. It has run before, so that kernels are compiled and libraries have memory."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info(device)
    if free < total // 4:  # nothing can be given back while a graph is captured
        torch.cuda.empty_cache()
    # Not by `torch.cuda.graph`, which does so every time: what it gives back must be asked for again.
    with torch.cuda.stream(stream):
        # Other threads may go on meanwhile: one writes checkpoints, one of NCCL's asks for its events.
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            work()
        finally:
            graph.capture_end()
    return graph


@dataclass
class Forward:
    """A size: its static inputs, where the result lies, and the graph once it is captured."""

    inputs: Inputs
    hidden: Tensor
    graph: torch.cuda.CUDAGraph | None = None

    def fill(self, inputs: Inputs) -> None:
        static, tokens, rows = self.inputs, inputs.ids.shape[0], inputs.first.shape[0]
        static.ids[:tokens].copy_(inputs.ids)
        static.positions[:tokens].copy_(inputs.positions)
        assert static.types is not None
        static.types.zero_() if inputs.types is None else static.types[:tokens].copy_(inputs.types)
        static.offsets[: rows + 1].copy_(inputs.offsets)
        static.offsets[rows + 1 :].fill_(tokens)
        static.first[:rows].copy_(inputs.first)


class ReplayedEncoder(Encoder):
    """An encoder that is not trained. Threads may share it."""

    def __init__(self, flat: FlatModel, shape: Shape, pieces: CudaLayerOps) -> None:
        super().__init__(flat, shape, pieces)
        self.device = pieces.device
        self._stream, self._pool = _cuda.Stream(self.device), torch.cuda.graph_pool_handle()
        self._forwards: dict[Size, Forward] = {}
        self._lock = threading.Lock()

    def first_hidden(self, inputs: Inputs, *, training: bool, add: bool = False) -> Tensor:
        assert not training
        asking = torch.cuda.current_stream(self.device)
        with self._lock, self._beside(asking):  # until the result is copied: the next replay writes where it lies
            size, rows = _size(inputs), inputs.first.shape[0]
            if size[0] > MAX_TOKENS or rows > MAX_ROWS:
                hidden = super().first_hidden(inputs, training=False)
            else:
                hidden = self._replayed(inputs, size)[:rows].float().unsqueeze(1)
            hidden.record_stream(asking)
            return hidden

    def _replayed(self, inputs: Inputs, size: Size) -> Tensor:
        forward = self._forwards.get(size) or Forward(_filling(*size, self.device), torch.empty(0))
        if size in self._forwards and forward.graph is None:
            self._capture(forward)
        forward.fill(inputs)
        forward.graph.replay() if forward.graph else self._launch(forward)
        self._forwards[size] = forward  # only now: what ran out of memory has not been run before
        return forward.hidden

    @contextmanager
    def _beside(self, asking: Any) -> Iterator[None]:
        """All on the one stream that captures: every stream has memory of its own."""
        self._stream.wait_stream(asking)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:  # memory that is let go of now is still being read there
            asking.wait_stream(self._stream)

    def _launch(self, forward: Forward) -> None:
        forward.hidden = self._forward(forward.inputs, None)

    def _capture(self, forward: Forward) -> None:
        # What launches were computed in: from now on such batches have the graph's own memory.
        torch.cuda.empty_cache()
        forward.graph = capture(lambda: self._launch(forward), self._stream, self._pool, self.device)


def _size(inputs: Inputs) -> Size:
    tokens = max(inputs.ids.shape[0], MIN_TOKENS)
    return 1 << (tokens - 1).bit_length(), -(-inputs.longest // LENGTH_BUCKET) * LENGTH_BUCKET


def _filling(tokens: int, longest: int, device: torch.device) -> Inputs:
    """A batch of as many rows as there may be, all of them empty."""
    rows = min(tokens, MAX_ROWS)
    ids, positions, types = (torch.zeros(tokens, dtype=torch.int64, device=device) for _ in range(3))
    offsets = torch.zeros(rows + 1, dtype=torch.int32, device=device)
    first = torch.zeros(rows, dtype=torch.int64, device=device)
    return Inputs(ids, positions, types, offsets, first, longest, None)
