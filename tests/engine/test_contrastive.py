"""The supervised contrastive loss: against its definition written out, on every path of the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import random_tokens, small_model
from whet.config import TrainConfig
from whet.data.tokens.batches import BatchOrder, pad, rank_slice
from whet.engine.dispatch import _loss_of, choose_path
from whet.engine.losses import Loss, contrastive_rows, has_pairs
from whet.engine.network import Network, TokenBatches
from whet.engine.optimizer import make_adamw
from whet.engine.stepper import Stepper, split
from whet.task import Task
from whet.utils.device import Hardware

TASK = Task("multiclass", ("a", "b", "c"))
FLOAT32 = Hardware(torch.device("cpu"), "float32", "")


def by_definition(features: torch.Tensor, labels: list[int]) -> list[float]:
    """Row by row in double precision, as the paper has it."""
    z = features.double() / features.double().norm(dim=1, keepdim=True)
    found = []
    for i, own in enumerate(labels):
        others = [j for j in range(len(labels)) if j != i]
        total = sum(torch.exp(z[i] @ z[j] / 0.1) for j in others)
        positives = [j for j in others if labels[j] == own]
        each = [-torch.log(torch.exp(z[i] @ z[j] / 0.1) / total) for j in positives]
        found.append(float(sum(each) / len(each)) if each else 0.0)
    return found


@pytest.fixture
def features() -> torch.Tensor:
    return torch.randn(6, 8, generator=torch.Generator().manual_seed(3))


def test_each_row_is_compared_with_all_others(features: torch.Tensor) -> None:
    labels = [0, 1, 0, 2, 1, 0]
    rows, paired = contrastive_rows(features, torch.tensor(labels), torch.ones(6, dtype=torch.bool))
    assert rows.tolist() == pytest.approx(by_definition(features, labels), rel=1e-5)
    assert paired.tolist() == [True, True, True, False, True, True]


def test_rows_that_only_fill_a_batch_change_nothing(features: torch.Tensor) -> None:
    labels, logits = torch.tensor([0, 1, 0, 1]), torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
    loss = Loss(TASK, contrastive=0.5)
    alone = loss.mixed(loss.rows(logits, labels), labels, features[:4], torch.full((4,), 0.25))
    more = torch.cat([labels, torch.tensor([0, 0])]), torch.cat([logits, torch.zeros(2, 3)])
    share = torch.tensor([0.25] * 4 + [0.0] * 2)
    filled = loss.mixed(loss.rows(more[1], more[0]), more[0], features, share)
    assert float(filled) == pytest.approx(float(alone), rel=1e-6)


@pytest.mark.parametrize("weights", [None, (1.0, 2.0, 0.5)])
def test_half_of_each_loss_is_half_of_both(features: torch.Tensor, weights: tuple[float, ...] | None) -> None:
    labels, logits = torch.tensor([0, 1, 0, 1, 1, 2]), torch.randn(6, 3, generator=torch.Generator().manual_seed(1))
    total = {share: float(Loss(TASK, weights, 0.1, share).total(logits, labels, features)) for share in (0.0, 0.5, 1.0)}
    assert total[0.5] == pytest.approx((total[0.0] + total[1.0]) / 2, rel=1e-6)
    each = np.array(by_definition(features, labels.tolist()))
    mass = np.asarray(weights or (1.0,) * 3)[labels.numpy()]
    assert total[1.0] == pytest.approx((mass * each).sum() / mass[:5].sum() * mass.sum(), rel=1e-5)


def test_a_batch_without_two_of_a_class_has_the_plain_loss(features: torch.Tensor) -> None:
    labels, logits = torch.tensor([0, 1, 2]), torch.randn(3, 3, generator=torch.Generator().manual_seed(1))
    wanted, z = float(Loss(TASK).total(logits, labels)), features[:3].clone().requires_grad_()
    found = Loss(TASK, contrastive=0.9).total(logits, labels, z)
    found.backward()
    assert float(found.detach()) == pytest.approx(wanted, rel=1e-6)
    assert z.grad is not None
    assert not z.grad.any()
    assert not has_pairs(labels.numpy())


def test_gradients_are_those_of_finite_differences(features: torch.Tensor) -> None:
    labels, present = torch.tensor([0, 1, 0, 2, 1, 0]), torch.ones(6, dtype=torch.bool)
    z = features.clone().requires_grad_()
    contrastive_rows(z, labels, present)[0].sum().backward()
    assert z.grad is not None
    moved = features.clone().double()
    for i, j in ((0, 0), (3, 5), (5, 7)):
        sums = []
        for sign in (1, -1):
            moved[i, j] += sign * 1e-5
            sums.append(sum(by_definition(moved, labels.tolist())))
            moved[i, j] -= sign * 1e-5
        assert float(z.grad[i, j]) == pytest.approx((sums[0] - sums[1]) / 2e-5, rel=1e-3, abs=1e-4)


def test_mixed_precision_compares_in_float32(features: torch.Tensor) -> None:
    labels, present = torch.tensor([0, 1, 0, 2, 1, 0]), torch.ones(6, dtype=torch.bool)
    wanted = contrastive_rows(features, labels, present)[0]
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(contrastive_rows(features, labels, present)[0], wanted)


def plain_loss(model: Any, feed: TokenBatches, rows: np.ndarray[Any, Any], loss: Loss, divisor: float) -> torch.Tensor:
    """The library's own forward pass on each row alone, and the loss written out: for plain autograd."""
    assert feed.tokens.labels is not None
    labels, logits, features = feed.tokens.labels[rows].tolist(), [], []
    for row in rows:
        batch = pad(feed.tokens, np.array([row]), pad_id=0)
        inputs = {name: torch.from_numpy(value) for name, value in batch.items() if name != "labels"}
        found = model(**inputs, output_hidden_states=True)
        logits.append(found.logits[0])
        features.append(found.hidden_states[-1][0, 0])
    mass = [1.0 if loss.class_weights is None else loss.class_weights[label] for label in labels]
    smoothed = loss.label_smoothing / len(logits[0])
    target = torch.full((len(labels), len(logits[0])), smoothed)
    target[torch.arange(len(labels)), torch.tensor(labels)] += 1 - loss.label_smoothing
    every = torch.tensor(loss.class_weights or [1.0] * len(logits[0]))
    task = -(torch.stack(logits).log_softmax(dim=1) * target * every).sum()
    z = [feature / feature.norm() for feature in features]
    each, counted = [], []
    for i, own in enumerate(labels):
        scores = torch.stack([z[i] @ z[j] / 0.1 for j in range(len(z)) if j != i])
        same = torch.tensor([labels[j] == own for j in range(len(z)) if j != i])
        if same.any():
            each.append(-mass[i] * scores.log_softmax(dim=0)[same].mean())
            counted.append(mass[i])
    if not each:
        return task / divisor
    contrastive = torch.stack(each).sum() / sum(counted) * sum(mass)
    return ((1 - loss.contrastive) * task + loss.contrastive * contrastive) / divisor


def gradients(stepper: Stepper) -> dict[str, torch.Tensor]:
    flat = getattr(getattr(stepper, "network", None), "flat", None)
    if flat is None:
        return {name: parameter.grad for name, parameter in stepper.model.named_parameters()}
    return {name: group.view(group.gradient, name) for group in flat.groups() for name in group.places}


@pytest.mark.parametrize("weights, smoothing", [(None, 0.0), ((1.0, 3.0), 0.1)])
@pytest.mark.parametrize("micro_rows", [8, 3])
@pytest.mark.parametrize("path", ["padded", "packed", "fused"])
def test_loss_and_gradients_are_those_of_plain_autograd(
    path: str, micro_rows: int, weights: tuple[float, ...] | None, smoothing: float
) -> None:
    loss = Loss(Task("binary", ("no", "yes")), weights, smoothing, contrastive=0.4)
    feed, stepper = with_order(path, "bert", loss)
    rows, plain = feed.order.at(0), small_model("bert", width=64)
    parts = split(rows, micro_rows)  # what goes through the model together is compared, and nothing else
    wanted = sum((plain_loss(plain, feed, part, loss, feed.loss_divisor(rows)) for part in parts), torch.zeros(()))
    wanted.backward()
    stepper.model.train()
    found = [
        stepper.backward(feed.batch(part), feed.loss_divisor(rows), micro=micro) for micro, part in enumerate(parts)
    ]
    assert float(sum(found)) == pytest.approx(float(wanted.detach()), rel=1e-5)
    known, own = dict(plain.named_parameters()), gradients(stepper)
    assert own.keys() == known.keys()
    for name, gradient in own.items():
        expected = known[name].grad
        if len(gradient) != len(expected):  # the rows of the vocabulary that the data uses
            expected = expected[torch.from_numpy(stepper.network.flat.used)]  # type: ignore[attr-defined]
        assert torch.allclose(gradient, expected, rtol=1e-3, atol=1e-6), name


def with_order(path: str, family: str, loss: Loss) -> tuple[TokenBatches, Stepper]:
    tokens, config = random_tokens(rows=20, types=family in ("bert", "electra")), TrainConfig(batch_size=8)
    model, order = small_model(family, width=64), BatchOrder(rows=20, batch_size=8, seed=0)
    if path == "fused":
        network, stepper = choose_path(model, loss, config, FLOAT32, [tokens], order=order)
    else:
        network = Network(model, FLOAT32.device, packed=path == "packed")
        optimizer = make_adamw(model, config)
        stepper = Stepper(model, _loss_of(network, loss), optimizer, FLOAT32, clip=1.0, seed=42, micro_rows=8)
    assert network.path == path
    return TokenBatches(tokens, order, network, loss), stepper


def losses(path: str, family: str, micro_rows: int) -> list[float]:
    """Of eight steps with a loss that is half contrastive."""
    feed, stepper = with_order(path, family, Loss(Task("binary", ("no", "yes")), contrastive=0.5))
    stepper.micro_rows, found = micro_rows, []
    for step in range(8):
        rows = feed.order.at(step)
        stepper(step, feed, rows, rows, 1e-3)
        found.append(float(stepper.window.loss))
        stepper.window.clear()
    return found


@pytest.mark.parametrize("family, micro_rows", [("bert", 8), ("bert", 3), ("roberta", 8), ("distilbert", 3)])
def test_every_path_computes_the_same_training(family: str, micro_rows: int) -> None:
    padded = losses("padded", family, micro_rows)
    assert losses("packed", family, micro_rows) == pytest.approx(padded, rel=1e-4)
    assert losses("fused", family, micro_rows) == pytest.approx(padded, rel=1e-4)


def test_batches_without_anything_to_compare_are_counted() -> None:
    tokens: Any = random_tokens(rows=8, types=True)
    loss, config = Loss(Task("binary", ("no", "yes")), contrastive=0.5), TrainConfig(batch_size=4)
    network, stepper = choose_path(small_model("bert", width=64), loss, config, FLOAT32, [tokens])
    feed = TokenBatches(tokens, BatchOrder(rows=8, batch_size=4, seed=0), network, loss)
    both = np.array([int(np.argmin(tokens.labels)), int(np.argmax(tokens.labels))])
    stepper(0, feed, both, both, 1e-3)
    assert stepper.window.uncompared == 1
    every = np.arange(8)
    stepper(1, feed, every, every, 1e-3)
    assert stepper.window.uncompared == 1


@pytest.mark.parametrize("world", [1, 2, 3])
def test_every_process_counts_what_none_of_them_could_compare(world: int) -> None:
    feed, stepper = with_order("packed", "bert", Loss(Task("binary", ("no", "yes")), contrastive=0.5))
    assert feed.tokens.labels is not None
    stepper.world, stepper.micro_rows = world, 2
    rows = feed.order.at(0)
    parts = [part for rank in range(world) for part in split(rank_slice(rows, rank, world), 2)]
    stepper.count(feed, rows)
    assert stepper.window.uncompared == sum(not has_pairs(feed.tokens.labels[part]) for part in parts) > 0


def test_a_step_that_is_taken_again_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    feed, stepper = with_order("packed", "bert", Loss(Task("binary", ("no", "yes")), contrastive=0.5))
    rows, backward = feed.order.at(0), stepper.backward
    stepper.micro_rows = 2

    def out_of_memory(*_: Any, micro: int, **more: Any) -> torch.Tensor:
        if micro == 2:
            raise MemoryError
        return backward(*_, micro=micro, **more)

    monkeypatch.setattr(stepper, "backward", out_of_memory)
    with pytest.raises(MemoryError):
        stepper(0, feed, rows, rows, 1e-3)
    assert stepper.window.uncompared == 0
