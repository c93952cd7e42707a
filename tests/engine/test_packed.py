"""A packed batch gives what the padded batch gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import FAMILIES, random_tokens, small_model
from whet.data.tokens.batches import pad
from whet.engine.network import Network, to_device
from whet.engine.packed import why_not_packed

CPU = torch.device("cpu")
ROWS = np.arange(6)


def tokens_for(family: str) -> Any:
    return random_tokens(rows=6, types=family in ("bert", "electra"))


def padded_logits(model: Any, tokens: Any) -> torch.Tensor:
    return Network(model, CPU, packed=False).logits(to_device(pad(tokens, ROWS, pad_id=0), CPU))


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_logits_equal_padded_logits(family: str) -> None:
    model, tokens = small_model(family).eval(), tokens_for(family)
    expected = padded_logits(model, tokens)
    network = Network(model, CPU)
    assert network.is_packed
    torch.testing.assert_close(network.logits(network.collate(tokens, ROWS)), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_gradients_equal_padded_gradients(family: str) -> None:
    model, tokens = small_model(family).train(), tokens_for(family)
    padded_logits(model, tokens).square().sum().backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    network = Network(model, CPU)
    network.logits(network.collate(tokens, ROWS)).square().sum().backward()
    for name, parameter in model.named_parameters():
        if name in expected:
            torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("training", [False, True])
def test_a_head_that_reads_the_mean_reads_that_of_its_own_row(training: bool) -> None:
    model, tokens = small_model("modernbert", dropout=0.0).train(training), tokens_for("modernbert")
    model.config.classifier_pooling = "mean"
    expected = padded_logits(model, tokens)
    network = Network(model, CPU)
    batch = network.collate(tokens, ROWS)
    logits, features = network.logits_and_features(batch)
    assert network.is_packed
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-6)
    padded = Network(model, CPU, packed=False)
    read = padded.logits_and_features(padded.collate(tokens, ROWS))[1]
    torch.testing.assert_close(features, read, rtol=1e-5, atol=1e-6)
    gradients = []
    for outcome in (logits, expected):
        outcome.square().sum().backward()
        gradients.append({name: each.grad.clone() for name, each in model.named_parameters()})
        model.zero_grad()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-4, atol=5e-5, msg=name)


def test_a_packed_model_still_takes_padded_batches() -> None:
    model, tokens = small_model().eval(), tokens_for("bert")
    expected = padded_logits(model, tokens)
    network = Network(model, CPU)
    network.logits(network.collate(tokens, ROWS))
    torch.testing.assert_close(padded_logits(model, tokens), expected)


def test_a_row_is_not_influenced_by_its_neighbours() -> None:
    model, tokens = small_model().eval(), tokens_for("bert")
    network = Network(model, CPU)
    together = network.logits(network.collate(tokens, ROWS))
    alone = torch.cat([network.logits(network.collate(tokens, ROWS[i : i + 1])) for i in range(6)])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-6)


def test_a_family_that_cannot_be_packed_says_why() -> None:
    model = small_model()
    model.config.model_type = "albert"
    assert "albert" in why_not_packed(model)
