"""AdamW over flat buffers: one pass, float32 masters and moments, compute weights written on the way."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from whet.config import TrainConfig
from whet.engine.fused.flat import FlatModel, Group


@dataclass(frozen=True)
class AdamW:
    """The rule, apart from any device."""

    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float

    @classmethod
    def of(cls, config: TrainConfig) -> AdamW:
        return cls(config.beta1, config.beta2, config.epsilon, config.weight_decay)


def norm_of_gradients(flat: FlatModel) -> Tensor:
    """The global norm, summed in float32 (float64 across the groups)."""
    parts = [torch.linalg.vector_norm(group.gradient, dtype=torch.float32) for group in flat.groups()]
    total: Tensor = torch.linalg.vector_norm(torch.stack(parts))
    return total


def update_on_cpu(flat: FlatModel, rule: AdamW, step: int, rate: float, scale: float) -> None:
    """Step number `step`, counted from 1; gradients are taken times `scale`."""
    for group in flat.groups():
        for start, end, decay in _spans(group, rule.weight_decay):
            _update_span(group, rule, start, end, decay, step, rate, scale)
        group.refresh()


def _spans(group: Group, decay: float) -> list[tuple[int, int, float]]:
    spans = [(0, group.decays_until, decay), (group.decays_until, group.size, 0.0)]
    return [span for span in spans if span[1] > span[0]]


def _update_span(
    group: Group, rule: AdamW, start: int, end: int, decay: float, step: int, rate: float, scale: float
) -> None:
    """torch's own fused kernel on one long tensor, with the gradient in float32."""
    gradient = group.gradient[start:end].float()
    torch._fused_adamw_(
        [group.master[start:end]],
        [gradient],
        [group.first[start:end]],
        [group.second[start:end]],
        [],
        [torch.tensor(float(step))],
        lr=rate,
        beta1=rule.beta1,
        beta2=rule.beta2,
        weight_decay=decay,
        eps=rule.epsilon,
        amsgrad=False,
        maximize=False,
        grad_scale=None if scale == 1.0 else torch.tensor(1.0 / scale),
    )


def corrections(rule: AdamW, step: int) -> tuple[float, float]:
    """1 / (1 - β₁ᵗ) and 1 / √(1 - β₂ᵗ)."""
    return 1 / (1 - rule.beta1**step), 1 / math.sqrt(1 - rule.beta2**step)
