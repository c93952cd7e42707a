"""`TrainStep`: one training step for users with their own loop, on packed batches if possible."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from whet.engine.losses import Loss
from whet.engine.network import Batch, Network
from whet.engine.notices import notice
from whet.engine.packed import make_layout
from whet.errors import UsageError
from whet.task import Task, task_of
from whet.utils.device import choose_hardware, precision

PACKABLE = {"input_ids", "attention_mask", "token_type_ids", "labels"}


class TrainStep:
    """`loss = step(batch)`: forward, backward, clip, optimizer, schedule, zero, in that order.

    `batch` is a dictionary from a collator, on any device. With `accumulate=n` every n-th call updates the weights by
    the mean over all rows since the last update; `flush()` ends an incomplete group. The returned loss is the batch's
    mean, detached and on the device, so nothing waits for it until it is read.
    """

    def __init__(
        self,
        model: Any,
        optimizer: torch.optim.Optimizer,
        scheduler: Any = None,
        *,
        clip: float | None = 1.0,
        accumulate: int = 1,
        precision: str = "auto",
    ) -> None:
        if accumulate < 1:
            raise UsageError(f"accumulate is {accumulate}.", "It must be 1 or more.")
        self.model, self.optimizer, self.scheduler = model, optimizer, scheduler
        self.clip, self.accumulate = float(clip or 0.0), accumulate
        device = next(model.parameters()).device
        self.hardware = choose_hardware(str(device), precision)
        if self.hardware.slow:
            notice(f"TrainStep: {self.hardware.slow}")
        self.parameters = [each for group in optimizer.param_groups for each in group["params"]]
        self.grad_norm: Tensor | None = None
        """The norm of the last step's gradients before clipping."""
        self._calls = self._rows = 0
        self._network = _packed_network(model, self.hardware.device)

    def __call__(self, batch: Mapping[str, Any]) -> Tensor:
        """Learn from one batch; return its mean loss."""
        if not self.model.training:
            self.model.train()
        rows = next(len(value) for value in batch.values() if isinstance(value, torch.Tensor) and value.dim())
        with precision(self.hardware):
            loss = self._loss(batch)
            # A sum, so that groups of unequal batches give the mean over all rows.
            part = loss * rows if self.accumulate > 1 else loss
        part.backward()  # type: ignore[no-untyped-call]
        self._calls, self._rows = self._calls + 1, self._rows + rows
        if self._calls == self.accumulate:
            self._update()
        return loss.detach()

    def flush(self) -> None:
        """Update the weights with the accumulated gradients, if there are any."""
        if self._calls:
            self._update()

    def _update(self) -> None:
        if self.accumulate > 1:
            gradients = [each.grad for each in self.parameters if each.grad is not None]
            torch._foreach_mul_(gradients, 1.0 / self._rows)
        limit = self.clip if self.clip > 0 else float("inf")
        self.grad_norm = torch.nn.utils.clip_grad_norm_(self.parameters, limit)
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        self.optimizer.zero_grad(set_to_none=True)
        self._calls = self._rows = 0

    def _loss(self, batch: Mapping[str, Any]) -> Tensor:
        packed = self._packed(batch)
        if packed is not None and self._network is not None:
            task = task_of(self.model.config, batch["labels"].numpy())
            if task is not None:
                return _mean(self._network, packed, task)
        device = self.hardware.device
        moved = {name: each.to(device) if isinstance(each, Tensor) else each for name, each in batch.items()}
        outputs = self.model(**moved)
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs[0]
        if loss is None:
            raise UsageError(f"The model gave no loss for {', '.join(map(repr, batch))}.", "A batch needs 'labels'.")
        return loss  # type: ignore[no-any-return]

    def _packed(self, batch: Mapping[str, Any]) -> Batch | None:
        """Return the batch without padding; None if it is not plain, or already on the device."""
        if self._network is None or set(batch) - PACKABLE or "labels" not in batch or "attention_mask" not in batch:
            return None
        if any(not isinstance(value, torch.Tensor) or value.device.type != "cpu" for value in batch.values()):
            return None
        mask = batch["attention_mask"].bool()
        lengths = mask.sum(dim=1)
        if not bool((mask == (torch.arange(mask.shape[1]) < lengths[:, None])).all()) or not bool(lengths.all()):
            return None  # padding on the left would shift positions
        device = self.hardware.device
        shift = self._network.position_shift
        positions = torch.arange(mask.shape[1]).expand(mask.shape) + shift
        inputs = {"input_ids": batch["input_ids"][mask], "position_ids": positions[mask]}
        if "token_type_ids" in batch:
            inputs["token_type_ids"] = batch["token_type_ids"][mask]
        offsets = torch.cat((torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)))
        return Batch(
            {name: values[None].to(device, non_blocking=True) for name, values in inputs.items()},
            batch["labels"].to(device, non_blocking=True),
            make_layout(offsets.numpy(), device),
        )


def _packed_network(model: Any, device: torch.device) -> Network | None:
    """Return the engine's network for a library classifier; None if the model must be called as it is."""
    kind = type(model)
    if not kind.__module__.startswith("transformers.") or not kind.__name__.endswith("ForSequenceClassification"):
        return None
    network = Network(model, device)
    return network if network.is_packed else None


def _mean(network: Network, batch: Batch, task: Task) -> Tensor:
    assert batch.labels is not None
    return Loss(task).total(network.logits(batch), batch.labels) / len(batch.labels)
