"""Computes the outputs of a regression in float32: bf16 has eight bits, and 350,123 would become 350,208."""

from __future__ import annotations

import types
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


def keep_numbers_exact(model: Any) -> None:
    """Exclude the last product of a model with one output from autocast, on every path."""
    if model.config.num_labels != 1:
        return
    last = [module for module in model.modules() if isinstance(module, nn.Linear) and module.out_features == 1]
    for module in last[-1:]:
        module.forward = types.MethodType(_in_float32, module)  # type: ignore[method-assign]


def keeps_numbers_exact(module: nn.Module) -> bool:
    """Return whether `keep_numbers_exact` has replaced this module's forward."""
    return getattr(vars(module).get("forward"), "__func__", None) is _in_float32


def _in_float32(self: nn.Linear, hidden: Tensor) -> Tensor:
    with torch.autocast(hidden.device.type, enabled=False):
        bias = None if self.bias is None else self.bias.float()
        return functional.linear(hidden.float(), self.weight.float(), bias)
