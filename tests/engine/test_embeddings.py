"""Mean tokens of the pretrained encoder: each row's own, in input order, without padding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import FAMILIES, random_tokens, small_model
from whet.config import ModelConfig
from whet.engine.embeddings import embed_texts, mean_token_features
from whet.models.pretrained import load_model, load_tokenizer
from whet.task import Task
from whet.utils.device import choose_hardware

EXACT = choose_hardware("cpu", "float32")


def one_by_one(model: Any, tokens: Any) -> Any:
    model.eval()
    found = []
    for row in range(len(tokens)):
        inputs = {"input_ids": torch.from_numpy(tokens.row(row).astype(np.int64))[None]}
        if tokens.types is not None:
            types = tokens.types[tokens.offsets[row] : tokens.offsets[row + 1]]
            inputs["token_type_ids"] = torch.from_numpy(types.astype(np.int64))[None]
        with torch.no_grad():
            found.append(model.base_model(**inputs).last_hidden_state[0].mean(dim=0).numpy())
    return np.stack(found)


@pytest.mark.parametrize("family", FAMILIES)
def test_features_are_the_means_of_rows_computed_alone(family: str) -> None:
    model, tokens = small_model(family), random_tokens(types=family in ("bert", "electra"))
    found = mean_token_features(model, tokens, EXACT)
    np.testing.assert_allclose(found, one_by_one(model, tokens), atol=1e-5)
    assert found.dtype == np.float32


def test_rows_can_be_chosen() -> None:
    model, tokens, rows = small_model(), random_tokens(), np.array([7, 2, 2, 19])
    found = mean_token_features(model, tokens, EXACT, rows=rows)
    np.testing.assert_allclose(found, mean_token_features(model, tokens, EXACT)[rows], atol=1e-5)


def test_no_rows_have_no_features() -> None:
    assert mean_token_features(small_model(), random_tokens(), EXACT, rows=np.zeros(0, np.int64)).shape == (0, 32)


def test_an_encoder_with_a_decoder_is_read_at_its_encoder() -> None:
    from transformers import BartConfig, BartForSequenceClassification

    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    config = BartConfig(
        vocab_size=400, encoder_attention_heads=2, decoder_attention_heads=2, max_position_embeddings=64, **sizes
    )
    model, tokens = BartForSequenceClassification(config).eval(), random_tokens(4, types=False)
    with torch.no_grad():
        alone = model.get_encoder()(torch.from_numpy(tokens.row(0).astype(np.int64))[None]).last_hidden_state
    np.testing.assert_allclose(mean_token_features(model, tokens, EXACT)[0], alone[0].mean(dim=0), atol=1e-5)


def saved(folder: Path) -> tuple[Any, Any]:
    task, config = Task("binary", ("no", "yes")), ModelConfig()
    return load_model(str(folder), task, config, seed=0).model, load_tokenizer(str(folder), config)


def test_texts_keep_their_order_and_equal_ones_are_equal(tiny_model_folder: Path) -> None:
    texts = ["a much longer text of many words", "short", "", "short"]
    model, tokenizer = saved(tiny_model_folder)
    found = embed_texts(model, tokenizer, texts, EXACT, 32)
    for text, row in zip(texts, found, strict=True):
        np.testing.assert_allclose(embed_texts(model, tokenizer, [text], EXACT, 32)[0], row, atol=1e-5)
    np.testing.assert_array_equal(found[1], found[3])


def test_texts_are_cut_to_the_length(tiny_model_folder: Path) -> None:
    model, tokenizer = saved(tiny_model_folder)
    long, longer = embed_texts(model, tokenizer, ["a " * 50, "a " * 60], EXACT, 8)
    np.testing.assert_array_equal(long, longer)
