"""TrainStep in a loop of one's own: the plain loop's training, exactly. `test_live_step.py` has the fused path."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from tests.conftest import FAMILIES, RELATIVE, small_model
from tests.engine.own_loop import PlainLoop, assert_same, make_batches, on_the_left, optimizer_and_schedule
from tests.huggingface.made import weights
from whet import TrainStep
from whet.errors import UsageError


def plain_loop(model: Any, groups: list[list[dict[str, torch.Tensor]]], clip: float) -> list[float]:
    loop = PlainLoop(model, *optimizer_and_schedule(model), clip)
    return [loss for group in groups for loss in loop(*group)]


@pytest.mark.parametrize("kind", ["binary", "multilabel", "regression"])
def test_a_step_is_the_plain_loops_step(kind: str) -> None:
    labels = 1 if kind == "regression" else 2
    batches, model = make_batches(kind=kind), small_model(labels=labels)
    other = copy.deepcopy(model)
    expected = plain_loop(other, [[batch] for batch in batches], clip=0.1)
    step = TrainStep(model, *optimizer_and_schedule(model), clip=0.1, precision="float32")
    assert [float(step(batch)) for batch in batches] == pytest.approx(expected, rel=1e-5)
    assert_same(model, other)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # importing DeBERTa
@pytest.mark.parametrize("family", [*(family for family in FAMILIES if family != "bert"), *RELATIVE])
def test_every_family_learns_the_same(family: str) -> None:
    model = small_model(family)
    other, batches = copy.deepcopy(model), make_batches(2)
    if family in ("distilbert", "modernbert"):
        batches = [{name: each for name, each in batch.items() if name != "token_type_ids"} for batch in batches]
    if family == "roberta":
        batches = [{**batch, "token_type_ids": torch.zeros_like(batch["token_type_ids"])} for batch in batches]
    expected = plain_loop(other, [[batch] for batch in batches], clip=1.0)
    step = TrainStep(model, *optimizer_and_schedule(model), precision="float32")
    assert [float(step(batch)) for batch in batches] == pytest.approx(expected, rel=1e-5)
    assert step.path.startswith(("fused", "packed"))
    assert model.config.problem_type == other.config.problem_type


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # importing DeBERTa
def test_what_deberta_takes_for_shares_of_classes_is_left_to_it() -> None:
    batches, model = make_batches(2, kind="multilabel"), small_model("deberta-v2")
    other = copy.deepcopy(model)
    expected = plain_loop(other, [[batch] for batch in batches], clip=1.0)
    step = TrainStep(model, *optimizer_and_schedule(model), precision="float32")
    assert [float(step(batch)) for batch in batches] == pytest.approx(expected, rel=1e-5)
    assert step.path == "plain (the labels are not of the model's kind)"


def test_accumulation_is_the_mean_over_all_rows_even_of_unequal_batches() -> None:
    first, second, third = make_batches(3)
    short = {name: value[:1] for name, value in second.items()}
    model = small_model()
    other = copy.deepcopy(model)
    expected = plain_loop(other, [[first, short], [third]], clip=1.0)
    step = TrainStep(model, *optimizer_and_schedule(model), accumulate=2, precision="float32")
    losses = [float(step(first)), float(step(short)), float(step(third))]
    step.flush()
    assert losses == pytest.approx(expected, rel=1e-5)
    assert_same(model, other)


def test_nothing_moves_before_a_group_is_full() -> None:
    model = small_model()
    before, schedule = weights(model), optimizer_and_schedule(model)
    step = TrainStep(model, *schedule, accumulate=2, precision="float32")
    batch = make_batches(1)[0]
    step(batch)
    assert all(torch.equal(before[name], tensor) for name, tensor in weights(model).items())
    step(batch)
    assert not torch.equal(before["classifier.weight"], weights(model)["classifier.weight"])
    assert schedule[1].get_last_lr()[0] == pytest.approx(1e-3 * 5 / 6)


def test_the_loss_is_detached_and_gradients_are_gone() -> None:
    model = small_model()
    step = TrainStep(model, *optimizer_and_schedule(model), precision="float32")
    loss = step(make_batches(1)[0])
    assert not loss.requires_grad
    assert loss.dim() == 0
    assert all(parameter.grad is None for parameter in model.parameters())
    assert float(step.grad_norm) > 0


def test_padding_on_the_left_is_computed_by_the_model_itself() -> None:
    model = small_model()
    other = copy.deepcopy(model)
    batch = on_the_left(make_batches(1)[0])
    expected = plain_loop(other, [[batch]], clip=1.0)
    step = TrainStep(model, *optimizer_and_schedule(model), precision="float32")
    assert [float(step(batch))] == pytest.approx(expected, rel=1e-6)


def test_a_model_of_ones_own_gives_its_own_loss() -> None:
    class Mine(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            out = self.layer(x)[:, 0]
            return ((out - labels) ** 2).mean(), out

    model = Mine()
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), precision="float32")
    batch = {"x": torch.ones(4, 3), "labels": torch.ones(4)}
    losses = [float(step(batch)) for _ in range(5)]
    assert losses[-1] < losses[0]


def test_a_batch_without_labels_is_refused() -> None:
    model = small_model()
    step = TrainStep(model, *optimizer_and_schedule(model), precision="float32")
    batch = make_batches(1)[0]
    del batch["labels"]
    with pytest.raises(UsageError, match="labels"):
        step(batch)


@pytest.mark.parametrize("extra", [["a", "b", "c"], torch.tensor(0.5)])
def test_what_has_no_rows_does_not_count_them(extra: Any) -> None:
    class Constant(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.value = torch.nn.Parameter(torch.zeros(()))

        def forward(self, extra: Any, labels: torch.Tensor) -> tuple[torch.Tensor]:
            return ((self.value - labels).square().mean(),)

    model = Constant()
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.5), accumulate=2, clip=0, precision="float32")
    for labels in (torch.full((4,), 1.0), torch.full((1,), 6.0)):
        step({"extra": extra, "labels": labels})
    assert model.value.item() == pytest.approx(2.0)  # the mean of all five
