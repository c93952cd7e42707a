"""The CUDA path on a machine without a GPU: real kernels in Triton's interpreter, and the real stepper around them.

What is stood in for: flash attention (written out in torch), CUDA graphs (a replay runs the captured function again),
streams and events (there is one queue). Every address that a kernel reads or writes must lie in one of its tensors;
on a GPU a kernel that misses them changes its neighbours silently. Imported by processes of its own: what is patched
here is patched for good; with TRITON_INTERPRET=1, which Triton reads when a kernel is defined.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import triton.language as tl
from torch import Tensor
from triton.runtime import interpreter

from whet.config import TrainConfig
from whet.data.tokens.table import Tokens
from whet.distributed.group import DistributedContext
from whet.engine.dispatch import max_tokens, used_ids
from whet.engine.fused.architectures import shape_of
from whet.engine.fused.cuda import layers
from whet.engine.fused.cuda.graph_stepper import GraphStepper
from whet.engine.fused.encoder import Encoder
from whet.engine.fused.network import FusedNetwork
from whet.engine.losses import Loss
from whet.utils.device import Hardware


class Nothing:
    """A stream or an event where everything happens in order anyway."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


class Replayed:
    """What `torch.cuda.CUDAGraph` becomes."""

    work: Any

    def capture_begin(self, **_: Any) -> None:
        self.work = sys._getframe(1).f_locals["work"]  # of `capture`

    def capture_end(self) -> None: ...

    def replay(self) -> None:
        self.work()


cuda: Any = torch.cuda
cuda.Event = cuda.Stream = Nothing
cuda.CUDAGraph, cuda.graph_pool_handle, cuda.synchronize = Replayed, lambda: None, lambda *_: None
cuda.mem_get_info, cuda.device = lambda *_: (1, 1), lambda _: contextlib.nullcontext()
cuda.current_stream, cuda.stream = Nothing, lambda _: contextlib.nullcontext()
cuda.default_generators = (torch.default_generator,)
torch.Tensor.pin_memory = lambda self: self  # type: ignore[method-assign]


class Attention:
    """Flash attention's two calls, row by row. What is dropped is drawn from torch's generator, as it is there."""

    @staticmethod
    def _flash_attention_forward(
        query: Tensor, keys: Tensor, values: Tensor, asked: Tensor, offsets: Tensor, *rest: Any, scale: float
    ) -> Any:
        rate = rest[2]
        spans = list(zip(asked.tolist(), asked.tolist()[1:], offsets.tolist(), offsets.tolist()[1:], strict=False))
        masks = [(torch.rand(query.shape[1], b - a, d - c) >= rate) / (1 - rate) for a, b, c, d in spans]
        with torch.no_grad():
            return attended(query, keys, values, spans, masks, scale), torch.zeros(1), (spans, masks), None

    @staticmethod
    def _flash_attention_backward(
        gradient: Tensor, query: Tensor, keys: Tensor, values: Tensor, *rest: Any, scale: float
    ) -> Any:
        spans, masks = rest[8]
        with torch.enable_grad():
            inputs = [each.detach().clone().requires_grad_() for each in (query, keys, values)]
            return torch.autograd.grad(attended(*inputs, spans, masks, scale), inputs, gradient)


def attended(
    query: Tensor, keys: Tensor, values: Tensor, spans: Sequence[Any], masks: Sequence[Tensor], scale: float
) -> Tensor:
    found = []
    for (a, b, c, d), mask in zip(spans, masks, strict=True):
        weights = torch.einsum("qhd,khd->hqk", query[a:b].float(), keys[c:d].float()) * scale
        found.append(torch.einsum("hqk,khd->qhd", weights.softmax(-1) * mask, values[c:d].float()))
    return torch.cat(found).to(query.dtype)


layers.aten = Attention


class Bounds:
    """Where the tensors of the running kernel lie, and whether each access is in one of them."""

    kernel = ""
    spans: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, executor: Any, given: Any, named: Any) -> Any:
        tensors, settings = begin(executor, given, named)
        storages = [each.untyped_storage() for each in tensors if isinstance(each, torch.Tensor)]
        cls.kernel = executor.fn.__name__
        cls.spans = tuple((each.data_ptr(), each.data_ptr() + each.nbytes()) for each in storages)
        return tensors, settings

    @classmethod
    def hold(cls, pointers: Any, mask: Any) -> None:
        size = pointers.get_element_ty().primitive_bitwidth // 8
        at = pointers.data[np.broadcast_to(mask.data, pointers.data.shape)].astype(np.int64)
        good = np.any([(at >= start) & (at + size <= end) for start, end in cls.spans], axis=0)
        if not np.all(good):
            raise AssertionError(f"{cls.kernel} leaves its tensors in {np.sum(~good)} of {at.size} places")


builder: Any = interpreter.InterpreterBuilder
begin, read, written, product = (
    interpreter.GridExecutor._init_args_hst,
    builder.create_masked_load,
    builder.create_masked_store,
    builder.create_dot,
)


def widened_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
    """bf16 is kept as whole numbers of 16 bits there, and a product would multiply those."""
    wide = (self.cast_impl(each, tl.float32) if each.dtype == tl.bfloat16 else each for each in (a, b))
    return product(self, *wide, *rest)


def checked_load(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
    Bounds.hold(pointers, mask)
    return read(self, pointers, mask, *rest)


def checked_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
    Bounds.hold(pointers, mask)
    return written(self, pointers, value, mask, *rest)


interpreter.GridExecutor._init_args_hst = lambda *given: Bounds.of(*given)
builder.create_masked_load, builder.create_masked_store = checked_load, checked_store
builder.create_dot = widened_dot


def captured_path(
    model: Any, loss: Loss, config: TrainConfig, hardware: Hardware, tokens: Sequence[Tokens], ranks: DistributedContext
) -> tuple[FusedNetwork, GraphStepper]:
    """What `choose_path` makes on CUDA, on the CPU."""
    network = FusedNetwork(model, hardware, used_ids(tokens, model.config.vocab_size), seed=config.seed)
    most = (config.batch_size, max_tokens(tokens[0], config.batch_size))
    room = layers.partial_elements(shape_of(model).hidden, *most)
    network.pieces = layers.CudaLayerOps(network.flat.small, room)
    network.encoder = Encoder(network.flat, shape_of(model), network.pieces)
    stepper = GraphStepper(network, loss, config, hardware)
    if ranks.world > 1:
        stepper.rank, stepper.synchronized = ranks.rank, ranks.sum_in_place
    return network, stepper
