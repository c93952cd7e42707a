"""What training, evaluation and prediction give back, in the stock shapes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]


class TrainOutput(NamedTuple):
    """The result of `Trainer.train`."""

    global_step: int
    training_loss: float
    metrics: dict[str, float]


class PredictionOutput(NamedTuple):
    """The result of `Trainer.predict`; rows are in input order."""

    predictions: Any
    label_ids: Any
    metrics: dict[str, float] | None


@dataclass(frozen=True)
class EvalPrediction:
    """What `compute_metrics` gets; `logits, labels = eval_prediction` works."""

    predictions: Any
    label_ids: Any

    def __iter__(self) -> Iterator[Any]:
        return iter((self.predictions, self.label_ids))

    def __getitem__(self, place: int) -> Any:
        return (self.predictions, self.label_ids)[place]


def speed(prefix: str, started: float, rows: int, steps: int) -> dict[str, float]:
    """Seconds and rates since `started`, a reading of the monotonic clock."""
    seconds = max(time.monotonic() - started, 1e-9)
    return {
        f"{prefix}_runtime": round(seconds, 4),
        f"{prefix}_samples_per_second": round(rows / seconds, 3),
        f"{prefix}_steps_per_second": round(steps / seconds, 3),
    }


def plain(value: Any) -> Any:
    """Python numbers in place of arrays and tensors of one element, all the way down."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(plain(item) for item in value)
    if isinstance(value, np.generic):
        return value.item()
    if hasattr(value, "numel") and value.numel() == 1:
        return value.item()
    return value
