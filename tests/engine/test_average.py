"""The running mean of the weights: its definition, on every path of the CPU, and that it resumes to the bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.conftest import random_tokens, small_model
from whet.config import TrainConfig
from whet.data.tokens.batches import BatchOrder
from whet.engine.average import Average, update_gap
from whet.engine.dispatch import choose_path
from whet.engine.losses import Loss
from whet.engine.network import TokenBatches
from whet.engine.stepper import Stepper
from whet.errors import ArtifactError
from whet.task import Task
from whet.utils.device import Hardware

PATHS = pytest.mark.parametrize("width, path", [(48, "packed"), (64, "fused")])


class Training:
    """A small model on random rows whose average is kept."""

    def __init__(self, width: int, path: str, decay: float = 0.8, tokens: Any = None, kind: str = "float32") -> None:
        hardware = Hardware(torch.device("cpu"), kind, "")
        config = TrainConfig(learning_rate=1e-2, batch_size=8, average=decay)
        self.tokens, loss = tokens or random_tokens(rows=40), Loss(Task("binary", ("no", "yes")))
        order = BatchOrder(rows=len(self.tokens), batch_size=8, seed=0)
        model = small_model("bert", width=width, dropout=0.1)
        self.network, self.stepper = choose_path(model, loss, config, hardware, [self.tokens], order=order)
        assert self.network.path == path
        self.feed = TokenBatches(self.tokens, order, self.network, loss)

    def steps(self, first: int, last: int) -> None:
        for step in range(first, last):
            rows = self.feed.order.at(step)
            self.stepper(step, self.feed, rows, rows, 1e-2)

    def state(self) -> dict[str, dict[str, torch.Tensor]]:
        return {group: {n: t.clone() for n, t in found.items()} for group, found in self.stepper.tensors().items()}


def logits(training: Training) -> torch.Tensor:
    training.network.model.eval()
    with torch.no_grad():
        return training.network.logits(training.network.collate(training.tokens, training.feed.order.at(0)))


def test_each_update_knows_when_the_last_one_was() -> None:
    updates = [step for step in range(1, 1000) if update_gap(step)]
    assert [update_gap(step) for step in updates] == [b - a for a, b in zip([0, *updates], updates, strict=False)]
    assert updates[:33] == [*range(1, 33), 34]
    assert max(update_gap(step) for step in updates) == 8


@pytest.mark.parametrize("decay", [0.5, 0.99])
def test_the_mean_is_that_of_its_definition(decay: float) -> None:
    """Every weight counts for the decay to the number of steps since, or less where the run is short."""
    source = torch.zeros(3, dtype=torch.float64)
    average, wanted, last = Average(decay, [source], lambda means: {"w": means[0]}), torch.zeros(3), 0
    for step in range(1, 200):
        source.copy_(torch.randn(3, generator=torch.Generator().manual_seed(step)))
        average.update(step)
        if update_gap(step):
            kept = min(decay ** (step - last), (last / step) ** 9)
            wanted, last = kept * wanted + (1 - kept) * source, step
    assert torch.allclose(average.named()["w"], wanted.double(), rtol=1e-9)


def test_where_training_began_does_not_count() -> None:
    source = torch.full((2,), 1e6)
    average = Average(0.99, [source], lambda means: {"w": means[0]})
    for step in range(1, 41):
        source.fill_(float(step))
        average.update(step)
    assert 35 < float(average.named()["w"][0]) < 38  # of 40 steps about the last tenth


@PATHS
def test_every_path_averages_the_weights_that_it_trains(width: int, path: str) -> None:
    training = Training(width, path)
    wanted: dict[str, torch.Tensor] = {}
    for step in range(1, 41):
        training.steps(step - 1, step)
        now = training.state()["model"]
        if gap := update_gap(step):
            kept = min(0.8**gap, ((step - gap) / step) ** 9)
            wanted = {name: kept * wanted.get(name, now[name]) + (1 - kept) * now[name] for name in now}
    found, used = training.state()["average"], getattr(training.network, "flat", None)
    assert found.keys() == wanted.keys()
    for name, mean in found.items():
        whole = wanted[name] if len(mean) == len(wanted[name]) else wanted[name][torch.from_numpy(used.used)]
        assert torch.allclose(mean, whole, atol=1e-6), name
    assert any(not torch.equal(mean, now[name]) for name, mean in found.items() if len(mean) == len(now[name]))


@PATHS
def test_going_on_from_a_checkpoint_gives_the_same_bits(width: int, path: str) -> None:
    whole, begun, resumed = (Training(width, path) for _ in range(3))
    whole.steps(0, 45)
    begun.steps(0, 33)  # between two updates
    resumed.steps(0, 2)
    resumed.stepper.load(begun.state())
    resumed.steps(33, 45)
    one, other = whole.state(), resumed.state()
    assert [name for name in one["average"] if not torch.equal(one["average"][name], other["average"][name])] == []


@pytest.mark.parametrize(
    "width, path, kind", [(48, "packed", "float32"), (64, "fused", "float32"), (64, "fused", "bf16")]
)
def test_the_averaged_model_answers_in_between_and_leaves_no_trace(width: int, path: str, kind: str) -> None:
    training = Training(width, path, kind=kind)
    training.steps(0, 20)
    before, answers = training.state(), logits(training)
    with training.stepper.averaged():
        averaged, inside = logits(training), training.state()
    assert not torch.allclose(averaged, answers)
    after = training.state()
    for group, found in before.items():
        assert [name for name, tensor in found.items() if not torch.equal(tensor, after[group][name])] == []
    assert torch.equal(logits(training), answers)
    training.stepper.load({"model": inside["model"]})
    assert torch.equal(logits(training), averaged)


def test_a_checkpoint_without_a_mean_begins_one() -> None:
    training = Training(48, "packed")
    training.steps(0, 40)
    saved = training.state()
    training.stepper.load({name: saved[name] for name in ("model", "optimizer")})
    training.steps(40, 42)
    found = training.state()
    assert all(torch.equal(mean, found["model"][name]) for name, mean in found["average"].items())


def test_rows_of_the_vocabulary_that_are_new_keep_their_own_weights() -> None:
    before, now = Training(64, "fused"), Training(64, "fused", tokens=random_tokens(rows=40, seed=5))
    before.steps(0, 20)
    now.stepper.load(before.state())
    flat, mean = now.network.flat, now.state()["average"][now.network.flat.word]  # type: ignore[attr-defined]
    new = torch.tensor([word not in before.network.flat.used for word in flat.used])  # type: ignore[attr-defined]
    assert new.any()
    assert torch.equal(mean[new], flat.matrices.current(flat.word)[new])
    assert not torch.equal(mean[~new], flat.matrices.current(flat.word)[~new])


def test_another_model_is_refused() -> None:
    stepper: Stepper = Training(48, "packed").stepper
    saved = stepper.tensors()
    saved["average"] = {name: tensor for name, tensor in saved["average"].items() if "pooler" not in name}
    with pytest.raises(ArtifactError, match=r"differ in the averaged weights of 'bert\.pooler"):
        stepper.load(saved)


def test_a_mean_of_another_shape_is_refused() -> None:
    average = Average(0.9, [torch.zeros(3)], lambda means: {"w": means[0]})
    for saved in ({"w": torch.ones(1)}, {"w": torch.ones(3), "v": torch.ones(1)}):
        with pytest.raises(ArtifactError, match=r"'w' has shape|'v'"):
            average.load(saved)
    assert average.named()["w"].tolist() == [0, 0, 0]
