from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import random_tokens, small_model
from whet.config import TrainConfig
from whet.engine.dispatch import choose_network, choose_path
from whet.engine.losses import Loss
from whet.engine.stepper import precision
from whet.task import Task
from whet.utils.device import Hardware

BF16 = Hardware(torch.device("cpu"), "bf16", "asked for")


def is_coarse(logits: Any) -> bool:
    """Whether all of them are numbers that bf16 has."""
    return bool((logits == logits.bfloat16().float()).all())


def logits_of(network: Any, tokens: Any) -> Any:
    network.model.eval()
    with torch.no_grad(), precision(BF16):
        return network.logits(network.collate(tokens, np.arange(len(tokens)))).float()


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "electra", "modernbert"])
@pytest.mark.parametrize("training", [True, False])
def test_numbers_have_more_digits_than_bf16(family: str, training: bool) -> None:
    tokens = random_tokens(kind="regression", types=family == "bert")
    model = small_model(family, labels=1)
    if training:
        network, _ = choose_path(model, Loss(Task("regression", ())), TrainConfig(), BF16, [tokens])
    else:
        network = choose_network(model, BF16)
    assert not is_coarse(logits_of(network, tokens))


def test_classes_are_computed_as_before() -> None:
    network = choose_network(small_model("bert", labels=2), BF16)
    assert is_coarse(logits_of(network, random_tokens()))
