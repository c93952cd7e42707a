"""One optimizer step: exact whatever the micro-batches, never a weight that is not finite."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import random_tokens, small_model
from whet.config import TrainConfig
from whet.data.tokens.batches import BatchOrder
from whet.engine.losses import Loss
from whet.engine.network import Network, TokenBatches
from whet.engine.optimizer import make_adamw
from whet.engine.stepper import Stepper, step_seed
from whet.task import Task
from whet.utils.device import Hardware

CPU = torch.device("cpu")
TASKS = {
    "binary": Task("binary", ("no", "yes")),
    "multiclass": Task("multiclass", ("a", "b", "c")),
    "multilabel": Task("multilabel", ("x", "y")),
    "regression": Task("regression", ()),
}


def make_stepper(kind: str = "binary", *, micro_rows: int = 8, weights: Any = None) -> tuple[Stepper, TokenBatches]:
    tokens, task = random_tokens(rows=8, kind=kind), TASKS[kind]
    network = Network(small_model(labels=task.outputs), CPU)
    loss = Loss(task, weights)
    feed = TokenBatches(tokens, BatchOrder(rows=8, batch_size=8, seed=0), network, loss)
    stepper = Stepper(
        model=network.model,
        loss_of=lambda batch: loss.total(network.logits(batch), batch.labels),
        optimizer=make_adamw(network.model, TrainConfig(learning_rate=1e-2)),
        hardware=Hardware(CPU, "float32", ""),
        clip=1.0,
        seed=0,
        micro_rows=micro_rows,
    )
    return stepper, feed


def weights_after_a_step(stepper: Stepper, feed: TokenBatches) -> dict[str, torch.Tensor]:
    rows = np.arange(8)
    stepper(0, feed, rows, rows, 1e-2)
    return {name: parameter.detach().clone() for name, parameter in stepper.model.named_parameters()}


@pytest.mark.parametrize("kind", list(TASKS))
@pytest.mark.parametrize("micro_rows", [1, 3, 5])
def test_micro_batches_give_the_step_of_the_whole_batch(kind: str, micro_rows: int) -> None:
    whole = weights_after_a_step(*make_stepper(kind))
    split = weights_after_a_step(*make_stepper(kind, micro_rows=micro_rows))
    for name in whole:
        torch.testing.assert_close(split[name], whole[name], rtol=1e-3, atol=1e-5, msg=name)


def test_class_weights_keep_micro_batches_exact() -> None:
    whole = weights_after_a_step(*make_stepper(weights=(0.2, 3.0)))
    split = weights_after_a_step(*make_stepper(weights=(0.2, 3.0), micro_rows=3))
    torch.testing.assert_close(split["classifier.weight"], whole["classifier.weight"], rtol=1e-3, atol=1e-5)


def test_the_loss_of_a_step_is_the_mean_over_its_rows() -> None:
    stepper, feed = make_stepper(micro_rows=3)
    with torch.no_grad():
        logits = feed.network.logits(feed.batch(np.arange(8)))
    expected = torch.nn.functional.cross_entropy(logits, torch.from_numpy(feed.tokens.labels))
    weights_after_a_step(stepper, feed)
    assert float(stepper.window.loss) == pytest.approx(float(expected), rel=1e-6)


def test_a_gradient_that_is_not_finite_never_reaches_the_weights() -> None:
    stepper, feed = make_stepper()
    before = {name: parameter.detach().clone() for name, parameter in stepper.model.named_parameters()}
    rows = np.arange(8)
    healthy = stepper.loss_of
    stepper.loss_of = lambda batch: healthy(batch) * float("nan")
    stepper(0, feed, rows, rows, 1e-2)
    stepper.loss_of = healthy
    stepper(1, feed, rows, rows, 1e-2)  # and nothing after it either: the state stays the last good one
    assert int(stepper.window.first_nonfinite_step) == 0
    assert all(torch.equal(parameter, before[name]) for name, parameter in stepper.model.named_parameters())


def test_dropout_is_a_function_of_seed_and_step() -> None:
    from whet.engine.stepper import seed_step

    seed_step(7, 3)
    first = torch.rand(4)
    torch.rand(100)
    seed_step(7, 3)
    assert torch.equal(torch.rand(4), first)
    seed_step(7, 4)
    assert not torch.equal(torch.rand(4), first)


def test_the_seeds_of_a_step_are_the_same_in_every_version() -> None:
    """A run that an earlier version began goes on with the dropout that it would have had."""
    assert step_seed(7, 3) == step_seed(7, 3, rank=0, micro=0) == 14887198724697508156
    assert (step_seed(7, 3, rank=1), step_seed(7, 3, micro=1)) == (4556106984352386809, 1765767563963638427)


def test_a_process_alone_draws_the_dropout_of_the_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    stepper, feed = make_stepper()
    seeds: list[int] = []
    monkeypatch.setattr(torch, "manual_seed", seeds.append)
    for step in (0, 4):
        stepper(step, feed, np.arange(8), np.arange(8), 1e-2)
    assert seeds == [step_seed(0, 0, rank=0), step_seed(0, 4, rank=0)]
