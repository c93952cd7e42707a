"""The encoder on the CPU, with a last layer that computes no keys and no values.

The last layer has one query per row, so it is cheaper to transform the query than all tokens. With a head's weights K
and V, q·(K x) is (Kᵀ q)·x, and a weighted sum of V x is V times the weighted sum of x. So every token is multiplied
with two vectors per head instead of two matrices. The bias of K adds the same value to all scores of a row; softmax
ignores it, and its gradient is zero.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from whet.engine.fused.cpu.layers import CpuLayerOps, off_grid, onto_grid, put
from whet.engine.fused.encoder import Encoder, Inputs
from whet.engine.fused.parameters import Layer


class CpuEncoder(Encoder):
    """The encoder with `CpuLayerOps`; the last layer's attention is implemented here."""

    pieces: CpuLayerOps  # type: ignore[assignment]

    def _last_layer(self, x: Tensor, layer: Layer, inputs: Inputs, key: int) -> tuple[Tensor, Any]:
        w, width = layer.weights, self.shape.hidden
        first = x.index_select(0, inputs.first)
        query = self.pieces.linear(first, w["qkv"][:width], w["qkv_bias"][:width])
        context, attention = self._ask(query, x, layer, inputs)
        y, rest = self._after_attention(context, first, layer, key)
        return y, (first, context, attention, rest, len(x))

    def _last_layer_backward(self, gradient: Tensor, saved: Any, layer: Layer, inputs: Inputs, add: bool) -> Tensor:
        first, context, attention, rest, count = saved
        w, into, width = layer.weights, layer.gradients, self.shape.hidden
        d_context, d_first = self._after_attention_backward(gradient, context, rest, layer, add)
        d_query, d_tokens = self._ask_backward(d_context, attention, layer, add)
        self.pieces.weight_gradient(d_query, first, into["qkv"][:width], add)
        self.pieces.column_sums(d_query, into["qkv_bias"][:width], add)
        torch.addmm(d_first, d_query, w["qkv"][:width], out=d_first)
        d_x = off_grid(d_tokens.view(-1, width), inputs.layout, count)
        return d_x.index_add_(0, inputs.first, d_first)

    def _ask(self, query: Tensor, x: Tensor, layer: Layer, inputs: Inputs) -> tuple[Tensor, Any]:
        layout, (keys, values) = inputs.layout, self._by_head(layer.weights["qkv"])
        tokens = onto_grid(x, layout).view(layout.rows, layout.longest, -1)
        query = self._of_heads(query)
        reach = _for_each_head(query, keys)
        mixed, inner = self.pieces.attend(reach, tokens, tokens, layout, self.shape)
        bias = self._of_heads(layer.weights["qkv_bias"][2 * self.shape.hidden :].to(x.dtype))
        total = inner.kept().sum(-1, keepdim=True)  # differs from 1 if attention weights were dropped
        context = _for_each_head(mixed, values.transpose(1, 2)) + total * bias
        return context.reshape(layout.rows, -1), (query, mixed, inner, total, bias)

    def _ask_backward(self, gradient: Tensor, saved: Any, layer: Layer, add: bool) -> tuple[Tensor, Tensor]:
        """Return the gradients of the query and of the padded tokens; store those of K, V and their biases."""
        query, mixed, inner, total, bias = saved
        keys, values = self._by_head(layer.weights["qkv"])
        d_context = self._of_heads(gradient)
        d_mixed = _for_each_head(d_context, values)
        d_total = (d_context * bias).sum(-1, keepdim=True)
        d_reach, d_keys, d_values = self.pieces.attend_backward(d_mixed, inner, self.shape, d_total)
        into_keys, into_values = self._by_head(layer.gradients["qkv"])
        put(into_keys, _summed_over_rows(query, d_reach), add)
        put(into_values, _summed_over_rows(d_context, mixed), add)
        biases = layer.gradients["qkv_bias"][self.shape.hidden :].view(2, -1)
        put(biases[0], torch.zeros_like(biases[0]), add)
        put(biases[1], (d_context * total).sum(0).view(-1), add)
        d_query = _for_each_head(d_reach, keys.transpose(1, 2))
        return d_query.reshape(len(gradient), -1), d_keys.add_(d_values)

    def _by_head(self, qkv: Tensor) -> tuple[Tensor, Tensor]:
        """Return K and V by head, [heads, head width, width]."""
        _, keys, values = qkv.view(3, self.shape.heads, self.shape.width, -1)
        return keys, values

    def _of_heads(self, rows: Tensor) -> Tensor:
        return rows.view(-1, self.shape.heads, self.shape.width)


def _for_each_head(rows: Tensor, matrices: Tensor) -> Tensor:
    """Multiply [rows, heads, a] with [heads, a, b] to [rows, heads, b]."""
    return torch.bmm(rows.transpose(0, 1), matrices).transpose(0, 1).contiguous()


def _summed_over_rows(left: Tensor, right: Tensor) -> Tensor:
    """Multiply [rows, heads, a] and [rows, heads, b] to [heads, a, b], summed over rows."""
    return torch.bmm(left.permute(1, 2, 0), right.transpose(0, 1))
