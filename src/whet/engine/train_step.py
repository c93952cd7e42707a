"""`TrainStep`: one training step for users with their own loop, on the engine's fast paths if possible."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whet.data.tokens.table import Tokens, Truncation
from whet.engine.captured.loop_step import CapturedLoopStep, why_not_batch
from whet.engine.captured.network import why_not_captured
from whet.engine.fused.architectures import why_not_fused
from whet.engine.fused.live import LiveStep
from whet.engine.given import (
    Watch,
    fusable,
    why_not_adamw,
    why_not_as_it_is,
    why_not_model,
    why_not_tokens,
)
from whet.engine.losses import Loss
from whet.engine.network import Network
from whet.engine.notices import notice
from whet.errors import UsageError
from whet.models.families import position_shift
from whet.task import PROBLEM_TYPES, labels_fit, notes_problem_type, task_of
from whet.utils.device import choose_hardware, precision

PACKABLE = {"input_ids", "attention_mask", "token_type_ids", "labels"}
MOST_CHANGES = 4
"""A loop that changes model or optimizer as often is left to torch: graphs would be captured again and again."""


class TrainStep:
    """`loss = step(batch)`: forward, backward, clip, optimizer, schedule, zero, in that order.

    `batch` is a dictionary from a collator, on any device. With `accumulate=n` every n-th call updates the weights by
    the mean over all rows since the last update; `flush()` ends an incomplete group. The returned loss is the batch's
    mean, detached and on the device, so nothing waits for it until it is read.

    `step.path` is the path that computed the last batch, with the reason: `fused`, `captured`, `packed` or `plain`.
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
        self.grad_norm: Tensor | None = None
        """The norm of the last step's gradients before clipping."""
        self.path = "not chosen before the first batch"
        self._adamw = getattr(optimizer, "optimizer", optimizer)  # without accelerate's wrapper
        self._calls = self._rows = 0
        self._live: LiveStep | None = None
        self._captured: CapturedLoopStep | None = None
        self._fuses_on_cuda = False
        self._changes = 0
        self._network: Network | None = None
        self._watch: Watch | None = None
        self._why_not_fused = self._why_plain = ""
        self._in_buffers = False
        """Whether the gradients of this group are in the buffers of the fused step."""

    def __call__(self, batch: Mapping[str, Any]) -> Tensor:
        """Learn from one batch; return its mean loss."""
        if not self.model.training:
            self.model.train()
        self._look_at_model()
        if self._fuses_on_cuda:
            self._fuse_on_cuda(batch)
        if self._captured is not None and (loss := self._replayed(self._captured, batch)) is not None:
            return loss
        tokens, odd = self._tokens(batch)
        rows = next(len(value) for value in batch.values() if isinstance(value, torch.Tensor) and value.dim())
        if tokens is not None and self._live is not None and self._fits_buffers():
            loss = self._fused(self._live, tokens)
        else:
            self._hand_over()
            loss = self._by_autograd(batch, tokens, rows, odd)
        self._finish_call(rows)
        return loss

    def _finish_call(self, rows: int) -> None:
        self._calls, self._rows = self._calls + 1, self._rows + rows
        if self._calls == self.accumulate:
            self._update()

    def _hand_over(self) -> None:
        """Let autograd go on with a group that the engine has begun."""
        engine = self._live or self._captured
        if self._in_buffers and engine is not None:
            engine.hand_over()
            self._in_buffers = False

    def flush(self) -> None:
        """Update the weights by what was accumulated, if anything was."""
        if self._calls:
            self._update()

    @property
    def parameters(self) -> list[Tensor]:
        """The parameters of the optimizer."""
        return [each for group in self.optimizer.param_groups for each in group["params"]]

    # A step ------------------------------------------------------------------------------------------

    def _fused(self, live: LiveStep, tokens: Tokens) -> Tensor:
        self.path = "fused"
        self._in_buffers = True
        # A sum, so that groups of unequal batches give the mean over all rows.
        divisor = float(len(tokens)) if self.accumulate == 1 else 1.0
        with self._whole_group(live):
            total = live.backward(tokens, self._loss_of(tokens), divisor, self._calls)
        return total if self.accumulate == 1 else total / len(tokens)

    def _replayed(self, captured: CapturedLoopStep, batch: Mapping[str, Any]) -> Tensor | None:
        """Return the loss of a batch whose graph exists; None if the model must compute it as it is."""
        if why_not_batch(batch) or not self._fits_buffers():
            return None
        whole = self.accumulate == 1
        if (key := captured.prepare(batch, whole=whole)) is None:
            if captured.failed:
                self._hand_over()
                self._captured, self._why_plain = None, captured.failed
            return None
        self.path = "captured"
        with self._whole_group(captured):
            loss = captured.backward(key, batch, self.clip, first=self._calls == 0, whole=whole)
        self._in_buffers = True
        self._finish_call(len(batch["input_ids"]))
        return loss

    @contextmanager
    def _whole_group(self, live: LiveStep | CapturedLoopStep) -> Iterator[None]:
        """Discard the group after an error or Ctrl-C, because its gradients are incomplete."""
        try:
            yield
        except BaseException:
            live.forget()
            self._calls = self._rows = 0
            self._in_buffers = False
            raise

    def _by_autograd(self, batch: Mapping[str, Any], tokens: Tokens | None, rows: int, odd: str) -> Tensor:
        with precision(self.hardware):
            if tokens is not None and self._network is not None:
                self.path = f"packed ({self._why_not_fused})"
                packed = self._network.collate(tokens, np.arange(rows))
                assert packed.labels is not None
                loss = self._loss_of(tokens).total(self._network.logits(packed), packed.labels) / rows
            else:
                new = "the first batch of its shape" if self._captured is not None else ""
                self.path = f"plain ({self._why_plain or odd or new})"
                loss = self._own_loss(batch)
            part = loss * rows if self.accumulate > 1 else loss
        part.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _own_loss(self, batch: Mapping[str, Any]) -> Tensor:
        """Return the loss of the model's own forward."""
        device = self.hardware.device
        moved = {name: each.to(device) if isinstance(each, Tensor) else each for name, each in batch.items()}
        outputs = self.model(**moved)
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs[0]
        if loss is None:
            raise UsageError(f"The model gave no loss for {', '.join(map(repr, batch))}.", "A batch needs 'labels'.")
        return loss  # type: ignore[no-any-return]

    def _loss_of(self, tokens: Tokens) -> Loss:
        task = task_of(self.model.config, tokens.labels)
        assert task is not None
        if self.model.config.problem_type is None and notes_problem_type(self.model.config):
            self.model.config.problem_type = PROBLEM_TYPES[task.kind]  # the model's own forward notes it down, too
        return Loss(task)

    def _update(self) -> None:
        divisor = float(self._rows) if self.accumulate > 1 else 1.0
        engine = self._live or self._captured
        if self._in_buffers and engine is not None:
            with self._whole_group(engine):
                self.grad_norm = engine.update(divisor, self.clip)
            for each in (self.optimizer, self._adamw):  # else torch warns that the schedule went first
                each._opt_called = True  # type: ignore[union-attr]
        else:
            if self.accumulate > 1:
                gradients = [each.grad for each in self.parameters if each.grad is not None]
                torch._foreach_mul_(gradients, 1.0 / divisor)
            limit = self.clip if self.clip > 0 else float("inf")
            self.grad_norm = torch.nn.utils.clip_grad_norm_(self.parameters, limit)
            self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        if not self._in_buffers:
            self.optimizer.zero_grad(set_to_none=True)
        self._calls = self._rows = 0
        self._in_buffers = False

    # Choice ------------------------------------------------------------------------------------------

    def _look_at_model(self) -> None:
        """Choose a path at the first batch, and again after a change of the model or the optimizer."""
        if self._watch is None:
            if not self._why_plain:
                self._choose()
            return
        reason = self._watch.model_changed()
        if self._live is not None:
            reason = reason or self._watch.changed() or self._live.why_not()
        elif self._captured is not None:
            reason = reason or self._watch.changed()
        if not reason:
            return
        self._hand_over()
        if (engine := self._live or self._captured) is not None:
            engine.close()
        self._live, self._captured, self._in_buffers, self._fuses_on_cuda = None, None, False, False
        self._why_not_fused = reason  # it is not taken again, because that copies all weights
        self._changes += 1
        self._choose()

    def _choose(self) -> None:
        self._network = None
        if self.hardware.device.type == "cuda":
            self._choose_on_cuda()
            return
        self._why_plain = why_not_model(self.model) or _why_not_forward(self.model)
        if self._why_plain:
            if type(self.model).__module__.startswith("transformers."):
                self._watch = Watch(self.model, self._adamw)  # a hook may be taken off again
            return
        self._why_not_fused = self._why_not_fused or self._reason_against_fused()
        if not self._why_not_fused:
            self._live = LiveStep(self.model, self._adamw, self.hardware)
        self._network = Network(self.model, self.hardware.device)
        self._watch = Watch(self.model, self._adamw)

    def _choose_on_cuda(self) -> None:
        """Capture steps, or leave them to torch: without a graph, launching packed rows takes the host longer."""
        self._why_plain = self._reason_against_captured()
        self._why_not_fused = self._why_not_fused or why_not_model(self.model) or self._reason_against_fused()
        self._fuses_on_cuda = not (self._why_plain or self._why_not_fused)
        if not self._why_plain and not self._fuses_on_cuda:
            self._captured = CapturedLoopStep(self.model, self._adamw, self.hardware, self.clip)
        if type(self.model).__module__.startswith(("transformers.", "peft.")):
            self._watch = Watch(self.model, self._adamw)

    def _fuse_on_cuda(self, batch: Mapping[str, Any]) -> None:
        """Take memory for fused steps of batches like this one, unless there is enough."""
        tokens, _ = self._tokens(batch)
        if tokens is None or not self._fits_buffers():
            return
        if self._live is not None:
            if self._live.takes(tokens, self.clip):
                return
            self._live.close()
        from whet.engine.fused.cuda.live_step import CudaLiveStep

        limit = self.model.config.max_position_embeddings - position_shift(self.model.config)
        most = (len(tokens), len(tokens) * limit)
        self._live = CudaLiveStep(self.model, self._adamw, self.hardware, most, self._loss_of(tokens), self.clip)
        self._watch = Watch(self.model, self._adamw)  # its weights have other places now

    def _reason_against_captured(self) -> str:
        if self._changes >= MOST_CHANGES:
            return f"model or optimizer have changed {self._changes} times; the last time {self._why_not_fused}"
        return (
            why_not_as_it_is(self.model, adapters=True)
            or _why_not_forward(self.model)
            or why_not_captured(self.model)
            or self._why_not_accelerator()
            or why_not_adamw(self._adamw, self.model, fused=False)
        )

    def _why_not_accelerator(self) -> str:
        gradient_state = getattr(self.optimizer, "gradient_state", None)
        accumulates = gradient_state is not None and gradient_state.num_steps > 1
        return "the accelerator accumulates gradients" if accumulates else ""

    def _reason_against_fused(self) -> str:
        if self.hardware.device.type == "cuda" and self.accumulate > 1:
            return "a fused step on a GPU is one batch"
        if not fusable(self.model, self.hardware.device, self.hardware.bf16):
            return why_not_fused(self.model) or "some of its weights are frozen"
        return self._why_not_accelerator() or why_not_adamw(self._adamw, self.model, fused=True, everywhere=True)

    def _fits_buffers(self) -> bool:
        """Whether the fused step computes this group: no other gradients exist, and all modules are in train mode."""
        if self._calls:
            return self._in_buffers
        assert self._watch is not None
        casts = torch.is_autocast_enabled(self.hardware.device.type)
        plain = all(each.training for each in self._watch.modules) and not casts
        return plain and all(each.grad is None for each in self.parameters)

    def _tokens(self, batch: Mapping[str, Any]) -> tuple[Tokens | None, str]:
        """Return the batch without padding, or the reason why the model must compute it as it is."""
        if self._network is None and not self._fuses_on_cuda:
            return None, ""
        if set(batch) - PACKABLE or {"input_ids", "labels", "attention_mask"} - set(batch):
            return None, f"the batch has {', '.join(batch)}"
        if any(not isinstance(value, torch.Tensor) for value in batch.values()):
            return None, "the batch has values that are no tensors"
        if self._fuses_on_cuda:  # faster than other paths even though it waits for the device
            batch = {name: value.cpu() for name, value in batch.items()}
        if any(value.device.type != "cpu" for value in batch.values()):
            return None, "the batch is on the device already"
        if any(value.requires_grad or value.dtype is torch.bfloat16 for value in batch.values()):
            return None, "the batch has tensors that are not plain numbers"  # numpy does not take them
        mask = batch["attention_mask"].numpy().astype(bool)
        if any(value.shape != mask.shape for name, value in batch.items() if name != "labels") or mask.ndim != 2:
            return None, "the inputs of the batch differ in shape"
        lengths = mask.sum(axis=1)
        if not lengths.all() or (mask != (np.arange(mask.shape[1]) < lengths[:, None])).any():
            return None, "the batch is padded on the left, or masks tokens"  # positions would move
        types = batch["token_type_ids"].numpy()[mask] if "token_type_ids" in batch else None
        offsets = np.concatenate(([0], lengths.cumsum()))
        ids, labels = batch["input_ids"].numpy(), batch["labels"].numpy()
        tokens = Tokens(ids[mask], offsets, types, labels, Truncation(), "")
        return (None, odd) if (odd := self._odd(tokens, mask.shape[1])) else (tokens, "")

    def _odd(self, tokens: Tokens, width: int) -> str:
        """Return why the library's forward would refuse this batch or compute it differently."""
        if reason := why_not_tokens(self.model.config, tokens, width):
            return reason
        task = task_of(self.model.config, tokens.labels)
        if task is None or tokens.labels is None or not labels_fit(tokens.labels, task):
            return "the labels are not of the model's kind"
        return ""


def _why_not_forward(model: Any) -> str:
    """Return whether accelerate has wrapped a forward: it computes in a precision that the engine does not know."""
    wrapped = any(hasattr(module, "_original_forward") for module in model.modules())
    return "accelerate has replaced the forward method" if wrapped else ""
