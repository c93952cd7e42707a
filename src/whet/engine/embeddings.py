"""Embeddings of texts by the untrained encoder: the mean of each row's last hidden states.

The frozen baseline uses these. It needs the model as it was loaded, before training changes its weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from whet.data.tokens.pieces import Long
from whet.data.tokens.table import TextTokenizer, Tokens
from whet.engine.exact_attention import exact_attention
from whet.engine.logits import Interrupt, compute_logits, tokens_per_batch
from whet.engine.network import Batch, Network, Rows
from whet.utils.arrays import Array
from whet.utils.device import Hardware

MAX_ROWS_PER_BATCH = 1024


class MeanNetwork(Network):
    """The model's encoder without its head: maps a batch to the mean hidden state of each row's tokens."""

    def __init__(self, model: Any, hardware: Hardware) -> None:
        super().__init__(model, hardware.device, packed=False)
        paired = getattr(model.config, "is_encoder_decoder", False)
        self._encoder = model.get_encoder() if paired else model.base_model

    def logits(self, batch: Batch) -> Tensor:
        with exact_attention(self.model):
            hidden = self._encoder(**batch.inputs)[0].float()
        mask = batch.inputs["attention_mask"][..., None].to(hidden.dtype)
        return (hidden * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)  # type: ignore[no-any-return]


def mean_token_features(
    model: Any,
    tokens: Tokens,
    hardware: Hardware,
    *,
    rows: Rows | None = None,
    check_interrupt: Interrupt = lambda: None,
) -> Array:
    """Return float32 [rows, width] in input order; leaves the model in evaluation mode on the device."""
    if not (len(tokens) if rows is None else len(rows)):
        return np.zeros((0, model.config.hidden_size), dtype=np.float32)
    return compute_logits(
        MeanNetwork(model, hardware),
        tokens,
        hardware,
        batch_rows=MAX_ROWS_PER_BATCH,
        batch_tokens=tokens_per_batch(hardware.device),
        rows=rows,
        check_interrupt=check_interrupt,
    )


def embed_texts(
    model: Any,
    tokenizer: Any,
    texts: Sequence[str],
    hardware: Hardware,
    max_length: int,
    long: Long = "head",
    *,
    check_interrupt: Interrupt = lambda: None,
) -> Array:
    """Return float32 [texts, width], each text on its own, as the texts of a pair must be. Equal texts are computed
    once."""
    distinct = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    tokens = TextTokenizer(tokenizer, max_length, long)(list(distinct))
    features = mean_token_features(model, tokens, hardware, check_interrupt=check_interrupt)
    return features[[distinct[text] for text in texts]]
