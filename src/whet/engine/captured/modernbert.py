"""ModernBERT's classifier on fused layers: also Ettin and mmBERT, which are the same class.

One node of autograd is the whole encoder, over packed rows. The residual stream is in float32, products take bf16, as
under the library's autocast; gradients of weights are float32 sums of bf16 products. Nothing waits for the device and
no shape depends on values, so a step can be captured. Two streams are used: the side stream rounds the weights of the
next layers during the forward pass, and computes gradients of weights during the backward pass.
"""

from __future__ import annotations

from collections import deque
from collections.abc import MutableSequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from whet.engine.captured import modernbert_layers as layers
from whet.engine.captured.modernbert_limits import FIRST_NORM, LAST_NORM, LOCAL, MATRICES, TABLE
from whet.engine.fused.cuda.side_stream import SideStream
from whet.engine.packed import Layout

PLACES_GRAIN = 1024

Saved = MutableSequence[Any]
"""What the backward pass needs, in the order of the forward pass."""


class FastModernBert:
    """Computes logits of packed rows with the weights of a library model, and fills their gradients."""

    def __init__(self, model: Any) -> None:
        config, encoder = model.config, model.model
        self.model, self.device = model, model.device
        self.heads, self.epsilon = config.num_attention_heads, config.norm_eps
        self.mean = config.classifier_pooling == "mean"
        self.kinds = list(config.layer_types)
        self.window = config.local_attention // 2
        """Places that a local layer sees to each side."""
        self.weights: dict[str, Tensor] = dict(encoder.named_parameters())
        self.norms = [name for name, weight in self.weights.items() if weight.dim() == 1]
        self._rounded = {
            name: torch.empty_like(weight, dtype=torch.bfloat16, requires_grad=False)
            for name, weight in self.weights.items()
            if name.endswith(tuple(f"{matrix}.weight" for matrix in MATRICES))
        }
        self.places = -(-config.max_position_embeddings // PLACES_GRAIN) * PLACES_GRAIN
        """Length of the tables of cosines and sines: the model's limit, rounded up because a batch's `longest` is."""
        self._turns = {kind: _turns(encoder.rotary_emb, kind, self.places, self.device) for kind in set(self.kinds)}
        self._beside = SideStream(self.device)

    def __call__(self, ids: Tensor, layout: Layout, *, training: bool) -> Tensor:
        """Return the logits of each row, [rows, labels] in float32."""
        return self.logits(self.features(ids, layout), training=training)

    def features(self, ids: Tensor, layout: Layout) -> Tensor:
        """Return what the head reads of each row, [rows, hidden] in float32.

        `ids` are the tokens of all rows, one row after another, int64; of the layout only `offsets` and `longest` are
        read. Tokens after the last row belong to nobody and get no gradient; rows without tokens are zeros.
        """
        if layout.longest > self.places:  # a kernel would read behind the table
            raise ValueError(f"A row of {layout.longest} tokens is too long for {self.places} places; truncate it.")
        if torch.is_grad_enabled():
            return _Encode.apply(self, ids, layout, *self.weights.values())  # type: ignore[no-untyped-call,no-any-return]
        return self.encode(ids, layout, deque(maxlen=0))

    def logits(self, features: Tensor, *, training: bool) -> Tensor:
        """Return the head's answer. It sees few rows, so it is computed in float32 by the library's modules."""
        with torch.autocast(self.device.type, enabled=False):
            pooled = F.dropout(self.model.head(features), self.model.drop.p, training)
            return self.model.classifier(pooled)  # type: ignore[no-any-return]

    # The forward pass

    def encode(self, ids: Tensor, layout: Layout, saved: Saved) -> Tensor:
        ready = self._round_weights()
        total, y, norm = layers.embed_and_norm(ids, self.weights[TABLE], self.weights[FIRST_NORM], self.epsilon)
        saved.append(norm)
        branch = y
        for index in range(len(self.kinds)):
            if index:
                total, y = self._add_and_norm(total, branch, f"layers.{index}.attn_norm.weight", saved)
            torch.cuda.current_stream().wait_event(ready[index])
            branch = self._attend(index, y, layout, saved)
            total, y = self._add_and_norm(total, branch, f"layers.{index}.mlp_norm.weight", saved)
            branch = self._feed_forward(index, y, saved)
        total, y, norm = layers.add_and_norm(total, branch, self.weights[LAST_NORM], self.epsilon, torch.float32)
        saved.append(norm)
        return layers.pool(y, layout, mean=self.mean)

    def _round_weights(self) -> list[torch.cuda.Event]:
        """Queue the rounding of all matrices on the side stream, layer by layer.

        Returns one event for each layer, set when it is done.
        """
        works = []
        for index in range(len(self.kinds)):
            names = [f"layers.{index}.{matrix}.weight" for matrix in MATRICES]
            rounded, weights = [self._rounded[name] for name in names], [self.weights[name].detach() for name in names]
            works.append(partial(torch._foreach_copy_, rounded, weights))
        return self._beside.begin(works)

    def _add_and_norm(self, total: Tensor, branch: Tensor, name: str, saved: Saved) -> tuple[Tensor, Tensor]:
        total, y, norm = layers.add_and_norm(total, branch, self.weights[name], self.epsilon)
        saved.append(norm)
        return total, y

    def _attend(self, index: int, y: Tensor, layout: Layout, saved: Saved) -> Tensor:
        kind = self.kinds[index]
        window = self.window if kind == LOCAL else layers.NO_WINDOW
        qkv = torch.mm(y, self._matrix(index, "attn.Wqkv").t())
        context, state = layers.attention(qkv, self._turns[kind], layout, self.heads, window)
        saved.append((y, context, state))
        return torch.mm(context, self._matrix(index, "attn.Wo").t())

    def _feed_forward(self, index: int, y: Tensor, saved: Saved) -> Tensor:
        x = torch.mm(y, self._matrix(index, "mlp.Wi").t())
        gated = layers.gate(x)
        saved.append((y, x, gated))
        return torch.mm(gated, self._matrix(index, "mlp.Wo").t())

    def _matrix(self, index: int, name: str) -> Tensor:
        return self._rounded[f"layers.{index}.{name}.weight"]

    # The backward pass

    def gradients(self, d_features: Tensor, ids: Tensor, layout: Layout, saved: Saved) -> dict[str, Tensor]:
        """Return the gradient of every weight that is trained. It takes what was saved apart, and frees it."""
        tokens, found = ids.shape[0], dict[str, Tensor]()
        programs = layers.norm_programs(tokens, d_features.shape[1])
        sums = torch.empty(len(self.norms), programs, d_features.shape[1], device=self.device)
        partials = dict(zip(self.norms, sums.unbind(0), strict=True))
        d_y = layers.pool_backward(d_features, tokens, layout, mean=self.mean)
        d_total, d_branch = layers.norm_backward(d_y, None, saved.pop(), partials[LAST_NORM])
        for index in reversed(range(len(self.kinds))):
            d_y = self._feed_forward_backward(index, d_branch, saved, found)
            norm = partials[f"layers.{index}.mlp_norm.weight"]
            d_total, d_branch = layers.norm_backward(d_y, d_total, saved.pop(), norm)
            d_y = self._attend_backward(index, d_branch, saved, found)
            if index:
                norm = partials[f"layers.{index}.attn_norm.weight"]
                d_total, d_branch = layers.norm_backward(d_y, d_total, saved.pop(), norm)
        d_total, _ = layers.norm_backward(d_y, d_total, saved.pop(), partials[FIRST_NORM], before=True)
        found |= zip(self.norms, sums.sum(1).unbind(0), strict=True)
        if self.weights[TABLE].requires_grad:
            table = self.model.model.embeddings.tok_embeddings
            unused = -1 if table.padding_idx is None else table.padding_idx
            found[TABLE] = torch.ops.aten.embedding_dense_backward(d_total, ids, table.num_embeddings, unused, False)
        self._beside.join()
        return found

    def _feed_forward_backward(self, index: int, d_branch: Tensor, saved: Saved, found: dict[str, Tensor]) -> Tensor:
        y, x, gated = saved.pop()
        self._weight_gradient(index, "mlp.Wo", d_branch, gated, found)
        d_x = layers.gate_backward(torch.mm(d_branch, self._matrix(index, "mlp.Wo")), x)
        self._weight_gradient(index, "mlp.Wi", d_x, y, found)
        return torch.mm(d_x, self._matrix(index, "mlp.Wi"))

    def _attend_backward(self, index: int, d_branch: Tensor, saved: Saved, found: dict[str, Tensor]) -> Tensor:
        y, context, state = saved.pop()
        self._weight_gradient(index, "attn.Wo", d_branch, context, found)
        d_qkv = layers.attention_backward(torch.mm(d_branch, self._matrix(index, "attn.Wo")), state)
        self._weight_gradient(index, "attn.Wqkv", d_qkv, y, found)
        return torch.mm(d_qkv, self._matrix(index, "attn.Wqkv"))

    def _weight_gradient(self, index: int, name: str, gradient: Tensor, x: Tensor, found: dict[str, Tensor]) -> None:
        name = f"layers.{index}.{name}.weight"
        weight = self.weights[name]
        if weight.requires_grad:
            into = found[name] = torch.empty_like(weight, requires_grad=False)
            self._beside.run(lambda: product_in_float32(gradient, x, into), gradient, x)


def product_in_float32(gradient: Tensor, x: Tensor, into: Tensor) -> None:
    """Write [out, in] in float32 from [tokens, out] and [tokens, in] in bf16; only CUDA has this product."""
    torch.mm(gradient.t(), x, out_dtype=torch.float32, out=into)


def _turns(rotary: Any, kind: str, count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines of each place, [places, half of a head's width]."""
    places = torch.arange(count, dtype=torch.float32, device=device)
    angles = places[:, None] * getattr(rotary, f"{kind}_inv_freq").to(device=device, dtype=torch.float32)[None, :]
    return angles.cos(), angles.sin()


class _Encode(torch.autograd.Function):
    """The whole encoder as one node; its weights are inputs, so that autograd hands their gradients on."""

    @staticmethod
    def forward(ctx: Any, encoder: FastModernBert, ids: Tensor, layout: Layout, *weights: Tensor) -> Tensor:
        ctx.encoder, ctx.given, ctx.saved = encoder, (ids, layout), []
        return encoder.encode(ids, layout, ctx.saved)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        saved, ctx.saved = ctx.saved, None
        found = ctx.encoder.gradients(gradient.float().contiguous(), *ctx.given, saved)
        trained = ctx.encoder.weights.items()
        return None, None, None, *(found.get(name) if weight.requires_grad else None for name, weight in trained)
