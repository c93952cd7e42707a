"""The loss of each task, as a sum over rows and the divisor for it.

A step divides the sum over all its micro-batches by the divisor of the whole step. So accumulation is exact even if
the last micro-batch is short, and so is splitting a batch over processes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from whet.task import Task

TEMPERATURE = 0.1
"""Divisor of the similarities in the contrastive loss."""
NEVER = -1e9
"""The similarity of rows that must not be compared: finite, so that its gradient is zero and not NaN."""


@dataclass(frozen=True)
class Loss:
    """Cross-entropy, binary cross-entropy or squared error, always in float32."""

    task: Task
    class_weights: tuple[float, ...] | None = None
    label_smoothing: float = 0.0
    contrastive: float = 0.0
    """The share of the supervised contrastive loss; the rest is the task's loss."""

    def total(
        self, logits: Tensor, labels: Tensor, features: Tensor | None = None, share: Tensor | None = None
    ) -> Tensor:
        """Return the sum over rows, each with its class weight, times its share if windows share a text's weight.

        The contrastive loss compares `features`.
        """
        rows = self.rows(logits, labels)
        if self.contrastive and features is not None:
            return self.mixed(rows, labels, features, torch.ones_like(rows) if share is None else share)
        return rows.sum() if share is None else (rows * share).sum()

    def mixed(self, rows: Tensor, labels: Tensor, features: Tensor, share: Tensor) -> Tensor:
        """Return the sum over rows, each times its share, of the task's loss mixed with the supervised contrastive
        one.

        Rows with a share of zero are ignored. A row without another row of its class in the batch has no contrastive
        loss; the mean over the others stands for it. If no class occurs twice, only the task's loss is used. Only
        rows of one forward pass are compared. With accumulation, several processes, or after running out of memory,
        that is a part of the step.
        """
        task = (rows * share).sum()
        each, paired = contrastive_rows(features, labels, share > 0)
        weights = _class_weights(self.class_weights, features.device)
        mass = share if weights is None else share * weights[labels]
        mean = (mass * each).sum() / (mass * paired).sum().clamp_min(1e-12)
        contrastive = mean * mass.sum()
        return torch.where(paired.any(), task + self.contrastive * (contrastive - task), task)

    def rows(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of each row with its class weight."""
        logits = logits.float()
        if self.task.kind == "regression":
            return F.mse_loss(logits.squeeze(-1), labels.float(), reduction="none")
        weights = _class_weights(self.class_weights, logits.device)
        if self.task.kind == "multilabel":
            each = F.binary_cross_entropy_with_logits(logits, labels.float(), reduction="none", pos_weight=weights)
            return each.mean(dim=-1)
        return F.cross_entropy(logits, labels, weight=weights, reduction="none", label_smoothing=self.label_smoothing)

    def loss_divisor(self, labels: np.ndarray[Any, Any]) -> float:
        """Return the divisor of the sum over these rows: their number, or the sum of their class weights."""
        if self.class_weights is None or self.task.kind == "multilabel":
            return float(len(labels))
        return float(np.asarray(self.class_weights)[labels].sum())

    def mean(self, logits: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]) -> float:
        """Return the plain mean over rows without class weights, as evaluations report it."""
        plain = Loss(self.task)
        if not len(labels):
            return float("nan")
        rows = plain.rows(torch.tensor(logits), torch.tensor(labels))
        return float(rows.double().mean())


def contrastive_rows(features: Tensor, labels: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
    """Return the supervised contrastive loss of each row, and which rows have another row of their class.

    For each row: the mean over the other rows of its class of minus the log-softmax of their similarity among all
    other rows (Khosla 2020). Zero for rows without another of their class.
    """
    with torch.autocast(features.device.type, enabled=False):  # in bf16 equal similarities could differ
        return _contrastive_rows(features.float(), labels, present)


def _contrastive_rows(features: Tensor, labels: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
    directions = F.normalize(features, dim=-1, eps=1e-6)
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    comparable = present[None, :] & present[:, None] & ~itself
    similar = (directions @ directions.t() / TEMPERATURE).masked_fill(~comparable, NEVER)
    positive = ((labels[:, None] == labels[None, :]) & comparable).to(similar.dtype)
    count = positive.sum(dim=1)
    likely = (F.log_softmax(similar, dim=1) * positive).sum(dim=1)
    return -likely / count.clamp_min(1.0), count > 0


def has_pairs(labels: np.ndarray[Any, Any]) -> bool:
    """Return whether some class occurs twice."""
    return len(np.unique(labels)) < len(labels)


@cache
def _class_weights(weights: tuple[float, ...] | None, device: torch.device) -> Tensor | None:
    """Created once per device: a captured step must not copy from the host."""
    return None if weights is None else torch.tensor(weights, device=device)


def balanced_weights(task: Task, labels: np.ndarray[Any, Any]) -> tuple[float, ...] | None:
    """Return weights inverse to the frequency of a class; for multi-label tasks, negatives over positives."""
    if task.kind == "regression":
        return None
    if task.kind == "multilabel":
        positives = labels.sum(axis=0)
        return tuple(float((len(labels) - count) / max(count, 1.0)) for count in positives)
    counts = np.bincount(labels, minlength=len(task.labels))
    return tuple(float(len(labels) / (len(counts) * max(count, 1))) for count in counts)
