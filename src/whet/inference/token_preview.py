"""Shows how a model would tokenize the examples, from a sample of rows: for `whet check`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from whet.config import ModelConfig
from whet.data.audit.audit import Audit
from whet.data.audit.tokenizer_fit import with_tokens
from whet.data.example_files import SplitRows
from whet.data.examples import Examples
from whet.data.tokens.bare_tokenizer import bare_tokenizer
from whet.data.tokens.encoders import Encoder, FastEncoder, choose_encoder
from whet.data.tokens.facts import Alphabet, TokenFacts, token_facts
from whet.data.tokens.pieces import Long
from whet.data.tokens.table import tokens_of

SAMPLE_ROWS = 2000
SAMPLE_BYTES = 4_000_000
"""The size of the sample per split; tokenizing it takes 0.1 s."""


def as_read(report: Audit, examples: Examples, config: ModelConfig) -> Audit:
    """Return the audit with the tokenizer's findings about a sample.

    The tokenizer of a local model is read without transformers. The default model is used only if it is local; a
    chosen one is loaded as for training.
    """
    from whet.models.pretrained import find_model, length_limit

    found = find_model(config.model, config.trust_remote_code)
    bare = bare_tokenizer(Path(found)) if Path(found).is_dir() else None
    if bare is None and config.model == ModelConfig.model:
        return report
    if bare is not None:
        tokenizer, model_config = bare
        alphabet = tokenizer.alphabet
    else:
        tokenizer, model_config = _loaded(config)
        alphabet = Alphabet.of(tokenizer)
    limit = length_limit(tokenizer, model_config, config.max_length)
    facts = {}
    for name, split in examples.rows.items():
        rows = _sample(split)
        if len(rows):
            facts[name] = _facts(rows, tokenizer, alphabet, limit, config.long, sampled=len(rows) < len(split))
    return with_tokens(report, facts, config.model, limit, config.long)


def _loaded(config: ModelConfig) -> tuple[Any, Any]:
    from whet.models.pretrained import load_config, load_tokenizer

    return load_tokenizer(config.model, config), load_config(config.model, config)


def _sample(split: SplitRows) -> SplitRows:
    """Return rows from the whole split, as many as the limits allow, and at least one."""
    import pyarrow.compute as pc

    rows = np.unique(np.linspace(0, len(split) - 1, min(SAMPLE_ROWS, len(split))).astype(np.int64))
    table = split.table.take(rows)
    names = [name for name in ("text", "pair") if name in split.column_names]
    sizes = sum(pc.binary_length(table.column(name)).fill_null(0).to_numpy() for name in names)
    keep = np.random.default_rng(0).permutation(len(rows))
    fits = int(np.searchsorted(np.cumsum(sizes[keep]), SAMPLE_BYTES))
    return SplitRows(table.take(np.sort(keep[: max(fits, 1)])))


def _facts(rows: SplitRows, tokenizer: Any, alphabet: Alphabet, limit: int, long: Long, *, sampled: bool) -> TokenFacts:
    import pyarrow as pa

    first, second = (
        rows.table.column(name).combine_chunks().cast(pa.large_string()).fill_null("")
        if name in rows.column_names
        else None
        for name in ("text", "pair")
    )
    fast = FastEncoder.of(tokenizer, limit, pairs=second is not None)
    encoder: Encoder = (
        choose_encoder(tokenizer, first, second, limit, long) if fast is None else replace(fast, long=long)
    )
    tokens = tokens_of(encoder(first, second).never_empty(alphabet.unknown or 0))
    return token_facts(tokens, rows, alphabet, sampled=sampled)
