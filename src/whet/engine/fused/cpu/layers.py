"""Layer operations on the CPU, in torch operations.

Dropout masks compare 16 random bits per element, drawn by numpy, because `bernoulli_` draws 64 bits per element on
one thread. The rate is exact to 1/65536, and the kept values are scaled by the exact kept share.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from whet.engine.fused.architectures import Shape
from whet.engine.fused.encoder import Inputs, Pair, weight_gradient
from whet.engine.fused.parameters import FlatModel
from whet.engine.packed import Layout

aten = torch.ops.aten
DRAWN_AT_ONCE = 1 << 17


class Attended(NamedTuple):
    """Values of the attention that the backward pass needs."""

    query: Tensor
    keys: Tensor
    values: Tensor
    shares: Tensor
    mask: Tensor | None

    def kept(self) -> Tensor:
        return self.shares if self.mask is None else self.shares * self.mask


class CpuLayerOps:
    """Layer operations with torch and oneDNN; there is padding only inside attention."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.step = 0
        self.micro = 0
        self.training = False
        self._bits = np.random.SFC64(0)
        self._touched: list[tuple[Tensor, Tensor]] = []

    def start(self, training: bool) -> None:
        self.training = training
        if training:
            self._bits = np.random.SFC64(np.random.SeedSequence([self.seed, self.step, self.micro]))

    # Embeddings

    def embed(self, flat: FlatModel, inputs: Inputs, shape: Shape, key: int) -> tuple[Tensor, Any]:
        total = flat.weight("embeddings.word_embeddings.weight").index_select(0, inputs.ids)
        total += flat.weight("embeddings.position_embeddings.weight").index_select(0, inputs.positions)
        if flat.has("embeddings.token_type_embeddings.weight"):
            table = flat.weight("embeddings.token_type_embeddings.weight")
            total += table[0] if inputs.types is None else table.index_select(0, inputs.types)
        gamma, beta = flat.weight("embeddings.LayerNorm.weight"), flat.weight("embeddings.LayerNorm.bias")
        y, mean, rstd = aten.native_layer_norm(total, [shape.hidden], gamma, beta, shape.epsilon)
        mask = self._mask(y.shape, shape.dropout, torch.float32)
        hidden = y if mask is None else y * mask
        return hidden.to(flat.matrices.compute_type), (total, mean, rstd, mask)

    def embed_backward(self, flat: FlatModel, inputs: Inputs, gradient: Tensor, saved: Any, add: bool) -> None:
        total, mean, rstd, mask = saved
        d_y = gradient.float() if mask is None else gradient.float() * mask
        gamma, beta = flat.weight("embeddings.LayerNorm.weight"), flat.weight("embeddings.LayerNorm.bias")
        d_total, d_gamma, d_beta = aten.native_layer_norm_backward(
            d_y, total, [total.shape[1]], mean, rstd, gamma, beta, [True, True, True]
        )
        put(flat.gradient("embeddings.LayerNorm.weight"), d_gamma, add)
        put(flat.gradient("embeddings.LayerNorm.bias"), d_beta, add)
        count = len(inputs.layout.slots)
        d_total, ids = d_total[:count], inputs.ids[:count]
        self._put_rows(flat.gradient("embeddings.word_embeddings.weight"), ids, d_total, add)
        self._put_rows(flat.gradient("embeddings.position_embeddings.weight"), inputs.positions[:count], d_total, add)
        if flat.has("embeddings.token_type_embeddings.weight"):
            types = torch.zeros_like(ids) if inputs.types is None else inputs.types[:count]
            self._put_rows(flat.gradient("embeddings.token_type_embeddings.weight"), types, d_total, add)

    def clean(self) -> None:
        """Zero the embedding rows that this step touched, which is cheaper than zeroing the whole table."""
        for table, rows in self._touched:
            table.index_fill_(0, rows, 0)
        self._touched.clear()

    def _put_rows(self, into: Tensor, rows: Tensor, values: Tensor, add: bool) -> None:
        """Sum values by row and write the touched rows; `clean` has zeroed all others."""
        unique, place = torch.unique(rows, return_inverse=True)
        sums = torch.zeros(len(unique), values.shape[1]).index_add_(0, place, values)
        if add:
            sums += into.index_select(0, unique).float()
        into.index_copy_(0, unique, sums.to(into.dtype))
        self._touched.append((into, unique))

    # Attention

    def attention(self, qkv: Tensor, inputs: Inputs, shape: Shape, key: int) -> tuple[Tensor, Any]:
        layout: Layout = inputs.layout
        grid = onto_grid(qkv, layout)
        parts = grid.view(layout.rows, layout.longest, 3, shape.heads, shape.width).permute(2, 0, 3, 1, 4)
        query, keys, values = parts.reshape(3, -1, layout.longest, shape.width).unbind(0)
        context, saved = self.attend(query, keys, values, layout, shape)
        context = context.view(layout.rows, shape.heads, layout.longest, shape.width).transpose(1, 2)
        return off_grid(context.reshape(-1, shape.hidden), layout, len(qkv)), (saved, layout, shape)

    def attention_backward(self, gradient: Tensor, saved: Any) -> Tensor:
        inner, layout, shape = saved
        grid = onto_grid(gradient, layout)
        grid = grid.view(layout.rows, layout.longest, shape.heads, shape.width).transpose(1, 2)
        parts = self.attend_backward(grid.reshape(-1, layout.longest, shape.width), inner, shape)
        joined = torch.stack(parts).view(3, layout.rows, shape.heads, layout.longest, shape.width)
        return off_grid(joined.permute(1, 3, 0, 2, 4).reshape(-1, 3 * shape.hidden), layout, len(gradient))

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, layout: Layout, shape: Shape
    ) -> tuple[Tensor, Attended]:
        """Return the answer to each query; inputs are [row and head or row; queries or tokens; width]."""
        barred = (~layout.mask.view(layout.rows, 1, 1, -1)).to(query.dtype) * -1e30
        barred = barred.expand(-1, len(query) // layout.rows, 1, -1).reshape(-1, 1, layout.longest)
        scores = torch.baddbmm(barred, query, keys.transpose(1, 2), alpha=shape.width**-0.5)
        # Computed in float32: faster than torch's own bf16 kernel, and at least as exact.
        shares = torch.softmax(scores, -1, dtype=torch.float32).to(scores.dtype)
        attended = Attended(
            query, keys, values, shares, self._mask(shares.shape, shape.attention_dropout, shares.dtype)
        )
        return torch.bmm(attended.kept(), values), attended

    def attend_backward(
        self, gradient: Tensor, saved: Attended, shape: Shape, d_total: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients; `d_total` is the gradient of each query's sum of kept attention weights, if that was
        used."""
        query, keys, values, shares, mask = saved
        d_values = torch.bmm(saved.kept().transpose(1, 2), gradient)
        d_shares = torch.bmm(gradient, values.transpose(1, 2))
        if d_total is not None:
            d_shares += d_total
        if mask is not None:
            d_shares *= mask
        d_scores = aten._softmax_backward_data(d_shares, shares, -1, shares.dtype)
        d_scores *= shape.width**-0.5
        return torch.bmm(d_scores, keys), torch.bmm(d_scores.transpose(1, 2), query), d_values

    # The rest of a layer

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.linear(x, weight, bias.to(x.dtype))

    project = linear

    def activate(self, x: Tensor, bias: Tensor, shape: Shape) -> Tensor:
        return F.gelu(x, approximate=shape.gelu)

    def activate_backward(
        self, gradient: Tensor, x: Tensor, bias: Tensor, shape: Shape, into: Tensor, add: bool
    ) -> Tensor:
        d_x: Tensor = aten.gelu_backward(gradient, x, approximate=shape.gelu)
        self.column_sums(d_x, into, add)
        return d_x

    def norm(
        self, x: Tensor, bias: Tensor, residual: Tensor, weights: Pair, rate: float, shape: Shape, key: int
    ) -> tuple[Tensor, Any]:
        mask = self._mask(x.shape, rate, x.dtype)
        total = x + residual if mask is None else torch.addcmul(residual, x, mask)
        y, mean, rstd = aten.native_layer_norm(total, [shape.hidden], *weights, shape.epsilon)
        return y, (total, mean, rstd, mask, weights)

    def norm_backward(
        self, gradient: Tensor, saved: Any, into: tuple[Tensor, Tensor, Tensor], add: bool
    ) -> tuple[Tensor, Tensor]:
        total, mean, rstd, mask, (gamma, beta) = saved
        d_total, d_gamma, d_beta = aten.native_layer_norm_backward(
            gradient, total, [total.shape[1]], mean, rstd, gamma, beta, [True, True, True]
        )
        d_x = d_total if mask is None else d_total * mask
        self.column_sums(d_x, into[0], add)
        put(into[1], d_gamma, add)
        put(into[2], d_beta, add)
        return d_x, d_total

    def weight_gradient(self, gradient: Tensor, x: Tensor, into: Tensor, add: bool) -> None:
        weight_gradient(gradient, x, into, add)

    def finish_layer(self) -> None:
        """Nothing is deferred on the CPU."""

    def column_sums(self, x: Tensor, into: Tensor, add: bool) -> None:
        # Summed in float32 and rounded once to the type of x, like the gradients of matrices.
        put(into, x.sum(0), add)

    def finish_backward(self) -> None:
        """Nothing is deferred on the CPU."""

    def _mask(self, shape: torch.Size, rate: float, kind: torch.dtype) -> Tensor | None:
        """Return the next dropout mask, with factors 0 and 1 / kept share, determined by (seed, step, micro-batch)."""
        if not self.training or rate == 0:
            return None
        dropped = round(rate * 65536)
        mask = torch.empty(shape, dtype=kind)
        factor, into = _factor(dropped, kind), _as_numbers(mask.view(-1))
        # Drawn in parts that fit into the caches: allocating all of it at once costs more than drawing it.
        for start in range(0, len(into), DRAWN_AT_ONCE):
            part = into[start : start + DRAWN_AT_ONCE]
            drawn = self._bits.random_raw(-(-len(part) // 4)).view(np.uint16)[: len(part)]
            np.multiply(drawn >= dropped, factor, out=part)
        return mask


@functools.cache
def _factor(dropped: int, kind: torch.dtype) -> Any:
    """Return the factor for kept values, in the format of `_as_numbers`."""
    return _as_numbers(torch.tensor(65536 / (65536 - dropped), dtype=kind))


def onto_grid(tokens: Tensor, layout: Layout) -> Tensor:
    """Pad packed rows to [rows × longest]. Slots without a token get a value from the filling after all rows.

    No query reads these slots, and gradients of the filling are zero.
    """
    return tokens.index_select(0, layout.held)


def off_grid(grid: Tensor, layout: Layout, count: int) -> Tensor:
    """The inverse of `onto_grid`: the first `count` rows, with a filling of zeros."""
    tokens = grid.new_empty(count, grid.shape[1])
    torch.index_select(grid, 0, layout.slots, out=tokens[: len(layout.slots)])
    tokens[len(layout.slots) :] = 0
    return tokens


def _as_numbers(tensor: Tensor) -> Any:
    """numpy has no bf16, but a product of 0 or 1 with its bits is correct."""
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def put(into: Tensor, value: Tensor, add: bool) -> None:
    into.add_(value) if add else into.copy_(value)
