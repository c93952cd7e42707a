"""Decides whether the fast path computes exactly this model, and reads the sizes it needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from whet.models.families import FAMILIES

ACTIVATIONS = {"gelu": "none", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"}


@dataclass(frozen=True)
class Shape:
    """The sizes and settings of a model that its computation needs."""

    hidden: int
    heads: int
    dropout: float
    attention_dropout: float
    output_dropout: float
    """Dropout after the attention's output projection; DistilBERT has none."""
    gelu: str
    epsilon: float

    @property
    def width(self) -> int:
        return self.hidden // self.heads


def why_not_fused(model: Any) -> str:
    """Return why the fast path does not compute exactly this model; empty if it does."""
    config = model.config
    family = FAMILIES.get(config.model_type)
    if family is None:
        return f"{config.model_type} has no fused layers here"
    if getattr(config, family.activation) not in ACTIVATIONS:
        return f"its activation is {getattr(config, family.activation)}"
    if hasattr(model.base_model, "embeddings_project"):
        return "its embeddings are projected"
    if getattr(config, family.hidden) % 64:
        return f"its width is {getattr(config, family.hidden)}, which is no multiple of 64"
    if getattr(config, "is_decoder", False) or getattr(config, "add_cross_attention", False):
        return "it is a decoder"
    if any("lora" in name.lower() for name, _ in model.named_parameters()):
        return "it has adapters"
    if any(not parameter.requires_grad for parameter in model.base_model.parameters()):
        return "some of its weights are frozen"
    return ""


def shape_of(model: Any) -> Shape:
    config = model.config
    family = FAMILIES[config.model_type]
    dropout = float(getattr(config, family.dropout))
    return Shape(
        hidden=getattr(config, family.hidden),
        heads=getattr(config, family.heads),
        dropout=dropout,
        attention_dropout=float(getattr(config, family.attention_dropout)),
        output_dropout=dropout if family.dropout_after_attention else 0.0,
        gelu=ACTIVATIONS[getattr(config, family.activation)],
        epsilon=float(getattr(config, "layer_norm_eps", 1e-12)),
    )
