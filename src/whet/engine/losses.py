"""The loss of each task, as a sum over rows and the weight to divide it by.

A step divides the sum over all of its micro-batches by the weight of the whole step, so accumulation is exact even
when the last micro-batch is short, and so is the split of a batch over processes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from whet.data.columns import Task


@dataclass(frozen=True)
class Loss:
    """Cross-entropy, binary cross-entropy or squared error, in float32 whatever the model computes in."""

    task: Task
    class_weights: tuple[float, ...] | None = None
    label_smoothing: float = 0.0

    def total(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Sum over the rows, each with its class weight."""
        return self.rows(logits, labels).sum()

    def rows(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of each row, with its class weight."""
        logits = logits.float()
        if self.task.kind == "regression":
            return F.mse_loss(logits.squeeze(-1), labels.float(), reduction="none")
        weights = _class_weights(self.class_weights, logits.device)
        if self.task.kind == "multilabel":
            each = F.binary_cross_entropy_with_logits(logits, labels.float(), reduction="none", pos_weight=weights)
            return each.mean(dim=-1)
        return F.cross_entropy(logits, labels, weight=weights, reduction="none", label_smoothing=self.label_smoothing)

    def weight(self, labels: np.ndarray[Any, Any]) -> float:
        """What the sum over these rows is divided by: their number, or the sum of their class weights."""
        if self.class_weights is None or self.task.kind == "multilabel":
            return float(len(labels))
        return float(np.asarray(self.class_weights)[labels].sum())

    def mean(self, logits: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]) -> float:
        """The plain mean over rows, without class weights: what an evaluation reports."""
        plain = Loss(self.task)
        if not len(labels):
            return float("nan")
        rows = plain.rows(torch.tensor(logits), torch.tensor(labels))
        return float(rows.double().mean())


@cache
def _class_weights(weights: tuple[float, ...] | None, device: torch.device) -> Tensor | None:
    """Made once a device: a captured step may not copy from the host."""
    return None if weights is None else torch.tensor(weights, device=device)


def balanced_weights(task: Task, labels: np.ndarray[Any, Any]) -> tuple[float, ...] | None:
    """Weights inverse to how common a class is; for several labels a row, negatives over positives."""
    if task.kind == "regression":
        return None
    if task.kind == "multilabel":
        positives = labels.sum(axis=0)
        return tuple(float((len(labels) - count) / max(count, 1.0)) for count in positives)
    counts = np.bincount(labels, minlength=len(task.labels))
    return tuple(float(len(labels) / (len(counts) * max(count, 1))) for count in counts)
