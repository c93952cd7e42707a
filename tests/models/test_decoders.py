"""Decoders as classifiers: which they are, and the token that pads their rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from tests.conftest import FAMILIES as ENCODERS
from tests.conftest import small_model
from tests.decoder_models import END, FAMILIES, decoder_config, small_decoder, write_decoder
from whet.config import ModelConfig
from whet.errors import ArtifactError, UsageError
from whet.models.decoders import becomes_decoder, pad_on_the_right, padding_words, reads_last_token
from whet.models.pooling import set_pooling
from whet.models.pretrained import load_model, load_saved, load_tokenizer, save_model
from whet.task import Task
from whet.training.recipe import pooling_for

BINARY = Task("binary", ("bad", "good"))


def loaded(folder: Path) -> tuple[Any, Any]:
    """Model and tokenizer as a run has them."""
    config = ModelConfig(model=str(folder))
    model, tokenizer = load_model(config.model, BINARY, config, seed=0).model, load_tokenizer(config.model, config)
    pad_on_the_right(model, tokenizer)
    return model, tokenizer


def test_decoders_are_told_from_encoders() -> None:
    assert all(reads_last_token(type(small_decoder(family))) for family in FAMILIES)
    assert all(becomes_decoder(decoder_config(family)) for family in FAMILIES)
    for family in ENCODERS:
        model = small_model(family)
        assert not reads_last_token(type(model))
        assert not becomes_decoder(model.config)


def test_the_model_pads_with_the_token_of_its_tokenizer(tmp_path: Path) -> None:
    write_decoder(tmp_path, side="left")
    model, tokenizer = loaded(tmp_path)
    assert (model.config.pad_token_id, model.config.use_cache) == (2, False)
    assert padding_words(tokenizer) == ""


def test_the_end_of_a_text_pads_where_there_is_no_token_for_it(tmp_path: Path) -> None:
    write_decoder(tmp_path, padding=False)
    model, tokenizer = loaded(tmp_path)
    assert (tokenizer.pad_token, model.config.pad_token_id) == (END, 1)
    assert repr(END) in padding_words(tokenizer)


def test_a_tokenizer_with_neither_is_refused(tmp_path: Path) -> None:
    write_decoder(tmp_path, padding=False, end=False)
    with pytest.raises(ArtifactError, match="neither a padding token nor an end-of-text token"):
        loaded(tmp_path)


def test_a_classifier_of_another_tool_is_read_in_batches(tmp_path: Path) -> None:
    write_decoder(tmp_path, padding=False)
    AutoModelForSequenceClassification.from_pretrained(tmp_path, num_labels=2).save_pretrained(tmp_path)
    model, tokenizer, _ = load_saved(tmp_path)
    batch = tokenizer(["yes apple", "no"], padding=True, return_tensors="pt")
    assert model(**batch).logits.shape == (2, 2)


def test_the_saved_folder_pads_by_itself(tmp_path: Path) -> None:
    write_decoder(tmp_path / "base", side="left")
    save_model(*loaded(tmp_path / "base"), tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model")
    assert tokenizer.padding_side == "right"
    assert model.config.pad_token_id == tokenizer.pad_token_id == 2


@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_another_token_cannot_be_read(pooling: str) -> None:
    with pytest.raises(UsageError, match="the head of a qwen3 model reads the last token"):
        set_pooling(small_decoder(), pooling)


def test_the_recipe_leaves_the_pooling_of_decoders() -> None:
    assert pooling_for(40, decoder_config(), lambda: "mean") == "auto"
    assert pooling_for(40, small_model().config, lambda: "mean") == "mean"
    assert pooling_for(40, small_model().config, lambda: "mean", lora=True) == "first"
    modern = small_model("modernbert").config
    assert pooling_for(40, modern, lambda: "mean", lora=True) == "mean"


def test_attention_ignores_padding() -> None:
    model = small_decoder(pad_token_id=2).eval()
    ids = torch.tensor([[5, 6, 7, 2, 2]])
    with torch.no_grad():
        padded = model(input_ids=ids, attention_mask=(ids != 2).long()).logits
        assert torch.allclose(padded, model(input_ids=ids[:, :3]).logits, atol=1e-6)
