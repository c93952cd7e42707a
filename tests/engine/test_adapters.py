"""Models with LoRA adapters in the engine: which path takes them, and their steps in a loop of one's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import peft
import pytest
import torch

from tests.conftest import random_tokens, small_model
from tests.decoder_models import small_decoder
from tests.engine.captured import test_stepper
from tests.engine.own_loop import Both, make_batches
from whet.config import TrainConfig, make_config
from whet.engine.dispatch import choose_path
from whet.engine.losses import Loss
from whet.engine.network import Network
from whet.engine.stepper import Stepper
from whet.models.lora import add_adapters, frozen_names
from whet.task import Task
from whet.utils.device import Hardware, choose_hardware

TASK = Task("binary", ("bad", "good"))
NO_TYPES = ("input_ids", "attention_mask", "labels")


def adapted(model: Any) -> Any:
    torch.manual_seed(3)
    add_adapters(model, make_config({"lora": True, "lora_rank": 4, "lora_dropout": 0}).lora)
    return model


def chosen(model: Any, hardware: Hardware) -> tuple[Network, Stepper]:
    return choose_path(model, Loss(TASK), TrainConfig(), hardware, [random_tokens(types=False)])


@pytest.mark.parametrize("family, path", [("bert", "packed"), ("modernbert", "packed"), ("qwen3", "padded")])
def test_a_step_changes_adapters_and_head_alone(family: str, path: str) -> None:
    base = small_decoder(vocab_size=400, pad_token_id=2) if family == "qwen3" else small_model(family, width=64)
    model = adapted(base)
    network, stepper = chosen(model, choose_hardware("cpu", "float32"))
    assert network.path == path
    assert family != "bert" or network.why == "it has adapters"
    before = {name: each.clone() for name, each in model.named_parameters()}
    tokens = random_tokens(types=False)
    for _ in range(2):  # the first step moves only the half of an adapter that is zero
        stepper.model.train()
        stepper.backward(network.collate(tokens, np.arange(8)), 8.0)
        stepper.optimizer.step()
        stepper.zero()
    moved = {name for name, each in model.named_parameters() if not torch.equal(each, before[name])}
    assert moved == before.keys() - frozen_names(model)
    assert stepper.tensors()["model"].keys() == moved


@pytest.mark.parametrize("family", ["bert", "qwen3"])
def test_captured_steps_of_adapters_are_those_of_the_plain_path(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(family: str, **_: Any) -> Any:
        return adapted(small_model() if family == "bert" else small_decoder(vocab_size=400, pad_token_id=2))

    monkeypatch.setattr(test_stepper, "small_model", make)
    one, other = (test_stepper.Training(captured, family=family, contrastive=0.5) for captured in (True, False))
    test_stepper.assert_equal_trainings(one, other)


@pytest.mark.gpu
def test_frozen_matrices_of_a_model_in_bf16_stay_so_on_a_gpu() -> None:
    model = small_decoder(vocab_size=400, pad_token_id=2)
    with torch.no_grad():
        for parameter in model.model.parameters():
            parameter.copy_(parameter.bfloat16())
    chosen(adapted(model), choose_hardware("cuda", "bf16"))
    layer = model.model.layers[0].mlp.up_proj
    assert layer.base_layer.weight.dtype == torch.bfloat16
    assert layer.lora_A["default"].weight.dtype == torch.float32


@pytest.mark.parametrize("family", ["bert", "qwen3"])
def test_steps_of_a_peft_model_are_the_plain_loops(family: str) -> None:
    settings = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules="all-linear")
    model = small_decoder(vocab_size=400, pad_token_id=0) if family == "qwen3" else small_model(width=64)
    both = Both(peft.get_peft_model(model, settings))
    names = NO_TYPES if family == "qwen3" else (*NO_TYPES, "token_type_ids")
    for batch in make_batches(3):
        both.take({name: batch[name] for name in names}, path="plain (the model is a Peft")


def test_a_decoder_is_stepped_by_its_own_forward() -> None:
    both = Both(small_decoder(vocab_size=400, pad_token_id=0))
    for batch in make_batches(2):
        both.take({name: batch[name] for name in NO_TYPES}, path="plain (qwen3 has no packed attention here")


def test_adapters_that_are_added_between_two_steps_are_seen() -> None:
    first, second = make_batches(2)
    both = Both(small_model(width=64))
    both.take(first)
    both.do(lambda loop: adapted(loop.model))
    assert float(both.step(second)) == pytest.approx(both.plain(second)[0], rel=1e-5)
    assert both.step.path.startswith("plain (a part of the model is a peft.")
