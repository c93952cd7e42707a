"""The names of weights and settings in each family of BERT-like encoders."""

from __future__ import annotations

from dataclasses import dataclass


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


_BERT = Family("encoder.layer", BERT_LAYER)
FAMILIES = {
    "bert": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "camembert": _BERT,
    "electra": _BERT,
    "distilbert": Family(
        "transformer.layer", DISTILBERT_LAYER, "dim", "n_heads", "dropout", "attention_dropout", "activation", False
    ),
}
