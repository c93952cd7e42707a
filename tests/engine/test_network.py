"""Networks of decoders: their logits, losses and features are the library's on rows that are padded on the right."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.conftest import random_tokens
from tests.decoder_models import FAMILIES, small_decoder
from whet.engine.dispatch import choose_network
from whet.engine.losses import Loss
from whet.engine.network import Network
from whet.task import Task
from whet.utils.device import choose_hardware

PAD = 2
ROWS = np.arange(8)


def network_of(family: str) -> Network:
    model = small_decoder(family, vocab_size=400, pad_token_id=PAD).eval()
    network = choose_network(model, choose_hardware("cpu", "float32"))
    assert (network.path, network.model) == ("padded", model)
    return network


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_loss_of_a_decoder_are_the_librarys(family: str) -> None:
    network, tokens = network_of(family), random_tokens(8, types=False)
    batch = network.collate(tokens, ROWS)
    theirs = network.model(**batch.inputs, labels=batch.labels)
    logits = network.logits(batch)
    assert torch.equal(logits, theirs.logits)
    assert batch.labels is not None
    loss = Loss(Task("binary", ("bad", "good"))).total(logits, batch.labels) / len(ROWS)
    assert torch.allclose(loss, theirs.loss, atol=1e-6)
    for row in ROWS:
        own = torch.from_numpy(tokens.ids[tokens.offsets[row] : tokens.offsets[row + 1]].astype(np.int64))
        assert torch.allclose(network.model(input_ids=own[None]).logits[0], logits[row], atol=1e-5)


@pytest.mark.parametrize("family", ["qwen3", "gpt2"])
def test_the_features_are_what_the_head_reads(family: str) -> None:
    network, tokens = network_of(family), random_tokens(8, types=False)
    tokens.ids[tokens.offsets[3] - 1] = PAD  # the third row ends with the token that pads
    logits, features = network.logits_and_features(network.collate(tokens, ROWS))
    assert torch.allclose(network.model.score(features), logits, atol=1e-6)
