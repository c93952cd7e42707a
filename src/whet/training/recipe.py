"""Chooses training settings from the rows: epochs, learning rate and loss.

A pretrained model needs several hundred steps, so few rows are repeated more often. docs/recipe.md has the
measurements. Settings of the user are kept.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable
from typing import Any

from whet.config import Config, LoraConfig, TrainConfig
from whet.data.folds import FEW_ROWS
from whet.errors import UsageError
from whet.models.decoders import becomes_decoder
from whet.models.pooling import has_mean_layer, why_no_mean
from whet.task import Task

MANY_EPOCHS, FEW_EPOCHS = 20.0, 3.0
MINILM_WIDTH = 384
RATES = ((MINILM_WIDTH, 1e-4), (768, 3e-5), (1024, 2e-5))
"""Peak learning rates by width: measured for MiniLM, published for base and large models."""
LORA_FACTOR = 10
"""Adapters start at zero and train at about ten times the rate of the weights themselves, at any width: published."""
COMPARED_ROWS = 10_000
"""The contrastive loss improves results up to this many rows; above, cross-entropy alone is as good."""
MANY_CLASSES = 8
"""From this many classes on, batches are twice as large, so that two rows of a class occur in them."""

MEAN_ROWS = 100
"""Below this many rows, mean pooling is worth its extra layer."""


def epochs_for(rows: int) -> float:
    """Return 20 epochs up to 300 rows, 6 at 1,000, 3 from 10,000 on, interpolated over the logarithm of the rows."""
    known = ((300, MANY_EPOCHS), (1_000, 6.0), (10_000, FEW_EPOCHS))
    if rows <= known[0][0]:
        return MANY_EPOCHS
    for (few, more), (many, less) in itertools.pairwise(known):
        if rows <= many:
            share = math.log(rows / few) / math.log(many / few)
            return round(more + share * (less - more), 1)
    return FEW_EPOCHS


def rate_for(width: int) -> float:
    """Return the peak rate: 1e-4 up to MiniLM's width; above it the published rates, which fall with the width."""
    if width <= RATES[0][0]:
        return RATES[0][1]
    for (narrow, high), (wide, low) in itertools.pairwise(RATES):
        if width <= wide:
            share = math.log(width / narrow) / math.log(wide / narrow)
            return float(f"{high * (low / high) ** share:.1e}")
    widest, rate = RATES[-1]
    return float(f"{rate * widest / width:.1e}")


def chosen_settings(rows: int, task: Task, width: int, *, lora: bool = False) -> dict[str, Any]:
    """Return the recipe's settings for this task and number of training rows."""
    classes = task.kind in ("binary", "multiclass")
    return {
        "epochs": epochs_for(rows),
        "learning_rate": lora_rate(rate_for(width)) if lora else rate_for(width),
        "warmup": 0.1,
        "batch_size": 32 if len(task.labels) > MANY_CLASSES else 16,
        "contrastive": 0.5 if classes and rows <= COMPARED_ROWS else 0.0,
        "average": 0.99,
        "choice": "steady",
    }


def lora_rate(rate: float) -> float:
    """Return the peak rate for adapters of a model whose weights would train at this one."""
    return float(f"{LORA_FACTOR * rate:.1e}")


def pooling_for(rows: int, model_config: Any, released: Callable[[], str], *, lora: bool = False) -> str:
    """Return the mean of all tokens if the released model uses it and it is free, or useful for so few rows."""
    free = hasattr(model_config, "classifier_pooling") or has_mean_layer(model_config)
    if free:
        return released()
    if why_no_mean(model_config):
        return "auto" if becomes_decoder(model_config) else "first"
    return "first" if lora or rows >= MEAN_ROWS else released()


def _counted(number: str, unit: str) -> str:
    return f"{number} {unit}" if number == "1" else f"{number} {unit}s"


def follow_recipe(config: Config, rows: int, task: Task, width: int, pooling: str = "first") -> tuple[Config, str]:
    """Return the settings completed by the recipe, and a line that lists its choices."""
    if config.train.recipe == "course":
        return config, ""
    chosen = chosen_settings(rows, task, width, lora=config.lora.lora)
    free = {name: value for name, value in chosen.items() if name not in config.given}
    if "max_steps" in config.given:
        free.pop("epochs", None)
    if config.model.pooling == "auto":
        free["pooling"] = pooling
    config = config.replaced(free)
    train = config.train
    amount = (
        _counted(f"{train.epochs:g}", "epoch") if train.max_steps is None else _counted(str(train.max_steps), "step")
    )
    parts = [f"{amount} at {train.learning_rate:g}"]
    if train.contrastive:
        parts.append("contrastive loss")
    if config.lora.lora:
        parts.append(f"LoRA of rank {config.lora.lora_rank}")
    if config.model.pooling == "mean":
        parts.append("mean of all tokens")
    said = f"Recipe for {rows:,} rows: {', '.join(parts)} (--recipe course for the usual settings)."
    return config, said


def resolve_lora(config: Config) -> Config:
    """Return the settings with a rate for adapters, if the user set none; contradictions raise.

    The recipe `auto` replaces the rate by one for the model's width.
    """
    if not config.lora.lora:
        for name, value in vars(LoraConfig()).items():
            if name != "lora" and getattr(config.lora, name) != value:
                raise UsageError(
                    f"{name} is {getattr(config.lora, name)!r}, and has no effect without --lora.",
                    "Add --lora, or leave it out.",
                )
        return config
    if config.train.shard:
        raise UsageError(
            "--shard splits the weights that train, and with --lora nearly all weights stay as they are.",
            "Leave one of them out.",
        )
    if "learning_rate" in config.given:
        return config
    return config.replaced({"learning_rate": lora_rate(TrainConfig().learning_rate)})


def resolve_folds(config: Config) -> Config:
    """Resolve `folds`: 0 if `auto` means none; contradictions raise.

    `auto` uses folds with the recipe `auto`, unless the user asked for a split or for something that needs one.
    """
    if config.train.seeds > 1 and config.train.shard:
        raise UsageError(f"--seeds is {config.train.seeds}, and --shard trains one model.", "Leave one of them out.")
    folds, needs_split = config.data.folds, _needs_split(config)
    if folds == "auto":
        if config.train.recipe == "auto" and not needs_split:
            return config
        return config.replaced({"folds": 0})
    if folds and needs_split:
        raise UsageError(f"--folds is {folds}, and {needs_split}.", "Leave one of them out.")
    return config


def whole_below(config: Config) -> int:
    """Return the number of training rows below which they are not split, if there are no validation rows."""
    folds = resolve_folds(config).data.folds
    return FEW_ROWS if folds == "auto" else sys.maxsize if folds else 0


def _needs_split(config: Config) -> str:
    """Return the requested settings that folds do not support, in words."""
    if config.data.validation is not None:
        return "--validation gives the rows to measure on"
    if config.train.seeds > 1:
        return f"--seeds {config.train.seeds} is measured on validation rows"
    if config.evaluate.patience is not None:
        return "--patience needs validation rows"
    if config.train.shard:
        return "--shard has one model only"
    shares = {"validation_share", "test_share"} & config.given
    if config.data.folds == "auto" and shares:
        return f"{min(shares)} asks for a split"
    return ""


def refuse_contrastive(config: Config, task: Task) -> None:
    """Refuse the contrastive loss for tasks without one class per row: it compares rows by their class."""
    if config.train.contrastive and task.kind not in ("binary", "multiclass"):
        raise UsageError(
            f"contrastive is {config.train.contrastive:g}, and a {task.kind} task has no classes to compare.",
            "Leave --contrastive out.",
        )
