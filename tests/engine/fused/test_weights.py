"""Weights that are loaded into a fused network are the ones it computes with."""

from __future__ import annotations

import numpy as np
import torch

from tests.conftest import random_tokens, small_model
from whet.engine.devices import Hardware
from whet.engine.fused.step import FusedNetwork
from whet.engine.tensors import model_tensors

BF16 = Hardware(torch.device("cpu"), "bf16", "")


def test_loaded_weights_are_computed_with() -> None:
    tokens, rows = random_tokens(rows=6), np.arange(6)
    used = np.unique(tokens.ids)
    other = FusedNetwork(small_model(width=64, seed=5).eval(), BF16, used)
    network = FusedNetwork(small_model(width=64).eval(), BF16, used)
    weights = {name: tensor.clone() for name, tensor in model_tensors(small_model(width=64, seed=5)).items()}
    network.load_weights(weights)
    assert torch.equal(network.logits(network.collate(tokens, rows)), other.logits(other.collate(tokens, rows)))
