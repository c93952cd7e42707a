"""The weights that a fused network computes with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from tests.conftest import random_tokens, small_model
from whet.engine.fused.network import FusedNetwork
from whet.engine.state_tensors import model_tensors
from whet.utils.device import Hardware

BF16 = Hardware(torch.device("cpu"), "bf16", "")


def test_loaded_weights_are_computed_with() -> None:
    tokens, rows = random_tokens(rows=6), np.arange(6)
    used = np.unique(tokens.ids)
    other = FusedNetwork(small_model(width=64, seed=5).eval(), BF16, used)
    network = FusedNetwork(small_model(width=64).eval(), BF16, used)
    weights = {name: tensor.clone() for name, tensor in model_tensors(small_model(width=64, seed=5)).items()}
    network.load_weights(weights)
    assert torch.equal(network.logits(network.collate(tokens, rows)), other.logits(other.collate(tokens, rows)))


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux lists what is mapped")
def test_the_models_file_is_let_go_of(tmp_path: Path) -> None:
    small_model(width=64).save_pretrained(tmp_path)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    network = FusedNetwork(model, BF16, np.arange(50))
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    assert torch.equal(
        network.flat.weight("embeddings.word_embeddings.weight"), network.flat.named[network.flat.word].data[:50]
    )
