"""The loop of the course in plain torch and the same loop with `TrainStep`, side by side."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from tests.huggingface.made import make_rows, weights
from whet import AdamW, TrainStep, get_scheduler

Batch = dict[str, torch.Tensor]


def make_batches(count: int = 3, size: int = 4, kind: str = "binary") -> list[Batch]:
    rows = make_rows(count * size, kind=kind).remove_columns(["sentence1"])
    batches = []
    for start in range(0, count * size, size):
        part = [rows[place] for place in range(start, start + size)]
        width = max(len(row["input_ids"]) for row in part)
        batch = {
            name: torch.tensor([row[name] + [0] * (width - len(row[name])) for row in part])
            for name in ("input_ids", "token_type_ids", "attention_mask")
        }
        batches.append({**batch, "labels": torch.tensor([row["label"] for row in part])})
    return batches


def on_the_left(batch: Batch) -> Batch:
    """The same rows backwards, so that the padding comes first."""
    return {name: value.flip(1) if value.dim() == 2 else value for name, value in batch.items()}


def optimizer_and_schedule(model: Any, **settings: Any) -> tuple[Any, Any]:
    optimizer = AdamW(model.parameters(), lr=1e-3, **settings)
    return optimizer, get_scheduler("linear", optimizer=optimizer, num_warmup_steps=0, num_training_steps=6)


class PlainLoop:
    """As in the course, with clipping, and the mean over all rows of a group."""

    def __init__(self, model: Any, optimizer: Any, schedule: Any, clip: float = 1.0) -> None:
        self.model, self.optimizer, self.schedule, self.clip = model, optimizer, schedule, clip
        self.grad_norm: Any = None

    def __call__(self, *group: Batch) -> list[float]:
        self.model.train()
        rows, losses = sum(len(batch["labels"]) for batch in group), []
        for batch in group:
            loss = self.model(**batch).loss
            (loss * len(batch["labels"]) / rows).backward()
            losses.append(float(loss.detach()))
        self.grad_norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()
        return losses


class Both:
    """Two equal models, one in each loop. What is done to one is done to the other, and both are compared after it."""

    def __init__(
        self, model: Any, clip: float = 1.0, accumulate: int = 1, make: Callable[[Any], Any] = optimizer_and_schedule
    ) -> None:
        other = copy.deepcopy(model)
        self.plain = PlainLoop(other, *make(other), clip)
        self.step = TrainStep(model, *make(model), clip=clip, accumulate=accumulate, precision="float32")

    def do(self, act: Callable[[Any], Any]) -> None:
        """Something that a user does between two steps, to an object with `model`, `optimizer` and `schedule`."""
        act(self.plain)
        self.step.schedule = self.step.scheduler  # type: ignore[attr-defined]
        act(self.step)

    def take(self, *group: Batch, path: str = "fused") -> None:
        """One update in each loop."""
        losses = [float(self.step(batch)) for batch in group]
        assert self.step.path.startswith(path), self.step.path
        self.step.flush()
        torch.testing.assert_close(losses, self.plain(*group), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(float(self.step.grad_norm), float(self.plain.grad_norm), rtol=1e-4, atol=1e-6)  # type: ignore[arg-type]
        self.compare()

    def compare(self) -> None:
        """Everything that can be seen of model, optimizer and schedule."""
        assert_same(self.step.model, self.plain.model)
        assert self.step.scheduler.get_last_lr() == self.plain.schedule.get_last_lr()
        found, expected = self.step.optimizer.state_dict(), self.plain.optimizer.state_dict()
        assert found["param_groups"] == expected["param_groups"]
        assert found["state"].keys() == expected["state"].keys()
        for index, state in expected["state"].items():
            for kind, tensor in state.items():
                torch.testing.assert_close(found["state"][index][kind], tensor, rtol=1e-3, atol=1e-6, msg=kind)
        assert all(parameter.grad is None for parameter in self.step.model.parameters())


def assert_same(found: Any, expected: Any) -> None:
    for name, tensor in weights(expected).items():
        if not name.endswith(("key.bias", "k_lin.bias")):  # moves no output: its gradient is rounding alone
            torch.testing.assert_close(weights(found)[name], tensor, rtol=1e-3, atol=2e-5, msg=name)
