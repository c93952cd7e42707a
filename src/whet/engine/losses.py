"""The loss of each task, as a sum over rows and the weight to divide it by.

A step divides the sum over all of its micro-batches by the weight of the whole step, so accumulation is exact even
when the last micro-batch is short, and so is the split of a batch over processes.
"""

from __future__ import annotations

from dataclasses import dataclass
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
        logits = logits.float()
        if self.task.kind == "regression":
            return F.mse_loss(logits.squeeze(-1), labels.float(), reduction="sum")
        if self.task.kind == "multilabel":
            weights = self._tensor(logits)
            rows = F.binary_cross_entropy_with_logits(logits, labels.float(), reduction="none", pos_weight=weights)
            return rows.mean(dim=-1).sum()
        return F.cross_entropy(
            logits, labels, weight=self._tensor(logits), reduction="sum", label_smoothing=self.label_smoothing
        )

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
        return float(plain.total(torch.tensor(logits).double(), torch.tensor(labels))) / len(labels)

    def _tensor(self, like: Tensor) -> Tensor | None:
        if self.class_weights is None:
            return None
        return torch.tensor(self.class_weights, dtype=like.dtype, device=like.device)


def balanced_weights(task: Task, labels: np.ndarray[Any, Any]) -> tuple[float, ...] | None:
    """Weights inverse to how common a class is; for several labels a row, negatives over positives."""
    if task.kind == "regression":
        return None
    if task.kind == "multilabel":
        positives = labels.sum(axis=0)
        return tuple(float((len(labels) - count) / max(count, 1.0)) for count in positives)
    counts = np.bincount(labels, minlength=len(task.labels))
    return tuple(float(len(labels) / (len(counts) * max(count, 1))) for count in counts)
