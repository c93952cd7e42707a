"""Classifiers made from decoders (Qwen3, Gemma, Llama and others), whose head reads the last token of a row.

The library finds that token by the padding token's id, so model and tokenizer must agree on one.
"""

from __future__ import annotations

import inspect
from typing import Any

from whet.errors import ArtifactError
from whet.utils.hf_libraries import skip_unused_imports, transformers_library

LAST = "last_non_pad_token"
"""A local variable in the forward method of every such classifier of the library, by which they are recognised."""


def reads_last_token(kind: type) -> bool:
    """Return whether the head of this class of models reads the last token that is not padding."""
    code = getattr(inspect.unwrap(getattr(kind, "forward", kind)), "__code__", None)
    return code is not None and LAST in code.co_varnames


def becomes_decoder(model_config: Any) -> bool:
    """Return whether the library's classifier for this configuration reads the last token."""
    with skip_unused_imports():
        kinds = transformers_library().AutoModelForSequenceClassification._model_mapping
        kind = kinds.get(type(model_config), object)
    return any(map(reads_last_token, kind if isinstance(kind, tuple) else (kind,)))


def take_padding_token(tokenizer: Any, name: str) -> None:
    """Give a tokenizer without a padding token its end-of-text token for it; raise if it has neither."""
    if tokenizer.pad_token_id is not None:
        return
    if tokenizer.eos_token_id is None:
        raise ArtifactError(
            f"The tokenizer of {name!r} has neither a padding token nor an end-of-text token.",
            "Choose an encoder model such as minilm, or set pad_token in its tokenizer_config.json.",
        )
    tokenizer.pad_token = tokenizer.eos_token


def padding_words(tokenizer: Any) -> str:
    """Return a line about padding by the end-of-text token; empty if the tokenizer has a token of its own for it."""
    if tokenizer.eos_token_id is None or tokenizer.pad_token_id != tokenizer.eos_token_id:
        return ""
    return f"Padding: the end-of-text token {tokenizer.eos_token!r}, for the tokenizer has none of its own."


def pad_on_the_right(model: Any, tokenizer: Any) -> None:
    """Make model and tokenizer agree on the padding, if the model's head reads the last token of a row."""
    if not reads_last_token(type(model)):
        return
    for config in {id(each): each for each in (model.config, model.config.get_text_config())}.values():
        config.pad_token_id = tokenizer.pad_token_id
        config.use_cache = False  # keys and values of earlier tokens: a classifier reads a row once
    tokenizer.padding_side = "right"
