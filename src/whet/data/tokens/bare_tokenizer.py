"""Reads a saved tokenizer without transformers, from its own file, in about 30 ms."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from whet.data.tokens.facts import Alphabet

ENDLESS = 10**30
"""The limit that transformers uses for a tokenizer without one."""


@dataclass(frozen=True)
class BareTokenizer:
    """The properties of a tokenizer that the encoders need, from `tokenizer.json` and `tokenizer_config.json`."""

    backend_tokenizer: Any
    truncation_side: str
    model_input_names: tuple[str, ...]
    model_max_length: int
    alphabet: Alphabet
    is_fast: bool = True
    split_special_tokens: bool = False


def bare_tokenizer(folder: Path) -> tuple[BareTokenizer, Any] | None:
    """Return a model folder's tokenizer and the model's configuration; None if transformers is needed."""
    from tokenizers import Tokenizer

    try:
        text = (folder / "tokenizer.json").read_text(encoding="utf-8")
        parts = json.loads(text)
        about = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        config = SimpleNamespace(**json.loads((folder / "config.json").read_text(encoding="utf-8")))
        if "auto_map" in about or not hasattr(config, "model_type"):
            return None
        backend = Tokenizer.from_str(text)
        special = [int(token["id"]) for token in parts["added_tokens"] if token["special"]]
        unknown = parts["model"].get("unk_id", backend.token_to_id(parts["model"].get("unk_token") or ""))
        limit = min(int(about.get("model_max_length", ENDLESS)), ENDLESS)
    except Exception:  # transformers reports the error, if there is one
        return None
    names = ["input_ids", "attention_mask"]
    if config.model_type in ("bert", "electra", "deberta", "deberta-v2", "albert"):
        names.append("token_type_ids")
    found = BareTokenizer(
        backend_tokenizer=backend,
        truncation_side=str(about.get("truncation_side", "right")),
        model_input_names=tuple(names),
        model_max_length=limit,
        alphabet=Alphabet(unknown, tuple(each for each in special if each != unknown)),
    )
    return found, config
