"""Parameter groups, AdamW and the learning rate as a function of the step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from whet.config import TrainConfig

Rate = Callable[[int], float]


SHAPES: dict[str, Callable[[float], float]] = {
    "linear": lambda progress: 1 - progress,
    "cosine": lambda progress: (1 + math.cos(math.pi * progress)) / 2,
    "constant": lambda progress: 1.0,
}
"""The share of the peak rate after warm-up, by schedule, at a progress from 0 to 1."""


def learning_rate(config: TrainConfig, total_steps: int) -> Rate:
    """Return the rate of step s, counted from 0, with the same curves as transformers' schedules."""
    warmup = warmup_steps(config.warmup, total_steps)

    def rate(step: int) -> float:
        if step < warmup:
            return config.learning_rate * step / max(1, warmup)
        progress = (step - warmup) / max(1, total_steps - warmup)
        return config.learning_rate * max(0.0, SHAPES[config.schedule](progress))

    return rate


def warmup_steps(warmup: float, total_steps: int) -> int:
    """Return the number of warmup steps: below 1 a share of all steps, rounded up; else a number of steps."""
    return math.ceil(warmup * total_steps) if warmup < 1 else int(warmup)


def parameter_groups(model: torch.nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Decay for matrices and embeddings; none for biases and norms."""
    without = set(_without_decay(model))
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    groups = [
        {
            "params": [parameter for name, parameter in named if name not in without],
            "weight_decay": weight_decay,
        },
        {"params": [parameter for name, parameter in named if name in without], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def make_adamw(model: torch.nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """Return torch's AdamW, fused if the device supports it."""
    fused = next(model.parameters()).device.type in ("cpu", "cuda")
    return torch.optim.AdamW(
        parameter_groups(model, config.weight_decay),
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.epsilon,
        weight_decay=config.weight_decay,
        fused=fused,
    )


def _without_decay(model: torch.nn.Module) -> Iterator[str]:
    norms = tuple(kind for kind in (torch.nn.LayerNorm, getattr(torch.nn, "RMSNorm", None), torch.nn.GroupNorm) if kind)
    for prefix, module in model.named_modules():
        is_norm = isinstance(module, norms) or "norm" in type(module).__name__.lower()
        for name, _ in module.named_parameters(recurse=False):
            if is_norm or name == "bias" or name.endswith("_bias"):
                yield f"{prefix}.{name}" if prefix else name
