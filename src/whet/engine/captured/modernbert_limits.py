"""Decides whether the fused layers of ModernBERT compute exactly this model. It needs no Triton."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

FULL, LOCAL = "full_attention", "sliding_attention"
TABLE, FIRST_NORM, LAST_NORM = "embeddings.tok_embeddings.weight", "embeddings.norm.weight", "final_norm.weight"
MATRICES = ("attn.Wqkv", "attn.Wo", "mlp.Wi", "mlp.Wo")
HEAD_WIDTHS = (32, 64, 128)
"""Head widths that a tile supports: its halves are turned against each other, and a product takes at least 16."""


def why_not_fast(model: Any) -> str:
    """Return why the fused layers do not compute exactly this model; empty if they do."""
    from transformers import ModernBertForSequenceClassification

    if type(model) is not ModernBertForSequenceClassification:
        return f"{type(model).__name__} has no fused layers here"
    return next(_obstacles(model), "")


def _obstacles(model: Any) -> Iterator[str]:
    config, encoder = model.config, model.model
    if config.hidden_activation != "gelu":
        yield f"its activation is {config.hidden_activation}"
    width = config.hidden_size // config.num_attention_heads
    if width not in HEAD_WIDTHS:
        yield f"its heads are {width} wide"
    if config.attention_bias or config.mlp_bias or config.norm_bias:
        yield "its layers have biases"
    for kind in sorted(set(config.layer_types)):
        if kind not in (FULL, LOCAL):
            yield f"its attention is {kind}"
        elif config.rope_parameters[kind]["rope_type"] != "default":
            yield f"its rotary embeddings are {config.rope_parameters[kind]['rope_type']}"
    rates = [module.p for module in encoder.modules() if isinstance(module, nn.Dropout)]
    if any(rates) or any(layer.attn.attention_dropout for layer in encoder.layers):
        yield "its encoder drops out"
    if any(parameter.dtype != torch.float32 for parameter in model.parameters()):
        yield "its weights are not all float32"
    if _expected_weights(len(encoder.layers)) != {name for name, _ in encoder.named_parameters()}:
        yield "its encoder has other weights than the library's"


def _expected_weights(layers: int) -> set[str]:
    """Return the names of the encoder's weights; the first layer has no norm before its attention."""
    names = {TABLE, FIRST_NORM, LAST_NORM}
    for index in range(layers):
        parts = (*MATRICES, "mlp_norm", "attn_norm") if index else (*MATRICES, "mlp_norm")
        names |= {f"layers.{index}.{part}.weight" for part in parts}
    return names
