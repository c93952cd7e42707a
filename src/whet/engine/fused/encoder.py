"""Forward and backward pass of a BERT-like encoder on packed tokens, written by hand for any device.

`LayerOps` are the operations of a layer, implemented per device. Gradients of weights are
written directly into the flat buffers (added from the second micro-batch on). So autograd sees one function with one
output: the hidden state of each row's first token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from whet.engine.fused.architectures import Shape
from whet.engine.fused.parameters import FlatModel, Layer

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Inputs:
    """A packed batch on the device. Word ids are indices into the used rows of the embedding."""

    ids: Tensor
    positions: Tensor
    types: Tensor | None
    offsets: Tensor
    """int32 [rows + 1]."""
    first: Tensor
    """int64 [rows]: each row's first token."""
    longest: int
    layout: Any
    """Further data for the device's attention."""


class LayerOps(Protocol):
    """The operations that a device implements. `key` numbers the dropouts of a step."""

    def start(self, training: bool) -> None: ...

    def embed(self, flat: FlatModel, inputs: Inputs, shape: Shape, key: int) -> tuple[Tensor, Any]: ...

    def embed_backward(self, flat: FlatModel, inputs: Inputs, gradient: Tensor, saved: Any, add: bool) -> None: ...

    def attention(self, qkv: Tensor, inputs: Inputs, shape: Shape, key: int) -> tuple[Tensor, Any]: ...

    def attention_backward(self, gradient: Tensor, saved: Any) -> Tensor: ...

    def attention_of_first(
        self, query: Tensor, keys_values: Tensor, inputs: Inputs, shape: Shape, key: int
    ) -> tuple[Tensor, Any]: ...

    def attention_of_first_backward(self, gradient: Tensor, saved: Any) -> tuple[Tensor, Tensor]: ...

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor: ...

    def project(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Multiply; the device adds the bias here or in the following `activate` or `norm`."""

    def activate(self, x: Tensor, bias: Tensor, shape: Shape) -> Tensor: ...

    def activate_backward(
        self, gradient: Tensor, x: Tensor, bias: Tensor, shape: Shape, into: Tensor, add: bool
    ) -> Tensor: ...

    def norm(
        self, x: Tensor, bias: Tensor, residual: Tensor, weights: Pair, rate: float, shape: Shape, key: int
    ) -> tuple[Tensor, Any]: ...

    def norm_backward(
        self, gradient: Tensor, saved: Any, into: tuple[Tensor, Tensor, Tensor], add: bool
    ) -> tuple[Tensor, Tensor]: ...

    def weight_gradient(self, gradient: Tensor, x: Tensor, into: Tensor, add: bool) -> None:
        """Compute [out, in] from [tokens, out] and [tokens, in]. Nothing in the backward pass reads it."""

    def column_sums(self, x: Tensor, into: Tensor, add: bool) -> None: ...

    def finish_layer(self) -> None: ...

    def finish_backward(self) -> None: ...


class Encoder:
    """The encoder of a flat model."""

    def __init__(self, flat: FlatModel, shape: Shape, pieces: LayerOps) -> None:
        self.flat, self.shape, self.pieces = flat, shape, pieces
        self.before_layer: list[torch.cuda.Event] = []
        """Events to wait for before the embeddings and before each layer, while an update runs; the last one, before
        gradients of the embeddings are written."""
        self.after_layer: Callable[[int], None] = ignore
        """Called in the backward pass when all gradients of a layer's matrices have been queued."""

    def first_hidden(self, inputs: Inputs, *, training: bool, add: bool = False) -> Tensor:
        """Return [rows, 1, width], which every head reads as `hidden[:, 0]`. With grad, the backward pass fills the
        flat gradients."""
        if not training:
            return self._forward(inputs, None).float().unsqueeze(1)
        anchor = torch.zeros((), device=inputs.ids.device, requires_grad=True)
        hidden = _Encode.apply(anchor, self, inputs, add)  # type: ignore[no-untyped-call]
        return hidden.float().unsqueeze(1)  # type: ignore[no-any-return]

    def _forward(self, inputs: Inputs, stack: list[Any] | None) -> Tensor:
        """Return the hidden states of the first tokens; values for the backward pass go onto the stack, if there is
        one."""
        self._wait(0)
        self.pieces.start(training=stack is not None)
        keep = stack.append if stack is not None else ignore
        hidden, saved = self.pieces.embed(self.flat, inputs, self.shape, 0)
        keep(saved)
        for index, layer in enumerate(self.flat.layers[:-1]):
            del saved  # without a backward pass it would stay in memory during the next layer
            self._wait(index + 1)
            hidden, saved = self._layer(hidden, layer, inputs, 3 * index + 1)
            keep(saved)
        del saved
        self._wait(len(self.flat.layers))
        hidden, saved = self._last_layer(hidden, self.flat.layers[-1], inputs, 3 * len(self.flat.layers) - 2)
        keep(saved)
        return hidden

    def _wait(self, index: int) -> None:
        if self.before_layer:
            torch.cuda.current_stream().wait_event(self.before_layer[index])

    def _backward(self, gradient: Tensor, inputs: Inputs, stack: list[Any], add: bool) -> None:
        last = len(self.flat.layers) - 1
        gradient = self._last_layer_backward(gradient, stack.pop(), self.flat.layers[last], inputs, add)
        self._done(last)
        for index in range(last - 1, -1, -1):
            gradient = self._layer_backward(gradient, stack.pop(), self.flat.layers[index], add)
            self._done(index)
        self._wait(-1)
        self.pieces.embed_backward(self.flat, inputs, gradient, stack.pop(), add)
        self.pieces.finish_backward()

    def _done(self, index: int) -> None:
        self.pieces.finish_layer()
        self.after_layer(index)

    def _layer(self, x: Tensor, layer: Layer, inputs: Inputs, key: int) -> tuple[Tensor, Any]:
        w, pieces = layer.weights, self.pieces
        qkv = pieces.linear(x, w["qkv"], w["qkv_bias"])
        context, attention = pieces.attention(qkv, inputs, self.shape, key)
        y, rest = self._after_attention(context, x, layer, key)
        return y, (x, context, attention, rest)

    def _layer_backward(self, gradient: Tensor, saved: Any, layer: Layer, add: bool) -> Tensor:
        x, context, attention, rest = saved
        into, pieces = layer.gradients, self.pieces
        d_context, d_x = self._after_attention_backward(gradient, context, rest, layer, add)
        d_qkv = pieces.attention_backward(d_context, attention)
        pieces.weight_gradient(d_qkv, x, into["qkv"], add)
        pieces.column_sums(d_qkv, into["qkv_bias"], add)
        return torch.addmm(d_x, d_qkv, layer.weights["qkv"], out=d_x)

    def _last_layer(self, x: Tensor, layer: Layer, inputs: Inputs, key: int) -> tuple[Tensor, Any]:
        """The head reads the first token only, so the last layer computes one query per row."""
        w, pieces, width = layer.weights, self.pieces, self.shape.hidden
        first = x.index_select(0, inputs.first)
        query = pieces.linear(first, w["qkv"][:width], w["qkv_bias"][:width])
        keys_values = pieces.linear(x, w["qkv"][width:], w["qkv_bias"][width:])
        context, attention = pieces.attention_of_first(query, keys_values, inputs, self.shape, key)
        y, rest = self._after_attention(context, first, layer, key)
        return y, (x, first, context, attention, rest)

    def _last_layer_backward(self, gradient: Tensor, saved: Any, layer: Layer, inputs: Inputs, add: bool) -> Tensor:
        x, first, context, attention, rest = saved
        w, into, pieces, width = layer.weights, layer.gradients, self.pieces, self.shape.hidden
        d_context, d_first = self._after_attention_backward(gradient, context, rest, layer, add)
        d_query, d_keys_values = pieces.attention_of_first_backward(d_context, attention)
        pieces.weight_gradient(d_query, first, into["qkv"][:width], add)
        pieces.weight_gradient(d_keys_values, x, into["qkv"][width:], add)
        pieces.column_sums(d_query, into["qkv_bias"][:width], add)
        pieces.column_sums(d_keys_values, into["qkv_bias"][width:], add)
        torch.addmm(d_first, d_query, w["qkv"][:width], out=d_first)
        d_x = torch.mm(d_keys_values, w["qkv"][width:])
        return d_x.index_add_(0, inputs.first, d_first)

    def _after_attention(self, context: Tensor, residual: Tensor, layer: Layer, key: int) -> tuple[Tensor, Any]:
        w, pieces, shape = layer.weights, self.pieces, self.shape
        norm1, norm2 = (w["norm1_weight"], w["norm1_bias"]), (w["norm2_weight"], w["norm2_bias"])
        projected = pieces.project(context, w["out"], w["out_bias"])
        y, s1 = pieces.norm(projected, w["out_bias"], residual, norm1, shape.output_dropout, shape, key + 1)
        up = pieces.project(y, w["up"], w["up_bias"])
        activated = pieces.activate(up, w["up_bias"], shape)
        down = pieces.project(activated, w["down"], w["down_bias"])
        z, s2 = pieces.norm(down, w["down_bias"], y, norm2, shape.dropout, shape, key + 2)
        return z, (y, up, activated, s1, s2)

    def _after_attention_backward(
        self, gradient: Tensor, context: Tensor, saved: Any, layer: Layer, add: bool
    ) -> tuple[Tensor, Tensor]:
        y, up, activated, s1, s2 = saved
        w, into, pieces = layer.weights, layer.gradients, self.pieces
        d_down, d_y = pieces.norm_backward(
            gradient, s2, (into["down_bias"], into["norm2_weight"], into["norm2_bias"]), add
        )
        pieces.weight_gradient(d_down, activated, into["down"], add)
        d_activated = torch.mm(d_down, w["down"])
        d_up = pieces.activate_backward(d_activated, up, w["up_bias"], self.shape, into["up_bias"], add)
        pieces.weight_gradient(d_up, y, into["up"], add)
        torch.addmm(d_y, d_up, w["up"], out=d_y)
        d_projected, d_residual = pieces.norm_backward(
            d_y, s1, (into["out_bias"], into["norm1_weight"], into["norm1_bias"]), add
        )
        pieces.weight_gradient(d_projected, context, into["out"], add)
        return torch.mm(d_projected, w["out"]), d_residual


def ignore(saved: Any) -> None:
    """Do nothing."""


def weight_gradient(gradient: Tensor, x: Tensor, into: Tensor, add: bool) -> None:
    """Write [out, in] from [tokens, out] and [tokens, in] directly into the flat buffer."""
    if add:
        torch.addmm(into, gradient.t(), x, out=into)
    else:
        torch.mm(gradient.t(), x, out=into)


class _Encode(torch.autograd.Function):
    """The whole encoder as one node of autograd; the anchor only makes it part of the graph."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, encoder: Encoder, inputs: Inputs, add: bool) -> Tensor:
        ctx.stack = []
        ctx.encoder, ctx.inputs, ctx.add = encoder, inputs, add
        return encoder._forward(inputs, ctx.stack)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        stack, ctx.stack = ctx.stack, None
        ctx.encoder._backward(gradient.contiguous(), ctx.inputs, stack, ctx.add)
        return torch.zeros((), device=gradient.device), None, None, None
