"""Captured steps for a user's own loop on CUDA: the model's own loss, on batches as the user's loader makes them.

Model, optimizer and schedule are true after every call, because the graphs work on the user's own tensors. A shape is
captured when it occurs for the second time; batches with a mask are padded to fewer shapes first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from whet.engine.captured.batches import padded_width
from whet.engine.captured.graphed_step import GraphedStep, Records
from whet.engine.captured.graphs import NotCapturable
from whet.engine.exact_attention import exact_attention
from whet.models.families import position_shift
from whet.utils.device import Hardware
from whet.utils.memory import free_cached_memory, is_memory_error

PADDED = ("input_ids", "attention_mask", "token_type_ids")
LEFT_OUT = -100
"""The label that torch's cross-entropy leaves out."""
MOST_SHAPES = 64
"""A loop with more shapes than this takes plain steps for the others: each graph needs time and memory."""

Key = tuple[Any, ...]


class CapturedLoopStep:
    """Computes forward, backward and update of batches whose shape has occurred before."""

    def __init__(
        self,
        model: Any,
        optimizer: torch.optim.Optimizer,
        hardware: Hardware,
        clip: float,
        recorder: Records | None = None,
    ) -> None:
        self.model, self.hardware = model, hardware
        self.grad_norm = torch.zeros((), device=hardware.device)
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.graphs = GraphedStep(parameters, optimizer, hardware, clip, self._judge, [self.grad_norm], recorder)
        self.failed = ""
        """Why nothing can be captured any more; empty as long as it can."""
        self._batches: dict[Key, dict[str, Tensor]] = {}
        self._losses: dict[Key, Tensor] = {}
        self._seen: set[Key] = set()
        self._too_large: set[Key] = set()
        self._wanted: set[Key] = set()
        """Shapes that occurred in the middle of a group, where nothing may be captured."""
        self.whole = True

    def prepare(self, batch: Mapping[str, Tensor], *, whole: bool) -> Key | None:
        """Return the graph that computes this batch; None if its shape is new, or cannot be captured.

        With `whole` a batch is a step of its own; else its gradient is added to those of a group, times its rows.
        """
        key, self.whole = self._key(batch), whole
        if self.graphs.begun and not self.graphs.has(key, whole=whole):
            self._wanted.add(key)  # captured before the next group; autograd ends this one
            return None
        wanted = {key} if self.graphs.begun else {key, *self._wanted}
        self._wanted.clear()
        for each in sorted(wanted, key=str):
            self._capture(each, whole)
        return key if self.graphs.has(key, whole=whole) else None

    def _capture(self, key: Key, whole: bool) -> None:
        """Capture this shape if it has occurred before and can be captured."""
        if key in self._too_large or self.failed:
            return
        if key not in self._batches:
            if key not in self._seen or len(self._batches) >= MOST_SHAPES:
                self._seen.add(key)
                return
            self._batches[key] = {name: self._place(shape, dtype) for name, shape, dtype in key}
            self._losses[key] = torch.zeros((), device=self.hardware.device)
        try:
            self.graphs.prepare(key, lambda: self._loss(key), whole=whole)
        except NotCapturable as error:
            self.failed = f"its steps are not captured: {error}"
            self.close()
        except (torch.OutOfMemoryError, RuntimeError, MemoryError) as error:
            if not is_memory_error(error):
                raise
            # The plain step of this shape has fitted before.
            self.close()
            self._too_large.add(key)
            free_cached_memory(self.hardware.device)

    def close(self) -> None:
        """Give the memory of all graphs back."""
        self.graphs.forget()
        self._batches.clear()
        self._losses.clear()

    def backward(self, key: Key, batch: Mapping[str, Tensor], clip: float, *, first: bool, whole: bool) -> Tensor:
        """Compute a prepared batch, with `whole` the update too; return the batch's mean loss."""
        if first:
            self.graphs.clip = clip
            self.graphs.begin(0)
        self._fill(key, batch)
        self.graphs.replay(key, None, whole=whole)
        return self._losses[key].clone()

    def update(self, divisor: float, clip: float) -> Tensor:
        """End the step; return the norm of its gradients, which are divided by `divisor`, before clipping."""
        if not self.whole:
            self.graphs.clip = clip
            self.graphs.begin(0, divisor)
        self.graphs.end(whole=self.whole)
        return self.grad_norm.clone()

    def hand_over(self) -> None:
        """Give every parameter the gradient of the group so far, so that autograd adds the rest."""
        if not self.whole:
            self.graphs.hand_over()

    def forget(self) -> None:
        """Discard the gradients of this group, after an error."""
        self.graphs.zero()
        self.graphs.abandon()

    def _loss(self, key: Key) -> Tensor:
        static, config = self._batches[key], self.model.config
        before, labels = config.problem_type, static["labels"]
        classes = config.num_labels > 1 and labels.dim() == 1 and not labels.is_floating_point()
        if before is None and classes and config.model_type.startswith("deberta"):
            # Else its forward method looks on the host for labels below 0, which it leaves out.
            config.problem_type = "single_label_classification"
            labels = labels.masked_fill(labels < 0, LEFT_OUT)
        try:
            with exact_attention(self.model):
                outputs = self.model(**{**static, "labels": labels})
        finally:
            config.problem_type = before
        loss: Tensor = outputs["loss"] if isinstance(outputs, Mapping) else outputs[0]
        self._losses[key].copy_(loss.detach())
        return loss if self.whole else loss * len(static["labels"])

    def _judge(self, step: Tensor, loss: Tensor, norm: Tensor) -> Tensor:
        """A plain loop updates the weights by whatever the gradients are."""
        self.grad_norm.copy_(norm)
        return torch.ones_like(norm, dtype=torch.bool)

    def _key(self, batch: Mapping[str, Tensor]) -> Key:
        """Return name, static shape and type of each tensor."""
        width = batch["input_ids"].shape[1]
        # Without a padding token, a decoder's head reads the last column.
        if "attention_mask" in batch and getattr(self.model.config, "pad_token_id", None) is not None:
            limit = getattr(self.model.config, "max_position_embeddings", None)
            limit = None if limit is None else limit - position_shift(self.model.config)
            width = padded_width(width, width, limit)
        return tuple(
            (name, (value.shape[0], width) if name in PADDED else tuple(value.shape), value.dtype)
            for name, value in sorted(batch.items())
        )

    def _place(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.hardware.device)

    def _fill(self, key: Key, batch: Mapping[str, Tensor]) -> None:
        for name, static in self._batches[key].items():
            value = batch[name]
            if name in PADDED and static.shape[1] > value.shape[1]:
                static.fill_((getattr(self.model.config, "pad_token_id", None) or 0) if name == "input_ids" else 0)
                static[:, : value.shape[1]].copy_(value, non_blocking=True)
            else:
                static.copy_(value, non_blocking=True)


def why_not_batch(batch: Mapping[str, Any]) -> str:
    """Return why a graph cannot take this batch; empty if it can."""
    if set(batch) - {*PADDED, "labels"} or {"input_ids", "labels"} - set(batch):
        return f"the batch has {', '.join(batch)}"
    if any(not isinstance(value, Tensor) or value.requires_grad for value in batch.values()):
        return "the batch has values that are not plain tensors"
    ids, labels = batch["input_ids"], batch["labels"]
    if ids.dim() != 2 or any(batch[name].shape != ids.shape for name in PADDED if name in batch):
        return "the inputs of the batch differ in shape"
    return "" if labels.dim() and len(labels) == len(ids) else "the labels of the batch are not one for each row"
