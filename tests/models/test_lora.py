"""Adapters in the library's models: which layers have them, what trains, and what is saved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from tests.conftest import small_model
from tests.decoder_models import small_decoder, write_decoder
from whet.config import LoraConfig, ModelConfig, make_config
from whet.errors import EnvironmentFault, UsageError
from whet.models import lora
from whet.models.pretrained import load_model
from whet.task import Task

BINARY = Task("binary", ("bad", "good"))
IDS = torch.arange(5, 29).reshape(2, 12)


def model_of(family: str) -> Any:
    return small_model(family) if family in ("bert", "roberta", "distilbert", "modernbert") else decoder(family)


def decoder(family: str) -> Any:
    return small_decoder(family, pad_token_id=2)


def with_adapters(model: Any, **settings: Any) -> Any:
    """The model with adapters that change its answers, as after some steps."""
    torch.manual_seed(3)
    lora.add_adapters(model, make_config({"lora": True, "lora_rank": 4, **settings}).lora)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1)
    return model.eval()


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=IDS, attention_mask=torch.ones_like(IDS)).logits


HEADS = {
    "bert": {"bert.pooler", "classifier"},
    "roberta": {"classifier"},
    "distilbert": {"pre_classifier", "classifier"},
    "modernbert": {"head", "classifier"},
    "qwen3": {"score"},
    "gpt2": {"score"},
}


@pytest.mark.parametrize("family", HEADS)
def test_the_layers_have_adapters_and_the_head_trains_in_full(family: str) -> None:
    model = with_adapters(model_of(family))
    names = {name for name, _ in model.named_parameters()}
    heads = {name for name in names if name.startswith(tuple(f"{head}." for head in HEADS[family]))}
    adapters = {name for name in names if ".lora_" in name}
    assert heads
    assert adapters
    assert set(model.peft_config["default"].modules_to_save) == HEADS[family]
    assert lora.frozen_names(model) == names - heads - adapters


@pytest.mark.parametrize("family", ["bert", "modernbert", "qwen3", "gpt2"])
def test_the_merged_model_answers_like_the_adapters(family: str) -> None:
    model = with_adapters(model_of(family))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = lora.merged(model)
    assert torch.allclose(logits(found), logits(model), atol=1e-5)
    assert found.state_dict().keys() == model_of(family).state_dict().keys()
    assert not lora.has_adapters(found)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("family", ["bert", "qwen3", "gpt2"])
def test_peft_loads_the_adapter(family: str, tmp_path: Path) -> None:
    model = with_adapters(model_of(family))
    lora.save_adapter(model, tmp_path / "adapter", str(tmp_path), None)
    loaded = peft.PeftModel.from_pretrained(model_of(family), tmp_path / "adapter")
    assert torch.allclose(logits(loaded.eval()), logits(model), atol=1e-6)
    content = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert len(content["target_modules"]) < 10, "names without the numbers of their layers"
    assert content["target_modules"] == sorted(content["target_modules"])


def test_peft_loads_adapter_and_base_by_the_folder_alone(tmp_path: Path) -> None:
    write_decoder(tmp_path / "base")
    settings = ModelConfig(model=str(tmp_path / "base"))
    adapters = LoraConfig(lora=True, lora_rank=4)
    model = load_model(settings.model, BINARY, settings, seed=0, lora=adapters).model.eval()
    model.config.pad_token_id = 2
    lora.save_adapter(model, tmp_path / "adapter", settings.model, None)
    loaded = peft.AutoPeftModelForSequenceClassification.from_pretrained(tmp_path / "adapter", pad_token_id=2)
    assert torch.allclose(logits(loaded.eval()), logits(model), atol=1e-6)


def test_only_the_named_layers_have_adapters() -> None:
    model = with_adapters(decoder("qwen3"), lora_targets="q_proj,v_proj")
    adapted = {name.split(".lora_")[0].split(".")[-1] for name, _ in model.named_parameters() if ".lora_" in name}
    assert adapted == {"q_proj", "v_proj"}


def test_the_scale_is_alpha_over_rank() -> None:
    assert make_config({"lora_rank": 8}).lora.alpha == 16
    model = with_adapters(small_model(), lora_alpha=2, lora_dropout=0.2)
    layer = model.bert.encoder.layer[0].intermediate.dense
    assert layer.scaling["default"] == 0.5
    assert layer.lora_dropout["default"].p == 0.2


@pytest.mark.parametrize(
    "settings, said",
    [
        (
            {"lora_targets": "q_projj"},
            "lora_targets is 'q_projj', and no linear layer of this qwen3 model has that name",
        ),
        ({"lora_targets": "score"}, "lora_targets is 'score'"),
        ({"lora_rank": 17}, r"lora_rank is 17, and model.layers.0.self_attn.k_proj is a matrix of 16 × 32"),
    ],
)
def test_settings_that_do_not_fit_the_model_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        with_adapters(decoder("qwen3"), **settings)


def test_the_nearest_name_is_proposed() -> None:
    with pytest.raises(UsageError) as found:
        with_adapters(decoder("qwen3"), lora_targets="q_projj")
    assert "'q_proj'" in found.value.hint


@pytest.mark.parametrize(
    "name, value", [("lora_rank", 0), ("lora_alpha", 0), ("lora_dropout", 1), ("lora_targets", "")]
)
def test_values_out_of_range_are_refused(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"{name} is"):
        make_config({"lora": True, name: value})


def test_a_model_without_linear_layers_is_refused() -> None:
    with pytest.raises(UsageError, match="this bert model has no linear layers to adapt"):
        with_adapters(small_model(layers=0))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lora, "find_spec", lambda name: None)
    lora.require_peft(LoraConfig())
    with pytest.raises(EnvironmentFault) as found:
        lora.require_peft(LoraConfig(lora=True))
    assert "whet[lora]" in found.value.hint


def test_a_layer_that_would_have_to_train_is_refused(tiny_model_folder: Path) -> None:
    config = ModelConfig(model=str(tiny_model_folder), pooling="mean")
    with pytest.raises(UsageError, match="appends a layer to train"):
        load_model(config.model, BINARY, config, seed=0, lora=LoraConfig(lora=True))


def test_the_checksum_is_of_the_frozen_weights_alone() -> None:
    model = with_adapters(small_model())
    before = lora.frozen_checksum(model)
    with torch.no_grad():
        model.classifier.weight.add_(1)
        model.bert.encoder.layer[0].intermediate.dense.lora_A["default"].weight.add_(1)
        assert lora.frozen_checksum(model) == before
        model.bert.encoder.layer[0].intermediate.dense.base_layer.weight[0, 0] += 1
        assert lora.frozen_checksum(model) != before


def test_weights_that_were_released_in_bf16_are_held_so_without_another_result() -> None:
    model = decoder("qwen3")
    with torch.no_grad():
        for parameter in model.model.parameters():
            parameter.copy_(parameter.bfloat16())
        exact = model.model.layers[0].mlp.up_proj.weight
        exact.add_(1e-4 * torch.randn_like(exact))
    with_adapters(model)
    checksum, plain = lora.frozen_checksum(model), lora.merged(model)
    with torch.autocast("cpu", torch.bfloat16):
        before = logits(model)
        lora.hold_as_bf16(model)
        assert torch.equal(logits(model), before)
    held = {name: tensor.dtype for name, tensor in model.named_parameters()}
    assert held["model.layers.0.mlp.down_proj.base_layer.weight"] == torch.bfloat16
    assert held["model.layers.0.mlp.up_proj.base_layer.weight"] == torch.float32, "it would lose digits"
    assert held["score.weight"] == held["model.layers.0.mlp.down_proj.lora_A.default.weight"] == torch.float32
    assert lora.frozen_checksum(model) == checksum
    assert all(
        torch.equal(tensor, plain.state_dict()[name]) for name, tensor in lora.merged(model).state_dict().items()
    )


def test_the_library_loads_the_merged_model(tmp_path: Path) -> None:
    model = with_adapters(small_model())
    lora.merged(model).save_pretrained(tmp_path / "model")
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model").eval()
    assert torch.allclose(logits(loaded), logits(model), atol=1e-5)
