"""Models of many families with random weights, and rows as long as MRPC's: what families.py and loop.py measure.

Speed does not depend on the values of weights. The shapes and vocabularies are those of the published models.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from whet.models.pretrained import quiet

ROWS = 1200
LONGEST = 103
BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
SMALL = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
SMALL_VOCABULARY = 30_522
DEBERTA_V3 = {
    "relative_attention": True,
    "position_buckets": 256,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
    "layer_norm_eps": 1e-7,
    "type_vocab_size": 0,
    "max_relative_positions": -1,
    "pooler_hidden_size": 768,
}
ROBERTA = {"pad_token_id": 1, "max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
MODERNBERT = {**BASE, "num_hidden_layers": 22, "intermediate_size": 1152, "vocab_size": 50368}
QWEN3 = {
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "BERT-base": ("bert", {**BASE, "vocab_size": 30522}),
    "DistilBERT": ("distilbert", {"dim": 768, "n_layers": 6, "n_heads": 12, "hidden_dim": 3072, "vocab_size": 30522}),
    "BERT-large": (
        "bert",
        {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
        | {"vocab_size": 30522},
    ),
    "RoBERTa-base": ("roberta", {**BASE, **ROBERTA, "vocab_size": 50265}),
    "XLM-R-base": ("xlm-roberta", {**BASE, **ROBERTA, "vocab_size": 250002}),
    "ModernBERT-base": ("modernbert", {**MODERNBERT, "classifier_pooling": "mean"}),
    "DeBERTa-v3-base": ("deberta-v2", {**BASE, **DEBERTA_V3, "vocab_size": 128100}),
    "MPNet-base": ("mpnet", {**BASE, "pad_token_id": 1, "max_position_embeddings": 514, "vocab_size": 30527}),
    "ALBERT-base": ("albert", {**BASE, "embedding_size": 128, "vocab_size": 30000, "hidden_act": "gelu_new"}),
    "EuroBERT-210m": ("eurobert", {**BASE, "num_key_value_heads": 12, "vocab_size": 128256}),
    "Qwen3-0.6B, LoRA": ("qwen3", QWEN3),
}
"""The model type and the shape of each family, as published."""
SMALL_SHAPES: dict[str, dict[str, Any]] = {
    "DistilBERT": {"dim": 384, "n_layers": 6, "n_heads": 12, "hidden_dim": 1536},
    "ModernBERT-base": {**SMALL, "intermediate_size": 576},
    "DeBERTa-v3-base": {**SMALL, "pooler_hidden_size": 384},
    "EuroBERT-210m": {**SMALL, "num_key_value_heads": 12},
    "Qwen3-0.6B, LoRA": {
        **SMALL,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "intermediate_size": 1152,
    },
}
"""The shapes for a CPU where the names of the settings differ, or sizes of others follow; else `SMALL`."""


def shape_of(family: str, *, small: bool, **sizes: Any) -> tuple[str, dict[str, Any]]:
    """Return the model type and its settings; `sizes` replace some of them."""
    kind, shape = FAMILIES[family]
    smaller = {**SMALL_SHAPES.get(family, SMALL), "vocab_size": SMALL_VOCABULARY} if small else {}
    return kind, {"pad_token_id": 0, **shape, **smaller, **sizes}


def write_model(folder: Path, family: str, *, small: bool, **sizes: Any) -> None:
    """Save a classifier of this family with random weights, and a tokenizer that gives each word one token."""
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification

    kind, shape = shape_of(family, small=small, **sizes)
    special = special_tokens(shape["pad_token_id"])
    ids = {"cls_token_id": special.index("[CLS]"), "sep_token_id": special.index("[SEP]")}
    ids |= {
        "mask_token_id": special.index("[MASK]"),
        "bos_token_id": ids["cls_token_id"],
        "eos_token_id": ids["sep_token_id"],
    }
    config = AutoConfig.for_model(kind, num_labels=2, **{**ids, **shape})
    typed = (getattr(config, "type_vocab_size", None) or 0) > 1
    torch.manual_seed(0)
    with quiet():
        AutoModelForSequenceClassification.from_config(config, dtype=torch.float32).save_pretrained(folder)
        _word_tokenizer(special, shape["vocab_size"], typed).save_pretrained(folder)


def special_tokens(pad_id: int) -> list[str]:
    """Return the first tokens of the vocabulary, with the padding token where the family has it."""
    special = ["[CLS]", "[SEP]", "[UNK]", "[MASK]"]
    special.insert(pad_id, "[PAD]")
    return special


def _word_tokenizer(special: Sequence[str], vocabulary: int, typed: bool) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = [*special, *(f"w{number}" for number in range(vocabulary - len(special)))]
    backend = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1" if typed else "[CLS] $A [SEP] $B [SEP]",
        special_tokens=[(word, special.index(word)) for word in ("[CLS]", "[SEP]")],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=512,
        padding_side="right",
        model_input_names=["input_ids", *(["token_type_ids"] if typed else []), "attention_mask"],
    )


def row_lengths(rows: int = ROWS) -> np.ndarray[Any, Any]:
    """Return token counts spread like those of MRPC's pairs: mean 53, 95% at most about 74, longest 103."""
    lengths = np.random.default_rng(0).gamma(18, 53 / 18, rows).round().astype(int).clip(16, LONGEST)
    lengths[0] = LONGEST
    return lengths


def write_pairs(path: Path, vocabulary: int, rows: int = ROWS) -> None:
    """Write random pairs of these lengths. Few words are frequent and most are rare, as in language."""
    rng = np.random.default_rng(1)
    words = min(vocabulary - 8, 20_000)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("sentence1", "sentence2", "label"))
        for number, length in enumerate(row_lengths(rows)):
            text = [f"w{int(words**share) - 1}" for share in rng.random(length - 3)]  # three tokens are special
            half = len(text) // 2
            writer.writerow((" ".join(text[:half]), " ".join(text[half:]), ("no", "yes")[number % 2]))


def about_rows() -> dict[str, Any]:
    """Return the spread of the lengths, for the results."""
    lengths = row_lengths()
    return {
        "rows": len(lengths),
        "mean": round(float(lengths.mean()), 1),
        "95%": float(np.quantile(lengths, 0.95)),
        "longest": int(lengths.max()),
    }
