"""The settings that a tuning searches, and their ranges around the recipe's values.

Learning rate and epochs are searched as factors of the recipe's values, so that one range fits every model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from whet.config import Config
from whet.errors import UsageError
from whet.task import Task

FACTORS = {"learning_rate": (0.25, 4.0), "epochs": (0.5, 2.0)}
"""Searched on a logarithmic scale, as multiples of the recipe's value."""
RANGES = {"warmup": (0.0, 0.2), "weight_decay": (0.0, 0.1), "contrastive": (0.0, 0.9)}
BATCHES = (8, 16, 32, 64)
SEARCHED = ("model", "learning_rate", "epochs", "batch_size", "warmup", "weight_decay", "contrastive")


@dataclass(frozen=True)
class Space:
    """The searched settings, around those of the default training."""

    default: Config
    models: tuple[str, ...]
    """The first one is that of the default training."""
    names: tuple[str, ...]

    @classmethod
    def around(cls, default: Config, models: tuple[str, ...], task: Task) -> Space:
        """Return the space of all settings that the user left open and that have an effect for this task."""
        left_out = set(default.given) - {"model"}
        if len(models) < 2:
            left_out.add("model")
        if "max_steps" in default.given:
            left_out.add("epochs")
        if task.kind not in ("binary", "multiclass"):
            left_out.add("contrastive")
        names = tuple(name for name in SEARCHED if name not in left_out)
        if not names:
            raise UsageError(
                "Every setting that a tuning searches is given.", "Leave some of them out, or name several --models."
            )
        return cls(default, models, names)

    def start(self) -> dict[str, Any]:
        """Return the point of the default training."""
        train = self.default.train
        found: dict[str, Any] = {"model": self.models[0], "batch_size": train.batch_size}
        found |= dict.fromkeys(FACTORS, 1.0)
        found |= {name: getattr(train, name) for name in RANGES}
        return {name: found[name] for name in self.names}

    def suggested(self, trial: Any) -> dict[str, Any]:
        """Return the point that the sampler chooses for this trial."""
        start, found = self.start(), {}
        for name in self.names:
            if name == "model":
                found[name] = trial.suggest_categorical(name, list(self.models))
            elif name == "batch_size":
                found[name] = trial.suggest_categorical(name, sorted({*BATCHES, start[name]}))
            elif name in FACTORS:
                found[name] = trial.suggest_float(name, *FACTORS[name], log=True)
            else:
                low, high = RANGES[name]
                found[name] = trial.suggest_float(name, low, max(high, start[name]))
        return found

    def settings(self, point: dict[str, Any], recipe: Config) -> dict[str, Any]:
        """Return the settings of a point, given the recipe's settings for its model."""
        if point == self.start():
            return {}
        found = {name: value for name, value in point.items() if name in ("model", "batch_size")}
        for name in FACTORS.keys() & point.keys():
            found[name] = float(f"{getattr(recipe.train, name) * point[name]:.3g}")
        for name in RANGES.keys() & point.keys():
            found[name] = round(point[name], 3)
        return found
