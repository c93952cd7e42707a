"""Texts of several windows: each text counts once in the loss, whatever the path and the micro-batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import in_windows, random_tokens, small_model
from whet.config import TrainConfig
from whet.data.tokens.batches import BatchOrder
from whet.engine.dispatch import choose_network, choose_path
from whet.engine.logits import compute_logits
from whet.engine.losses import Loss
from whet.engine.network import Network, TokenBatches
from whet.engine.stepper import Stepper
from whet.task import Task
from whet.utils.device import Hardware

FLOAT32 = Hardware(torch.device("cpu"), "float32", "")
SIZES = (3, 1, 4)
TASKS = {
    "multiclass": Task("multiclass", ("a", "b", "c")),
    "multilabel": Task("multilabel", ("x", "y")),
    "regression": Task("regression", ()),
}


def made(kind: str, family: str, *, micro_rows: int = 8, loss: Loss | None = None) -> tuple[Stepper, TokenBatches, Any]:
    """A stepper on three texts of eight windows in all."""
    tokens, task = in_windows(random_tokens(8, kind=kind), SIZES), TASKS[kind]
    model, loss = small_model(family, labels=task.outputs, width=64), loss or Loss(task)
    order = BatchOrder(rows=3, batch_size=3, seed=0)
    network, stepper = choose_path(model, loss, TrainConfig(batch_size=8), FLOAT32, [tokens], order=order)
    stepper.micro_rows = micro_rows
    return stepper, TokenBatches(tokens, order, network, loss), model


def loss_of_a_step(stepper: Stepper, feed: TokenBatches) -> float:
    texts = feed.order.at(0)
    stepper(0, feed, texts, texts, 1e-2)
    return float(stepper.window.loss)


def loss_by_hand(kind: str, family: str, loss: Loss) -> float:
    """The mean over texts of the mean over their windows."""
    tokens, task = in_windows(random_tokens(8, kind=kind), SIZES), TASKS[kind]
    network = Network(small_model(family, labels=task.outputs, width=64), FLOAT32.device)
    network.model.train()
    with torch.no_grad():
        rows = loss.rows(*(lambda batch: (network.logits(batch), batch.labels))(network.collate(tokens, np.arange(8))))
    return float(np.mean([part.mean() for part in torch.split(rows, SIZES)]))


@pytest.mark.parametrize("kind", list(TASKS))
@pytest.mark.parametrize(("family", "path"), [("bert", "fused"), ("modernbert", "packed")])
def test_a_text_counts_once_however_many_windows_it_has(kind: str, family: str, path: str) -> None:
    loss = Loss(TASKS[kind])
    stepper, feed, _ = made(kind, family)
    assert feed.network.path == path
    assert loss_of_a_step(stepper, feed) == pytest.approx(loss_by_hand(kind, family, loss), rel=1e-4)


@pytest.mark.parametrize("micro_rows", [1, 3])
@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_a_text_may_be_torn_over_micro_batches(family: str, micro_rows: int) -> None:
    whole, torn = made("multiclass", family), made("multiclass", family, micro_rows=micro_rows)
    assert loss_of_a_step(*torn[:2]) == pytest.approx(loss_of_a_step(*whole[:2]), rel=1e-4)
    for name, found in torn[0].tensors()["model"].items():
        torch.testing.assert_close(found, whole[0].tensors()["model"][name], rtol=1e-3, atol=2e-4, msg=name)


def test_class_weights_and_the_contrastive_loss_count_texts() -> None:
    task = TASKS["multiclass"]
    weighted = Loss(task, (0.5, 1.0, 4.0))
    stepper, feed, _ = made("multiclass", "bert", loss=weighted)
    labels = feed.tokens.labels
    assert labels is not None
    plain = Loss(task)
    each = loss_by_hand("multiclass", "bert", weighted) * 3  # the sum over texts, each with its class weight
    assert loss_of_a_step(stepper, feed) == pytest.approx(each / weighted.loss_divisor(labels), rel=1e-4)
    stepper, feed, _ = made("multiclass", "bert", loss=Loss(task, contrastive=0.5))
    assert loss_of_a_step(stepper, feed) != pytest.approx(loss_by_hand("multiclass", "bert", plain), rel=1e-3)


@pytest.mark.parametrize("batch_rows", [8, 2])
def test_logits_of_a_text_are_the_mean_of_its_windows(batch_rows: int) -> None:
    tokens = random_tokens(8)
    network = choose_network(small_model(), FLOAT32)
    rows = compute_logits(network, tokens, FLOAT32, batch_rows=8)
    texts = compute_logits(network, in_windows(tokens, SIZES), FLOAT32, batch_rows=batch_rows)
    expected = np.stack([part.mean(axis=0) for part in np.split(rows, np.cumsum(SIZES)[:-1])])
    np.testing.assert_allclose(texts, expected, atol=1e-5)
    some = compute_logits(network, in_windows(tokens, SIZES), FLOAT32, batch_rows=8, rows=np.array([2, 0]))
    np.testing.assert_allclose(some, expected[[2, 0]], atol=1e-5)
