"""Settings of a training chosen from its rows: how often, how fast, with which loss.

A pretrained model needs some hundred steps to move, whatever the number of rows: few rows are gone through more often.
docs/recipe.md says what was measured. What somebody has set stays as it is.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable
from typing import Any

from whet.config import Config
from whet.data.folds import FEW_ROWS
from whet.errors import UsageError
from whet.models.pooling import has_mean_layer, why_no_mean
from whet.task import Task

MANY_EPOCHS, FEW_EPOCHS = 20.0, 3.0
MINILM_WIDTH = 384
RATES = ((MINILM_WIDTH, 1e-4), (768, 3e-5), (1024, 2e-5))
"""Peak rates by width: measured for MiniLM, published for base and large models."""
COMPARED_ROWS = 10_000
"""Up to so many rows the contrastive half pays; beyond, cross-entropy alone is as good."""
MANY_CLASSES = 8
"""From more classes on, batches are twice as large: two rows of one class must meet in them."""

MEAN_ROWS = 100
"""Below so many rows the mean of all tokens is worth the layer that it takes."""


def epochs_for(rows: int) -> float:
    """20 up to 300 rows, 6 at 1,000, 3 from 10,000 on; in between along a line in the logarithm of the rows."""
    known = ((300, MANY_EPOCHS), (1_000, 6.0), (10_000, FEW_EPOCHS))
    if rows <= known[0][0]:
        return MANY_EPOCHS
    for (few, more), (many, less) in itertools.pairwise(known):
        if rows <= many:
            share = math.log(rows / few) / math.log(many / few)
            return round(more + share * (less - more), 1)
    return FEW_EPOCHS


def rate_for(width: int) -> float:
    """The peak rate: 1e-4 up to the width of MiniLM, above it along the published rates, falling with the width."""
    if width <= RATES[0][0]:
        return RATES[0][1]
    for (narrow, high), (wide, low) in itertools.pairwise(RATES):
        if width <= wide:
            share = math.log(width / narrow) / math.log(wide / narrow)
            return float(f"{high * (low / high) ** share:.1e}")
    widest, rate = RATES[-1]
    return float(f"{rate * widest / width:.1e}")


def chosen_settings(rows: int, task: Task, width: int) -> dict[str, Any]:
    """What the recipe would set for so many training rows of this task."""
    classes = task.kind in ("binary", "multiclass")
    return {
        "epochs": epochs_for(rows),
        "learning_rate": rate_for(width),
        "warmup": 0.1,
        "batch_size": 32 if len(task.labels) > MANY_CLASSES else 16,
        "contrastive": 0.5 if classes and rows <= COMPARED_ROWS else 0.0,
        "average": 0.99,
        "choice": "steady",
    }


def pooling_for(rows: int, model_config: Any, released: Callable[[], str]) -> str:
    """The mean of all tokens where the released model says so, and it is free or pays for so few rows."""
    free = hasattr(model_config, "classifier_pooling") or has_mean_layer(model_config)
    if not free and (rows >= MEAN_ROWS or why_no_mean(model_config)):
        return "first"
    return released()


def follow_recipe(config: Config, rows: int, task: Task, width: int, pooling: str = "first") -> tuple[Config, str]:
    """The settings with the recipe's in all places where nobody set one, and the line that says so."""
    if config.train.recipe == "course":
        return config, ""
    free = {name: value for name, value in chosen_settings(rows, task, width).items() if name not in config.given}
    if "max_steps" in config.given:
        free.pop("epochs", None)
    if config.model.pooling == "auto":
        free["pooling"] = pooling
    config = config.replaced(free)
    train = config.train
    parts = [f"{train.epochs:g} epochs" if train.max_steps is None else f"{train.max_steps} steps"]
    parts[0] += f" at {train.learning_rate:g}"
    if train.contrastive:
        parts.append("contrastive loss")
    if config.model.pooling == "mean":
        parts.append("mean of all tokens")
    said = f"Recipe for {rows:,} rows: {', '.join(parts)} (--recipe course for the usual settings)."
    return config, said


def resolve_folds(config: Config) -> Config:
    """The settings with `folds` 0 where `auto` means none; a contradiction is refused.

    `auto` measures by folds under the recipe `auto`, where nobody asked for a split or for what needs one.
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
    """Fewer training rows than this are not split, if they come without validation rows."""
    folds = resolve_folds(config).data.folds
    return FEW_ROWS if folds == "auto" else sys.maxsize if folds else 0


def _needs_split(config: Config) -> str:
    """What was asked for that folds cannot give, in words."""
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
    """Rows are compared by their class: where they have none, or several, there is nothing to compare."""
    if config.train.contrastive and task.kind not in ("binary", "multiclass"):
        raise UsageError(
            f"contrastive is {config.train.contrastive:g}, and a {task.kind} task has no classes to compare.",
            "Leave --contrastive out.",
        )
