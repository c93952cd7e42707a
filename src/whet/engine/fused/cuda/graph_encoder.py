"""Forward passes on CUDA by replay, for networks that only predict.

A batch needs a hundred launches or more, which take the host longer than the device needs to compute them. So batches
are padded to a few sizes. The first batch of a size is launched kernel by kernel, and its launches are captured when
the size occurs again; the padded batch is the same, and so are the bits. The filling belongs to no row and is not
read; missing rows are empty.
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
from whet.utils.cuda_streams import stream_of

MIN_TOKENS, MAX_TOKENS = 1024, 16384
"""Smaller batches are filled up to the first number of tokens. Batches above the second keep the device busy without
a graph."""
MAX_ROWS = 1024
LENGTH_BUCKET = 128

# torch has no type annotations for these.
_cuda: Any = torch.cuda

Size = tuple[int, int]
"""The number of tokens and the longest row, both rounded up."""


def capture(work: Callable[[], None], stream: Any, pool: Any, device: torch.device) -> torch.cuda.CUDAGraph:
    """Capture the launches of `work` as a graph. It must have run before, so that kernels are compiled and memory
    exists."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info(device)
    if free < total // 4:  # no memory can be freed during a capture
        torch.cuda.empty_cache()
    # `torch.cuda.graph` is not used here: it frees cached memory at each call, which must then be allocated again.
    with torch.cuda.stream(stream):
        # Thread-local mode: other threads, for example NCCL's or the one that saves, may call CUDA meanwhile.
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            work()
        finally:
            graph.capture_end()
    return graph


@dataclass
class Forward:
    """One size: its static inputs, its result, and the graph once it is captured."""

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
    """An encoder for prediction. Threads may share it."""

    def __init__(self, flat: FlatModel, shape: Shape, pieces: CudaLayerOps) -> None:
        super().__init__(flat, shape, pieces)
        self.device = pieces.device
        self._stream, self._pool = stream_of(self, self.device), torch.cuda.graph_pool_handle()
        self._forwards: dict[Size, Forward] = {}
        self._lock = threading.Lock()

    def first_hidden(self, inputs: Inputs, *, training: bool, add: bool = False) -> Tensor:
        assert not training
        asking = torch.cuda.current_stream(self.device)
        with self._lock, self._beside(asking):  # held until the result is copied: the next replay overwrites it
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
        self._forwards[size] = forward  # set only now: a size that ran out of memory counts as not run
        return forward.hidden

    @contextmanager
    def _beside(self, asking: Any) -> Iterator[None]:
        """Run on the capturing stream: every stream has its own memory."""
        self._stream.wait_stream(asking)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:  # memory that is freed now is still being read there
            asking.wait_stream(self._stream)

    def _launch(self, forward: Forward) -> None:
        forward.hidden = self._forward(forward.inputs, None)

    def _capture(self, forward: Forward) -> None:
        # Memory of the uncaptured launches is freed: such batches use the graph's own memory from here on.
        torch.cuda.empty_cache()
        forward.graph = capture(lambda: self._launch(forward), self._stream, self._pool, self.device)


def _size(inputs: Inputs) -> Size:
    tokens = max(inputs.ids.shape[0], MIN_TOKENS)
    return 1 << (tokens - 1).bit_length(), -(-inputs.longest // LENGTH_BUCKET) * LENGTH_BUCKET


def _filling(tokens: int, longest: int, device: torch.device) -> Inputs:
    """Return a batch with the largest number of rows, all of them empty."""
    rows = min(tokens, MAX_ROWS)
    ids, positions, types = (torch.zeros(tokens, dtype=torch.int64, device=device) for _ in range(3))
    offsets = torch.zeros(rows + 1, dtype=torch.int32, device=device)
    first = torch.zeros(rows, dtype=torch.int64, device=device)
    return Inputs(ids, positions, types, offsets, first, longest, None)
