"""Layer operations on CUDA: Triton kernels, and torch's flash attention for long rows."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from whet.engine.fused.architectures import Shape
from whet.engine.fused.cuda import layer_kernels as kernels
from whet.engine.fused.cuda.attention import (
    Saved,
    fits,
    short_attention,
    short_attention_backward,
    sums_of_short_attention,
)
from whet.engine.fused.cuda.layer_kernels import COLUMN_TILE, ROW_TILE
from whet.engine.fused.cuda.side_stream import SideStream
from whet.engine.fused.encoder import Inputs, Pair, weight_gradient
from whet.engine.fused.parameters import FlatModel, Group
from whet.utils.device import fixed_order

aten = torch.ops.aten
NORM_PROGRAMS, NORM_ROWS = 224, 4
TYPE_TILE = 32
REGIONS = 3
"""Regions of partial sums. A layer reuses the region of three layers before, whose sums are complete by then."""


class CudaLayerOps:
    """Layer operations that stay on the device. Sums over tokens are deferred and added once per layer."""

    def __init__(self, small: Group, partial_elements: int) -> None:
        self.device = device = small.device
        self._small = small
        self._rounded = torch.zeros(0)
        self.seed = torch.zeros((), dtype=torch.int64, device=device)
        self.training = False
        self.add = False
        self._partials = torch.zeros(partial_elements, device=device)
        self._region = self._used = 0
        self._jobs: list[tuple[int, int, int, int]] = []
        self._tables: dict[tuple[Any, ...], Tensor] = {}
        self._expected = (0, 0, 0)
        self._beside = SideStream(device)
        """Computes gradients of weights: the backward pass does not need them, and on few tokens it does not fill the
        device."""
        self.side_stream = self._beside.stream

    def start(self, training: bool) -> None:
        self.training = training
        self._region = self._used = 0
        self._jobs = []
        # All biases are rounded at once: a product takes its bias in its own type.
        self._rounded = self._small.master.to(torch.bfloat16)

    # Embeddings

    def embed(self, flat: FlatModel, inputs: Inputs, shape: Shape, key: int) -> tuple[Tensor, Any]:
        tokens, width = inputs.ids.shape[0], shape.hidden
        y = torch.empty(tokens, width, dtype=flat.matrices.compute_type, device=self.device)
        total = torch.empty(tokens, width, device=self.device)
        mean, rstd = torch.empty(2, tokens, device=self.device)
        typed = flat.has("embeddings.token_type_embeddings.weight")
        word = flat.weight("embeddings.word_embeddings.weight")
        types = torch.zeros_like(inputs.ids) if inputs.types is None else inputs.types
        kernels.embed_forward[(tokens,)](
            inputs.ids, inputs.positions, types, word,
            flat.weight("embeddings.position_embeddings.weight"),
            flat.weight("embeddings.token_type_embeddings.weight") if typed else word,
            flat.weight("embeddings.LayerNorm.weight"), flat.weight("embeddings.LayerNorm.bias"),
            y, total, mean, rstd, self.seed, shape.dropout, shape.epsilon,
            WIDTH=width, BLOCK=_block(width), DROP=self._drops(shape.dropout), TYPED=typed,
        )  # fmt: skip
        return y, (total, mean, rstd, shape)

    def embed_backward(self, flat: FlatModel, inputs: Inputs, gradient: Tensor, saved: Any, add: bool) -> None:
        total, mean, rstd, shape = saved
        tokens, width = total.shape
        d_total = torch.empty_like(total)
        gamma, beta = flat.gradient("embeddings.LayerNorm.weight"), flat.gradient("embeddings.LayerNorm.bias")
        partial = self._reserve_partial_sums((gamma, beta), NORM_PROGRAMS, width)
        kernels.embed_backward[(NORM_PROGRAMS,)](
            gradient, total, mean, rstd, flat.weight("embeddings.LayerNorm.weight"), d_total, partial,
            self.seed, shape.dropout, tokens,
            WIDTH=width, BLOCK=_block(width), ROWS=NORM_ROWS, DROP=self._drops(shape.dropout),
        )  # fmt: skip
        wide = {"WIDTH": width, "BLOCK": _block(width), "ADD": add}
        order, starts, *_ = inputs.layout
        word = flat.gradient("embeddings.word_embeddings.weight")
        self._beside.run(lambda: self._sum_by_place_and_type(flat, inputs, d_total, wide), d_total)
        kernels.sum_by_word[(tokens,)](d_total, order, starts, inputs.ids, word, **wide)

    def _sum_by_place_and_type(self, flat: FlatModel, inputs: Inputs, d_total: Tensor, wide: dict[str, Any]) -> None:
        tokens, width = d_total.shape
        _, _, shift, positions = inputs.layout
        place, add = flat.gradient("embeddings.position_embeddings.weight"), wide["ADD"]
        rows = inputs.offsets.shape[0] - 1
        places = min(positions, place.shape[0] - shift)  # rounded up, it may exceed the model's positions
        kernels.sum_by_position[(places,)](d_total, inputs.offsets, place, rows, SHIFT=shift, **wide)
        if flat.has("embeddings.token_type_embeddings.weight"):
            types = torch.zeros_like(inputs.ids) if inputs.types is None else inputs.types
            kinds = flat.gradient("embeddings.token_type_embeddings.weight")
            grid = (kinds.shape[0], -(-width // TYPE_TILE))
            kernels.sum_by_type[grid](
                d_total, types, kinds, tokens, WIDTH=width, TILE=TYPE_TILE, ROWS=256, ADD=add, num_warps=8
            )

    # Attention

    def attention(self, qkv: Tensor, inputs: Inputs, shape: Shape, key: int) -> tuple[Tensor, Any]:
        if fits(shape, inputs.longest):
            return self._short(qkv.chunk(3, 1), inputs, shape, key, first=False)
        query, keys, values = qkv.view(-1, 3, shape.heads, shape.width).unbind(1)
        return self._flash(query, keys, values, inputs.offsets, inputs.longest, inputs, shape)

    def attention_backward(self, gradient: Tensor, saved: Any) -> Tensor:
        """Return the three gradients side by side; the same kernel writes the partial sums for `column_sums`."""
        if not isinstance(saved, Saved):
            return self._joined(self._flash_backward(gradient, saved))
        joined = torch.empty(gradient.shape[0], 3 * gradient.shape[1], dtype=gradient.dtype, device=self.device)
        self._short_backward(gradient, saved, joined, joined.chunk(3, 1))
        return joined

    def attention_of_first(
        self, query: Tensor, keys_values: Tensor, inputs: Inputs, shape: Shape, key: int
    ) -> tuple[Tensor, Any]:
        if fits(shape, inputs.longest):
            return self._short((query, *keys_values.chunk(2, 1)), inputs, shape, key, first=True)
        keys, values = keys_values.view(-1, 2, shape.heads, shape.width).unbind(1)
        each = torch.arange(query.shape[0] + 1, dtype=torch.int32, device=self.device)
        asked = query.view(-1, shape.heads, shape.width)
        return self._flash(asked, keys, values, each, 1, inputs, shape)

    def attention_of_first_backward(self, gradient: Tensor, saved: Any) -> tuple[Tensor, Tensor]:
        if not isinstance(saved, Saved):
            d_query, d_keys, d_values = self._flash_backward(gradient, saved)
            return d_query.reshape(d_query.shape[0], -1), self._joined((d_keys, d_values))
        tokens, width = saved.keys.shape
        joined = torch.empty(tokens, 2 * width, dtype=gradient.dtype, device=self.device)
        d_query = torch.empty_like(gradient)
        self._short_backward(gradient, saved, joined, (d_query, *joined.chunk(2, 1)))
        return d_query, joined

    def _short(
        self, asked: tuple[Tensor, ...], inputs: Inputs, shape: Shape, key: int, *, first: bool
    ) -> tuple[Tensor, Saved]:
        rate = shape.attention_dropout if self.training else 0.0
        return short_attention(asked, inputs.offsets, inputs.longest, shape, (self.seed, key, rate), first=first)

    def _short_backward(self, gradient: Tensor, saved: Saved, joined: Tensor, into: tuple[Tensor, ...]) -> None:
        sums = sums_of_short_attention(saved)
        partial = self._expect(joined, sums).view(sums, joined.shape[1])
        short_attention_backward(gradient, saved, into, partial)

    def _flash(
        self, query: Tensor, keys: Tensor, values: Tensor, asked: Tensor, longest: int, inputs: Inputs, shape: Shape
    ) -> tuple[Tensor, Any]:
        rate = shape.attention_dropout if self.training else 0.0
        scale = shape.width**-0.5
        offsets = inputs.offsets[: asked.shape[0]]
        result = aten._flash_attention_forward(
            query, keys, values, asked, offsets, longest, inputs.longest, rate, False, False, scale=scale
        )
        context, *state = result[:4]
        saved = (query, keys, values, context, state, asked, offsets, longest, inputs.longest, rate, scale)
        return context.view(query.shape[0], -1), saved

    def _flash_backward(self, gradient: Tensor, saved: Any) -> Any:
        query, keys, values, context, state, asked, offsets, longest, reach, rate, scale = saved
        logsumexp, random_state, unused = state
        with fixed_order():
            return aten._flash_attention_backward(
                gradient.view_as(context), query, keys, values, context, logsumexp, asked, offsets, longest, reach,
                rate, False, random_state, unused, scale=scale,
            )  # fmt: skip

    def _joined(self, parts: tuple[Tensor, ...]) -> Tensor:
        rows, part = parts[0].shape[0], parts[0].shape[1] * parts[0].shape[2]
        width = part * len(parts)
        joined = torch.empty(rows, width, dtype=parts[0].dtype, device=self.device)
        tiles = -(-rows // ROW_TILE)
        kernels.join_columns[(tiles, -(-width // COLUMN_TILE))](
            parts[0], parts[1], parts[-1], joined, self._expect(joined, tiles), rows,
            PART=part, PARTS=len(parts), ROWS=ROW_TILE, TILE=COLUMN_TILE,
        )  # fmt: skip
        return joined

    def _expect(self, gradient: Tensor, programs: int) -> Tensor:
        """Reserve memory for the partial column sums of this gradient, for the next call of `column_sums`."""
        partial = self._take(programs * gradient.shape[1])
        self._expected = (gradient.data_ptr(), int(partial.storage_offset()), programs)
        return partial

    # The rest of a layer

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        start = int(bias.storage_offset())
        return F.linear(x, weight, self._rounded[start : start + bias.shape[0]])

    def project(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return the product without the bias, which the next kernel adds."""
        return torch.mm(x, weight.t())

    def activate(self, x: Tensor, bias: Tensor, shape: Shape) -> Tensor:
        y = torch.empty_like(x) if self.training else x  # only the backward pass reads it again
        elements = x.numel()
        kernels.activate_forward[(-(-elements // 1024),)](
            x, bias, y, elements, WIDTH=x.shape[1], BLOCK=1024, TANH=shape.gelu == "tanh"
        )
        return y

    def activate_backward(
        self, gradient: Tensor, x: Tensor, bias: Tensor, shape: Shape, into: Tensor, add: bool
    ) -> Tensor:
        rows, width = x.shape
        d_x = torch.empty_like(x)
        tiles = -(-rows // ROW_TILE)
        partial = self._reserve_partial_sums((into,), tiles, width)
        kernels.activate_backward[(tiles, -(-width // COLUMN_TILE))](
            gradient, x, bias, d_x, partial, rows,
            WIDTH=width, ROWS=ROW_TILE, TILE=COLUMN_TILE, TANH=shape.gelu == "tanh",
        )  # fmt: skip
        return d_x

    def norm(
        self, x: Tensor, bias: Tensor, residual: Tensor, weights: Pair, rate: float, shape: Shape, key: int
    ) -> tuple[Tensor, Any]:
        rows, width = x.shape
        y, total = torch.empty_like(x), torch.empty_like(x)
        # Each starts at an aligned address, also for few rows; otherwise the kernels are compiled again.
        mean, rstd = torch.empty(2, -(-rows // 4) * 4, device=self.device)
        kernels.norm_forward[(rows,)](
            x, bias, residual, *weights, y, total, mean, rstd, self.seed, key, rate, shape.epsilon,
            WIDTH=width, BLOCK=_block(width), DROP=self._drops(rate),
        )  # fmt: skip
        return y, (total, mean, rstd, weights[0], rate, key)

    def norm_backward(
        self, gradient: Tensor, saved: Any, into: tuple[Tensor, Tensor, Tensor], add: bool
    ) -> tuple[Tensor, Tensor]:
        total, mean, rstd, gamma, rate, key = saved
        rows, width = total.shape
        d_x, d_total = torch.empty_like(total), torch.empty_like(total)
        programs = min(NORM_PROGRAMS, -(-rows // NORM_ROWS))
        partial = self._reserve_partial_sums(into, programs, width)
        kernels.norm_backward[(programs,)](
            gradient, total, mean, rstd, gamma, d_x, d_total, partial, self.seed, key, rate, rows,
            WIDTH=width, BLOCK=_block(width), ROWS=NORM_ROWS, DROP=self._drops(rate),
        )  # fmt: skip
        return d_x, d_total

    def weight_gradient(self, gradient: Tensor, x: Tensor, into: Tensor, add: bool) -> None:
        self._beside.run(lambda: weight_gradient(gradient, x, into, add), gradient, x)

    def column_sums(self, x: Tensor, into: Tensor, add: bool) -> None:
        pointer, start, programs = self._expected
        if pointer == x.data_ptr():
            self._jobs.append((start, programs, x.shape[1], int(into.storage_offset())))
            self._expected = (0, 0, 0)
            return
        into.add_(x.sum(0, dtype=torch.float32)) if add else torch.sum(x, 0, dtype=torch.float32, out=into)

    def finish_layer(self) -> None:
        self._beside.run(self._reduce_partial_sums)
        self._region = (self._region + 1) % REGIONS
        self._used = self._region * (self._partials.numel() // REGIONS)

    def finish_backward(self) -> None:
        self._reduce_partial_sums()
        self._beside.join()

    def _reduce_partial_sums(self) -> None:
        """Add all deferred sums in one kernel."""
        jobs, self._jobs = self._jobs, []
        key = (self.add, *jobs)
        if key not in self._tables:
            self._tables[key] = torch.tensor(jobs, dtype=torch.int64).to(self.device)
        widest = max(job[2] for job in jobs)
        grid = (len(jobs), -(-widest // 128))
        kernels.add_up[grid](self._partials, self._tables[key], self._small.gradient, TILE=128, DEEP=32, ADD=self.add)

    def _reserve_partial_sums(self, into: tuple[Tensor, ...], programs: int, width: int) -> Tensor:
        partial = self._take(programs * width * len(into))
        for index, target in enumerate(into):
            start = int(partial.storage_offset()) + index * programs * width
            self._jobs.append((start, programs, width, int(target.storage_offset())))
        return partial

    def _take(self, elements: int) -> Tensor:
        start, self._used = self._used, self._used + elements
        if self._used > (self._region + 1) * (self._partials.numel() // REGIONS):
            raise RuntimeError("the buffer for partial sums is too small")
        return self._partials[start : self._used]

    def _drops(self, rate: float) -> bool:
        return self.training and rate > 0


def partial_elements(hidden: int, rows: int, tokens: int) -> int:
    """Return the memory for the partial sums of several layers' backward passes over this many rows and tokens."""
    tiles = -(-tokens // ROW_TILE)
    return REGIONS * hidden * (2 * 3 * NORM_PROGRAMS + max(tiles, rows + 1) * (4 + 3 + 1) * 2)


def _block(width: int) -> int:
    return 1 << (width - 1).bit_length()
