"""The forward pass of the fused encoder and the model's head."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whet.data.tokens.batches import pack
from whet.data.tokens.table import Tokens
from whet.engine.fused.architectures import shape_of
from whet.engine.fused.cpu.encoder import CpuEncoder
from whet.engine.fused.cpu.inference_layers import CpuInferenceLayerOps
from whet.engine.fused.cpu.layers import CpuLayerOps
from whet.engine.fused.encoder import Encoder, Inputs
from whet.engine.fused.parameters import FlatModel
from whet.engine.network import Batch, Network, Rows
from whet.engine.packed import GRID_GRAIN, Layout, make_layout
from whet.models.families import position_shift
from whet.utils.device import Hardware


class FusedNetwork(Network):
    """Logits by the hand-written encoder and the library's head."""

    def __init__(
        self,
        model: Any,
        hardware: Hardware,
        used: Any = None,
        *,
        decay: bool = False,
        seed: int = 0,
        most: tuple[int, int] = (0, 0),
        training: bool = True,
    ) -> None:
        """`most` is the largest number of rows and tokens of a training batch."""
        super().__init__(model, hardware.device)
        kind = torch.bfloat16 if hardware.bf16 else torch.float32
        self.flat = FlatModel(model, hardware.device, kind, used, decay, training)
        self.shift = position_shift(model.config)
        self.pieces: Any = CpuLayerOps(seed)
        if hardware.device.type == "cpu" and hardware.bf16 and not training and CpuInferenceLayerOps.available():
            self.pieces = CpuInferenceLayerOps()
        if hardware.device.type == "cuda":
            from whet.engine.fused.cuda.layers import CudaLayerOps, partial_elements

            room = partial_elements(shape_of(model).hidden, *most) if training else 0
            self.pieces = CudaLayerOps(self.flat.small, room)
        self.encoder = self._make_encoder(training)
        self.add = False
        self.why = ""
        self.words_seen = 0
        """Rows of the word embedding up to this one may have had a gradient, later ones never. Kept on the CPU."""
        self.finish_pending_update: Callable[[], None] = lambda: None
        """Applies a pending update before the weights are read."""

    def _make_encoder(self, training: bool) -> Encoder:
        kind: type[Encoder] = CpuEncoder if self.device.type == "cpu" else Encoder
        if self.device.type == "cuda" and not training:
            from whet.engine.fused.cuda.graph_encoder import ReplayedEncoder as kind
        return kind(self.flat, shape_of(self.model), self.pieces)

    def _place(self) -> None:
        """Weights go directly into the flat buffers, so that the device never holds two copies."""
        for module in self.model.modules():
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, buffer.to(self.device))

    def load_weights(self, tensors: Mapping[str, Tensor]) -> None:
        super().load_weights(tensors)
        self.flat.load_from_module()

    def sync_to_module(self) -> None:
        self.finish_pending_update()
        self.flat.sync_to_module()

    @property
    def path(self) -> str:
        return "fused"

    def logits(self, batch: Batch) -> Tensor:
        return head_logits(self.model, self._hidden(batch))

    def logits_and_features(self, batch: Batch) -> tuple[Tensor, Tensor]:
        hidden = self._hidden(batch)
        return head_logits(self.model, hidden), hidden[:, 0]

    def _hidden(self, batch: Batch) -> Tensor:
        training = self.model.training and torch.is_grad_enabled()
        self.finish_pending_update()
        if training and self.device.type == "cpu":
            self.words_seen = max(self.words_seen, int(batch.inputs["input_ids"].max()) + 1)
        return self.encoder.first_hidden(self._inputs(batch), training=training, add=self.add)

    def collate(self, tokens: Tokens, rows: Rows) -> Batch:
        packed = pack(tokens, rows)
        inputs = {
            "input_ids": self.flat.new_id[packed.input_ids],
            "position_ids": packed.position_ids + self.shift,
        }
        if packed.token_type_ids is not None:
            inputs["token_type_ids"] = packed.token_type_ids
        grain = 1
        if self.device.type == "cpu":
            inputs, grain = {name: _in_bucket(array) for name, array in inputs.items()}, GRID_GRAIN
        tensors = {name: torch.from_numpy(array).to(self.device) for name, array in inputs.items()}
        labels = None if packed.labels is None else torch.from_numpy(packed.labels).to(self.device)
        return Batch(tensors, labels, make_layout(packed.cu_seqlens, self.device, grain))

    def _inputs(self, batch: Batch) -> Inputs:
        layout = batch.layout
        assert isinstance(layout, Layout)
        return Inputs(
            batch.inputs["input_ids"],
            batch.inputs["position_ids"],
            batch.inputs.get("token_type_ids"),
            layout.offsets,
            layout.first,
            layout.longest,
            layout,
        )


def bucket(tokens: int) -> int:
    """Round up a number of tokens, to at most sixteen sizes between two powers of two.

    oneDNN compiles and keeps code per shape of a product: a new shape in every step would take 10 MB per step.
    """
    grain = max(16, 1 << max(0, tokens.bit_length() - 5))
    return -(-tokens // grain) * grain


def _in_bucket(array: Any) -> Any:
    """Add zeros after the tokens, at least one. They belong to no row, no token attends to them, and their gradient
    is zero."""
    return np.pad(array, (0, bucket(len(array) + 1) - len(array)))


def head_logits(model: Any, hidden: Tensor) -> Tensor:
    """Apply the library's head to [rows, 1, width] in place of the encoder's output."""
    base = model.base_model
    if getattr(base, "pooler", None) is not None:
        return model.classifier(model.dropout(base.pooler(hidden)))  # type: ignore[no-any-return]
    if hasattr(model, "pre_classifier"):
        pooled = torch.relu(model.pre_classifier(hidden[:, 0]))
        return model.classifier(model.dropout(pooled))  # type: ignore[no-any-return]
    return model.classifier(hidden)  # type: ignore[no-any-return]


def for_other_rows(moments: Tensor, before: Any, now: Any, others: Tensor | None = None) -> Tensor:
    """Copy the rows of a table made for other rows; missing ones are zeros or the rows of `others`."""
    _, there, here = np.intersect1d(before, now, assume_unique=True, return_indices=True)
    found = torch.zeros(len(now), moments.shape[1], dtype=moments.dtype) if others is None else others.cpu().clone()
    found[torch.from_numpy(here)] = moments[torch.from_numpy(there)]
    return found
