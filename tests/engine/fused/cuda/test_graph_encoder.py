"""Replayed forward passes on CUDA: the answers of the same layers launched one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import random_tokens, small_model
from whet.engine.fused.network import FusedNetwork
from whet.utils.device import choose_hardware

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
TOKENS = random_tokens(90)
MANY, FEW, ONE = np.arange(90), np.arange(40, 47), np.arange(3, 4)


def network(family: str = "bert", *, training: bool = False) -> FusedNetwork:
    model = small_model(family, width=128, layers=3).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2 and "embeddings" not in name:
                weight *= 6  # else attention hardly moves the logits
    return FusedNetwork(model, choose_hardware("cuda", "bf16"), training=training)


def logits(network: FusedNetwork, rows: Any, tokens: Any = TOKENS) -> Any:
    with torch.no_grad():
        return network.logits(network.collate(tokens, rows)).float().cpu().numpy()


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "electra"])
def test_every_time_a_batch_comes_it_has_the_same_logits(family: str) -> None:
    tokens = random_tokens(90, types=family in ("bert", "electra"))
    replayed = network(family)
    launched = [logits(replayed, rows, tokens) for rows in (MANY, FEW, ONE)]
    for _ in range(3):
        for rows, expected in zip((MANY, FEW, ONE), launched, strict=True):
            np.testing.assert_array_equal(logits(replayed, rows, tokens), expected)


@pytest.mark.parametrize("short", [True, False])
def test_they_are_those_of_a_network_that_can_be_trained(short: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from whet.engine.fused.cuda import layers  # needs Triton, which machines without a GPU may lack

    if not short:
        monkeypatch.setattr(layers, "fits", lambda *_: False)
    replayed, plain = network(), network(training=True)
    for rows in (FEW, MANY, FEW, ONE):
        np.testing.assert_allclose(logits(replayed, rows), logits(plain, rows), atol=0.1)


def test_a_batch_is_captured_when_its_size_comes_again() -> None:
    replayed: Any = network()
    for rows in (FEW, MANY):
        logits(replayed, rows)
    assert [forward.graph is None for forward in replayed.encoder._forwards.values()] == [True, True]
    logits(replayed, ONE)
    assert [forward.graph is None for forward in replayed.encoder._forwards.values()] == [False, True]


def test_more_rows_than_a_graph_has_places_for_are_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    from whet.engine.fused.cuda import graph_encoder as replay

    monkeypatch.setattr(replay, "MAX_ROWS", 50)
    replayed, plain = network(), network(training=True)
    for rows in (FEW, FEW, MANY):
        np.testing.assert_allclose(logits(replayed, rows), logits(plain, rows), atol=0.1)
