"""AdamW over flat buffers in one pass: float32 masters and moments are updated, and compute weights are written."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from whet.config import TrainConfig
from whet.engine.fused.parameters import FlatModel, Group


@dataclass(frozen=True)
class AdamW:
    """The settings of AdamW for one step, independent of the device."""

    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    everywhere: bool = False
    """Whether biases and norms decay, too."""

    @classmethod
    def of(cls, config: TrainConfig) -> AdamW:
        return cls(config.beta1, config.beta2, config.epsilon, config.weight_decay)


CHUNK = 1 << 20
"""Elements per call on the CPU: a float32 copy of so many gradients fits into the caches."""


def norm_of_gradients(flat: FlatModel, idle: range = range(0)) -> Tensor:
    """Return the global norm. Each chunk is squared and summed in float32; the chunks are summed in float64.

    `idle` are matrix elements that never had a gradient, so their sum is zero.
    """
    total = 0.0
    scratch = torch.empty(CHUNK)
    for group in flat.groups():
        for start in range(0, group.size, CHUNK):
            if group is flat.matrices and _within(start, min(start + CHUNK, group.size), idle):
                continue
            gradient = _in_float32(group.gradient[start : start + CHUNK], scratch)
            total += float(torch.dot(gradient, gradient))
    return torch.tensor(math.sqrt(total) if math.isfinite(total) else total)


def update_on_cpu(flat: FlatModel, rule: AdamW, step: int, rate: float, scale: float, idle: range = range(0)) -> None:
    """Apply step number `step`, counted from 1, with gradients multiplied by `scale`.

    `idle` are matrix elements without gradient, moments or decay, which do not change.

    This calls torch's own fused kernel chunk by chunk, so that the float32 copy of the gradient and the new weights
    stay in the caches.
    """
    scratch = torch.empty(CHUNK)
    number, inverse = torch.tensor(float(step)), None if scale == 1.0 else 1.0 / torch.tensor(scale)
    for group in flat.groups():
        for start, end, decay in _spans(group, rule):
            if group is flat.matrices and _within(start, end, idle):
                continue
            part = slice(start, end)
            torch._fused_adamw_(
                [group.master[part]],
                [_in_float32(group.gradient[part], scratch)],
                [group.first[part]],
                [group.second[part]],
                [],
                [number],
                lr=rate,
                beta1=rule.beta1,
                beta2=rule.beta2,
                weight_decay=decay,
                eps=rule.epsilon,
                amsgrad=False,
                maximize=False,
                grad_scale=inverse,
            )
            if group.compute is not group.master and start < group.computes_until:
                last = min(end, group.computes_until)
                group.compute[start:last].copy_(group.master[start:last])


def _within(start: int, end: int, idle: range) -> bool:
    return idle.start <= start and end <= idle.stop


def _spans(group: Group, rule: AdamW) -> Iterator[tuple[int, int, float]]:
    """Yield chunks that do not cross the boundary between elements with and without decay."""
    rest = rule.weight_decay if rule.everywhere else 0.0
    for low, high, rate in ((0, group.decays_until, rule.weight_decay), (group.decays_until, group.size, rest)):
        for start in range(low, high, CHUNK):
            yield start, min(high, start + CHUNK), rate


def _in_float32(gradient: Tensor, scratch: Tensor) -> Tensor:
    """Return a writable float32 copy: the fused kernel scales gradients in place."""
    return scratch[: gradient.numel()].copy_(gradient)


def corrections(rule: AdamW, step: int) -> tuple[float, float]:
    """Return the bias corrections 1 / (1 - β₁ᵗ) and 1 / √(1 - β₂ᵗ)."""
    return 1 / (1 - rule.beta1**step), 1 / math.sqrt(1 - rule.beta2**step)
