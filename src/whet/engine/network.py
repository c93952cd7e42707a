"""Networks and batches of the engine: row numbers in, tensors on the device out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from whet.data.tokens.batches import BatchOrder, pack, pad
from whet.data.tokens.table import Tokens
from whet.engine.exact_attention import exact_attention
from whet.engine.losses import Loss, has_pairs
from whet.engine.packed import Layout, PackedModel, make_layout, why_not_packed
from whet.engine.state_tensors import load_model_tensors
from whet.models.decoders import reads_last_token

Rows = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Batch:
    """Tensors on the device; `layout` is set if the rows are packed instead of padded."""

    inputs: dict[str, Tensor]
    labels: Tensor | None
    layout: Layout | None = None
    share: Tensor | None = None
    """Weight of each row in the loss, if windows share the weight of their text; None if each counts once."""


class BatchSource(Protocol):
    """A training split in its order."""

    @property
    def order(self) -> BatchOrder:
        """The order of the texts."""

    def rows(self, texts: Rows) -> Rows:
        """Return the rows of these texts: one each, or their windows."""

    def batch(self, rows: Rows) -> Batch:
        """Return these rows, ready for the model."""

    def loss_divisor(self, texts: Rows) -> float:
        """Return the divisor of the loss over these texts."""

    def nothing_to_compare(self, rows: Rows) -> bool:
        """Return whether the loss is contrastive and no two of these rows have the same class."""


class Network:
    """Maps a batch to logits, packed if the model supports it."""

    def __init__(self, model: Any, device: torch.device, *, packed: bool = True) -> None:
        self.model = model
        self.device = device
        self._place()
        self.why_padded = why_not_packed(model) if packed else "padding was asked for"
        self._packed = None if self.why_padded else PackedModel(model)
        self.why = self.why_padded
        """The reason why no faster path is used."""

    def _place(self) -> None:
        """Move the weights to the device."""
        self.model.to(self.device)

    def load_weights(self, tensors: Mapping[str, Tensor]) -> None:
        """Load other weights into the same model, strictly by name and shape."""
        load_model_tensors(tensors, self.model)

    def sync_to_module(self) -> None:
        """Make the module hold the current weights; here it always does."""

    @property
    def is_packed(self) -> bool:
        return self._packed is not None

    @property
    def position_shift(self) -> int:
        """The position id of a packed row's first token."""
        return self._packed.shift if self._packed is not None else 0

    @property
    def path(self) -> str:
        """How batches are computed: `packed` or `padded`."""
        return "packed" if self.is_packed else "padded"

    def logits(self, batch: Batch) -> Tensor:
        if self._packed is not None and batch.layout is not None:
            return self._packed(batch.inputs, batch.layout)
        with exact_attention(self.model, first_token_only=True):
            return self.model(**batch.inputs).logits  # type: ignore[no-any-return]

    def logits_and_features(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return logits and, for each row, the hidden state that the head reads."""
        kept: list[Tensor] = []

        def keep(module: Any, args: Any, output: Any) -> None:
            hidden = output[0] if isinstance(output, tuple) else output.last_hidden_state
            kept.append(self._read_by_head(hidden, batch))

        hook = self.model.base_model.register_forward_hook(keep)
        try:
            logits = self.logits(batch)
        finally:
            hook.remove()
        return logits, kept[-1]

    def _read_by_head(self, hidden: Tensor, batch: Batch) -> Tensor:
        """Return [rows, width]: the first token, or whatever this model's head reads instead."""
        mask = batch.inputs.get("attention_mask")
        if batch.layout is not None or mask is None:
            return hidden[:, 0]
        if getattr(self.model.config, "classifier_pooling", "cls") == "mean":
            kept = mask[..., None].to(hidden.dtype)
            return (hidden * kept).sum(dim=1) / kept.sum(dim=1)
        if reads_last_token(type(self.model)):
            # By the token, as in the library: a row may end with the token that pads.
            held = batch.inputs["input_ids"] != self.model.config.get_text_config().pad_token_id
            places = torch.arange(mask.shape[1], device=mask.device)
            return hidden[torch.arange(len(mask), device=mask.device), (held * places).argmax(dim=1)]
        return hidden[:, 0]

    def collate(self, tokens: Tokens, rows: Rows) -> Batch:
        """Return rows of a token table in the format that this network computes fastest."""
        if self._packed is None:
            pad_id = self.model.config.pad_token_id or 0
            return to_device(pad(tokens, rows, pad_id=pad_id), self.device)
        packed = pack(tokens, rows)
        inputs = {"input_ids": packed.input_ids, "position_ids": packed.position_ids + self.position_shift}
        if packed.token_type_ids is not None:
            inputs["token_type_ids"] = packed.token_type_ids
        tensors = {name: torch.from_numpy(array)[None].to(self.device) for name, array in inputs.items()}
        labels = None if packed.labels is None else torch.from_numpy(packed.labels).to(self.device)
        return Batch(tensors, labels, make_layout(packed.cu_seqlens, self.device))


def to_device(arrays: Mapping[str, Any], device: torch.device) -> Batch:
    """Move a padded batch of arrays or tensors to the device, with `labels` apart."""
    tensors = {name: _tensor(value).to(device) for name, value in arrays.items()}
    labels = tensors.pop("labels", None)
    return Batch(tensors, labels)


def _tensor(value: Any) -> Tensor:
    """Share memory with an array of this batch; copy one that is mapped read-only from disk."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value if value.flags.writeable else value.copy())
    return torch.as_tensor(value)


@dataclass(frozen=True)
class TokenBatches:
    """The batches of a token table."""

    tokens: Tokens
    order: BatchOrder
    network: Network
    loss: Loss

    def rows(self, texts: Rows) -> Rows:
        return self.tokens.rows_of(texts)

    def batch(self, rows: Rows) -> Batch:
        batch, share = self.network.collate(self.tokens, rows), self.shares(rows)
        if share is None:
            return batch
        return replace(batch, share=torch.from_numpy(share).to(self.network.device))

    def shares(self, rows: Rows) -> np.ndarray[Any, Any] | None:
        """Return the weight of each row in the loss: one per text, divided over its windows. None if every text is
        one row."""
        if self.tokens.texts is None:
            return None
        return (1.0 / self.tokens.windows(self.tokens.text_of(rows))).astype(np.float32)

    def loss_divisor(self, texts: Rows) -> float:
        assert self.tokens.labels is not None
        return self.loss.loss_divisor(self.tokens.labels[texts])

    def nothing_to_compare(self, rows: Rows) -> bool:
        return self.loss.contrastive > 0 and not has_pairs(np.asarray(self.tokens.labels)[self.tokens.text_of(rows)])
