"""Which models the fused layers of ModernBERT compute."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import small_model
from whet.engine.captured.modernbert_limits import why_not_fast


def modernbert(**settings: Any) -> Any:
    from transformers import ModernBertConfig, ModernBertForSequenceClassification

    sizes: dict[str, Any] = {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 48}
    sizes |= {"vocab_size": 40, "num_hidden_layers": 2, "pad_token_id": 0, "eos_token_id": 2, "bos_token_id": 1}
    return ModernBertForSequenceClassification(ModernBertConfig(**{**sizes, "cls_token_id": 1, **settings}))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"classifier_pooling": "mean", "classifier_dropout": 0.1},
        {"global_rope_theta": 1e4, "local_rope_theta": 1e5},
    ],
)
def test_the_published_settings_are_computed(settings: dict[str, Any]) -> None:
    assert why_not_fast(modernbert(**settings)) == ""


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"hidden_activation": "relu"}, "its activation is relu"),
        ({"num_attention_heads": 4}, "its heads are 16 wide"),
        ({"mlp_bias": True}, "its layers have biases"),
        ({"attention_dropout": 0.1}, "its encoder drops out"),
        ({"mlp_dropout": 0.1}, "its encoder drops out"),
    ],
)
def test_other_settings_are_named(settings: dict[str, Any], reason: str) -> None:
    assert why_not_fast(modernbert(**settings)) == reason


def test_scaled_rotary_embeddings_are_named() -> None:
    model = modernbert()
    model.config.rope_parameters["full_attention"]["rope_type"] = "dynamic"
    assert why_not_fast(model) == "its rotary embeddings are dynamic"


def test_other_families_are_named() -> None:
    assert why_not_fast(small_model("bert")) == "BertForSequenceClassification has no fused layers here"


def test_other_weights_are_named() -> None:
    import torch

    assert why_not_fast(modernbert().bfloat16()) == "its weights are not all float32"
    model = modernbert()
    model.model.layers[0].attn.Wqkv.adapter = torch.nn.Linear(2, 2)
    assert why_not_fast(model) == "its encoder has other weights than the library's"
