"""The networks of a captured path: the library's model on padded batches, and ModernBERT on fused layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from whet.data.tokens.batches import pack
from whet.data.tokens.table import Tokens
from whet.engine.network import Batch, Network, Rows
from whet.engine.packed import make_layout
from whet.models.families import recomputes_activations


class CapturedNetwork(Network):
    """Computes padded batches; knows whether training steps are captured."""

    def __init__(self, model: Any, device: torch.device, why: str = "") -> None:
        """`why` is the reason against a faster path."""
        super().__init__(model, device, packed=False)
        self.why = why
        self.captured = True

    @property
    def path(self) -> str:
        return "captured" if self.captured else "padded"

    def fall_back(self, reason: str) -> None:
        """Leave the captured path for good."""
        self.captured = False
        self.why = "; ".join(filter(None, (self.why, f"its steps are not captured: {reason}")))


class ModernBertNetwork(CapturedNetwork):
    """Computes packed rows by the fused layers of ModernBERT, for training and for prediction."""

    def __init__(self, model: Any, device: torch.device) -> None:
        from whet.engine.captured.modernbert import FastModernBert

        super().__init__(model, device)
        self._fast = FastModernBert(model)

    @property
    def path(self) -> str:
        return "fused"

    def logits(self, batch: Batch) -> Tensor:
        return self.logits_and_features(batch)[0]

    def logits_and_features(self, batch: Batch) -> tuple[Tensor, Tensor]:
        assert batch.layout is not None
        features = self._fast.features(batch.inputs["input_ids"], batch.layout)
        return self._fast.logits(features, training=self.model.training), features

    def collate(self, tokens: Tokens, rows: Rows) -> Batch:
        packed = pack(tokens, rows)
        labels = None if packed.labels is None else torch.from_numpy(packed.labels).to(self.device)
        ids = torch.from_numpy(packed.input_ids).to(self.device)
        return Batch({"input_ids": ids}, labels, make_layout(packed.cu_seqlens, self.device))


def why_not_captured(model: Any) -> str:
    """Return what is known to make a capture impossible or wrong; empty for nothing. Other reasons show on trying."""
    if recomputes_activations(model):
        return "the model recomputes activations, which reads the state of the random generator"
    if getattr(model, "is_quantized", False) or getattr(model, "hf_device_map", None) is not None:
        return "the model is quantised or spread over devices"
    return ""
