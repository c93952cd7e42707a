"""A network that only predicts: the answers of one that could be trained, in less room."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.conftest import random_tokens, small_model
from whet.engine.fused.cpu.inference_layers import CpuInferenceLayerOps
from whet.engine.fused.network import FusedNetwork
from whet.utils.device import Hardware, instruction_sets

CPU = torch.device("cpu")
BF16 = Hardware(CPU, "bf16", "")
ROWS = np.arange(9)


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "electra"])
def test_frozen_weights_give_the_same_logits(family: str) -> None:
    tokens = random_tokens(rows=9, types=family in ("bert", "electra"))
    trained, frozen = (
        FusedNetwork(small_model(family, width=64).eval(), BF16, training=training) for training in (True, False)
    )
    assert isinstance(frozen.pieces, CpuInferenceLayerOps) == CpuInferenceLayerOps.available()
    with torch.no_grad():
        expected, found = (network.logits(network.collate(tokens, ROWS)) for network in (trained, frozen))
        exact = FusedNetwork(small_model(family, width=64).eval(), Hardware(CPU, "float32", ""), training=False)
        reference = exact.logits(exact.collate(tokens, ROWS))
    # As near to float32 as bf16 is without packing.
    allowed = max(2 * float((expected - reference).abs().max()), 1e-3)
    assert float((found - reference).abs().max()) <= allowed


@pytest.mark.skipif("AVX512" not in instruction_sets(), reason="the packed products take a processor with AVX-512")
def test_weights_are_packed_where_the_processor_can() -> None:
    assert CpuInferenceLayerOps.available()
    network = FusedNetwork(small_model(width=64).eval(), BF16, training=False)
    layer = network.flat.layers[0].weights
    x = torch.randn(5, 64).bfloat16()
    found = network.pieces.linear(x, layer["up"], layer["up_bias"])
    expected = torch.nn.functional.linear(x.float(), layer["up"].float(), layer["up_bias"].float())
    torch.testing.assert_close(found.float(), expected, rtol=0.02, atol=0.02)


def test_there_are_no_masters_of_what_is_only_computed_with() -> None:
    flat = FusedNetwork(small_model(width=64).eval(), BF16, training=False).flat
    embeddings = flat.matrices.size - flat.matrices.computes_until
    assert flat.matrices.master.numel() == embeddings
    assert flat.matrices.first.numel() == flat.matrices.gradient.numel() == 0
