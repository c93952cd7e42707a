"""The network of a captured path: the library's model on padded batches."""

from __future__ import annotations

from typing import Any

import torch

from whet.engine.network import Network


class CapturedNetwork(Network):
    """Computes padded batches; knows whether training steps are captured."""

    def __init__(self, model: Any, device: torch.device, why: str) -> None:
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


def why_not_captured(model: Any) -> str:
    """Return what is known to make a capture impossible or wrong; empty for nothing. Other reasons show on trying."""
    if getattr(model, "is_gradient_checkpointing", False):
        return "the model recomputes activations, which reads the state of the random generator"
    if getattr(model, "is_quantized", False) or getattr(model, "hf_device_map", None) is not None:
        return "the model is quantised or spread over devices"
    return ""
