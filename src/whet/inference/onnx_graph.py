"""What an exported graph computes beside the logits: labels, probabilities and decisions, as `whet predict` does.

They are part of the graph, so that programs in any language give the same answers without code of their own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from whet.runs.decisions import Decisions
from whet.task import Task

NONE = -1
"""The place of no label."""


class Answers(torch.nn.Module):
    """Turns logits into answers, in double precision: a limit may be closer to 1 than single precision can say."""

    def __init__(self, task: Task, decisions: Decisions) -> None:
        super().__init__()
        self._task, self._decisions = task, decisions
        decided = ["abstain"] if decisions.confidence is not None else []
        decided += ["candidates"] if decisions.limit is not None else []
        self.names = ("label", *(["probabilities"] if task.labels else []), *decided)
        """The outputs in their order."""
        self.places = [name for name in self.names if task.labels and name in ("label", "candidates")]
        """The outputs that are places of labels in the task's list, with -1 for none."""

    def forward(self, logits: Tensor) -> tuple[Tensor, ...]:
        """Return a tensor for each name; labels and candidates as [rows, 1 or more], numbers as [rows, 1 or 2]."""
        decided, limit = self._decisions, self._decisions.limit
        values = logits.double()
        if self._task.kind == "regression":
            return (values,) if limit is None else (values, torch.cat([values - limit, values + limit], dim=1))
        several = self._task.kind == "multilabel"
        values = values / decided.temperature
        chances = torch.sigmoid(values) if several else torch.softmax(values, dim=1)
        found = [self._labels(chances) if several else self._label(chances), chances]
        if decided.confidence is not None:
            sure = torch.maximum(chances, 1 - chances).amin(dim=1) if several else chances.amax(dim=1)
            found.append(sure < decided.confidence)
        if limit is not None:
            ranked, order = chances.topk(chances.shape[1], dim=1)  # the likeliest first
            found.append(torch.where(1 - ranked <= limit, order, NONE))
        return tuple(found)

    def _labels(self, chances: Tensor) -> Tensor:
        """Return the places of all labels that reach their thresholds."""
        thresholds = [self._decisions.thresholds.get(label, 0.5) for label in self._task.labels]
        reached = chances >= torch.tensor(thresholds, dtype=torch.float64)
        return torch.where(reached, torch.arange(len(thresholds)), NONE)

    def _label(self, chances: Tensor) -> Tensor:
        """Return the place of the label that reaches its threshold; otherwise of the likeliest without one."""
        for label, threshold in self._decisions.thresholds.items():  # at most one
            place = torch.arange(len(self._task.labels)) == self._task.labels.index(label)
            chances = torch.where(place, torch.where(chances >= threshold, 2.0, -1.0).double(), chances)
        return chances.argmax(dim=1, keepdim=True)


class ExportedModel(torch.nn.Module):
    """The model with plain tensors as inputs; its outputs are the logits and the answers."""

    def __init__(self, model: Any, answers: Answers, inputs: list[str], nothing: int | None) -> None:
        """`nothing` is the token of a row without any, for tokenizers that add no special tokens."""
        super().__init__()
        self.model, self.answers = model, answers
        self._inputs, self._nothing = inputs, nothing

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        """Return the logits and the answers."""
        named = dict(zip(self._inputs, given, strict=True))
        if self._nothing is not None:
            mask = named["attention_mask"]
            added = (mask.sum(dim=1, keepdim=True) == 0) & (torch.arange(mask.shape[1]) == 0)
            named["input_ids"] = torch.where(added, self._nothing, named["input_ids"])
            named["attention_mask"] = torch.where(added, 1, mask)
        logits = self.model(**named).logits
        return (logits, *self.answers(logits))
