"""Facts about each family of encoders: names of its weights and settings, and how it counts positions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class LayerNames:
    """Names of a layer's modules, relative to the layer."""

    query: str
    key: str
    value: str
    out: str
    norm1: str
    up: str
    down: str
    norm2: str


BERT_LAYER = LayerNames(
    "attention.self.query",
    "attention.self.key",
    "attention.self.value",
    "attention.output.dense",
    "attention.output.LayerNorm",
    "intermediate.dense",
    "output.dense",
    "output.LayerNorm",
)
DISTILBERT_LAYER = LayerNames(
    "attention.q_lin",
    "attention.k_lin",
    "attention.v_lin",
    "attention.out_lin",
    "sa_layer_norm",
    "ffn.lin1",
    "ffn.lin2",
    "output_layer_norm",
)


@dataclass(frozen=True)
class Family:
    """How to read a model's sizes from its configuration."""

    layers: str
    """The list of layers, relative to the base model."""
    names: LayerNames
    hidden: str = "hidden_size"
    heads: str = "num_attention_heads"
    dropout: str = "hidden_dropout_prob"
    attention_dropout: str = "attention_probs_dropout_prob"
    activation: str = "hidden_act"
    dropout_after_attention: bool = True
    shifted: bool = False
    """Whether positions are counted from the padding token's id on."""


_BERT = Family("encoder.layer", BERT_LAYER)
_ROBERTA = replace(_BERT, shifted=True)
FAMILIES = {
    "bert": _BERT,
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "electra": _BERT,
    "distilbert": Family(
        "transformer.layer", DISTILBERT_LAYER, "dim", "n_heads", "dropout", "attention_dropout", "activation", False
    ),
}
"""Families that the fused layers compute."""
PACKED_MODULES = {
    **{name: family.layers.split(".")[0] for name, family in FAMILIES.items()},
    "modernbert": "final_norm",
}
"""The module whose output is the last hidden state, for each family whose attention is registered by name."""
RELATIVE = frozenset({"deberta-v2", "mpnet"})
"""Families whose attention has relative positions, which `engine.exact_attention` computes."""
PACKED = RELATIVE | PACKED_MODULES.keys()
"""Families that run without padding."""
SHIFTED_POSITIONS = frozenset({*(name for name, family in FAMILIES.items() if family.shifted), "mpnet"})


def recomputes_activations(model: Any) -> bool:
    """Return whether gradient checkpointing is on; the library's property was renamed, and warns by its old name."""
    return any(getattr(module, "gradient_checkpointing", False) for module in model.modules())


def position_shift(config: Any) -> int:
    """Return the position of a row's first token: some families count from the padding token's id on."""
    return config.pad_token_id + 1 if config.model_type in SHIFTED_POSITIONS else 0


def token_types(config: Any) -> int:
    """Return how many types of tokens the model tells apart; 0 if it takes any, and reads none."""
    if config.model_type in RELATIVE:
        return int(getattr(config, "type_vocab_size", 0))
    return getattr(config, "type_vocab_size", None) or 1
