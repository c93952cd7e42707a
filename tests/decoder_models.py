"""Tiny decoders with random weights, and a tokenizer that adds no special tokens: what Qwen3 and Llama folders hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from whet.tools.selftest.tiny_run import WORDS

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "bos_token_id": None,
    "eos_token_id": 1,
}
GROUPED = {"num_key_value_heads": 2, "head_dim": 8}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3": GROUPED,
    "llama": GROUPED,
    "gemma": GROUPED,
    "gpt2": {},
}
END = "<|endoftext|>"


def decoder_config(family: str = "qwen3", **others: Any) -> Any:
    from transformers import AutoConfig

    return AutoConfig.for_model(family, **{**SIZES, **FAMILIES[family], "vocab_size": 64, **others})


def small_decoder(family: str = "qwen3", *, seed: int = 0, **others: Any) -> Any:
    """A classifier of this family with random weights."""
    import torch
    from transformers import AutoModelForSequenceClassification

    torch.manual_seed(seed)
    return AutoModelForSequenceClassification.from_config(decoder_config(family, **others))


def decoder_tokenizer(*, padding: bool = True, end: bool = True, side: str = "right") -> Any:
    """A tokenizer of words, with or without a token for padding and one for the end of a text."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    known = ["<unk>", END, "<|pad|>", "no", "yes", *WORDS]
    backend = Tokenizer(models.WordLevel({word: number for number, word in enumerate(known)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    own = {"pad_token": "<|pad|>"} if padding else {}
    own |= {"eos_token": END} if end else {}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token="<unk>",
        model_max_length=64,
        padding_side=side,
        model_input_names=["input_ids", "attention_mask"],
        **own,
    )


def write_decoder(folder: Path, family: str = "qwen3", **tokenizer: Any) -> None:
    """Save a decoder without a head and its tokenizer; the configuration names no padding token, as in Qwen3."""
    import torch
    from transformers import AutoModel

    torch.manual_seed(1)
    AutoModel.from_config(decoder_config(family)).save_pretrained(folder)
    decoder_tokenizer(**tokenizer).save_pretrained(folder)
