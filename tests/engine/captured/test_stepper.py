"""Captured steps compute the plain step. A graph is stood in for: a replay runs the captured work once more."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import in_windows, random_tokens, small_model
from tests.engine.captured.replaying import Replaying
from whet.config import TrainConfig
from whet.data.tokens.batches import BatchOrder
from whet.engine.captured.batches import Rectangle
from whet.engine.captured.network import CapturedNetwork, why_not_captured
from whet.engine.captured.stepper import CapturedStepper
from whet.engine.dispatch import _loss_of
from whet.engine.losses import Loss
from whet.engine.network import Network, TokenBatches
from whet.engine.optimizer import make_adamw
from whet.engine.stepper import Stepper
from whet.models.pretrained import without_dropout
from whet.task import Task
from whet.utils.device import Hardware

CPU = torch.device("cpu")
HARDWARE = Hardware(CPU, "float32", "")
TASKS = {
    "binary": Task("binary", ("no", "yes")),
    "multiclass": Task("multiclass", ("a", "b", "c")),
    "multilabel": Task("multilabel", ("x", "y")),
    "regression": Task("regression", ()),
}


class Training:
    """Steps of a small model on random rows by the plain or the captured stepper."""

    def __init__(
        self,
        captured: bool,
        *,
        kind: str = "binary",
        family: str = "bert",
        micro_rows: int = 8,
        contrastive: float = 0.0,
        windows: bool = False,
        decay: float = 0.0,
        refuses: str = "",
        dropout: float = 0.0,
        **settings: Any,
    ) -> None:
        config = TrainConfig(batch_size=8, learning_rate=1e-3, weight_decay=decay, **settings)
        task, tokens = TASKS[kind], random_tokens(rows=28, kind=kind, types=family == "bert")
        if windows:
            tokens = in_windows(tokens, [1, 2, 1, 3, 1, 2] * 2 + [8])
        loss = Loss(task, contrastive=contrastive)
        model = small_model(family, labels=task.outputs, dropout=dropout)
        if not dropout:
            without_dropout(model)
        optimizer = make_adamw(model, config)
        self.recorder = Replaying(refuses)
        if captured:
            self.network: Network = CapturedNetwork(model, CPU, "")
            self.stepper: Stepper = CapturedStepper(
                self.network,  # type: ignore[arg-type]
                _loss_of(self.network, loss),
                config,
                HARDWARE,
                optimizer,
                form=Rectangle(model.config),
                recorder=self.recorder,
            )
        else:
            self.network = Network(model, CPU, packed=False)
            self.stepper = Stepper(
                model=model,
                loss_of=_loss_of(self.network, loss),
                optimizer=optimizer,
                hardware=HARDWARE,
                clip=config.clip,
                seed=config.seed,
                micro_rows=8,
            )
        self.stepper.micro_rows = micro_rows
        self.feed = TokenBatches(tokens, BatchOrder(rows=len(tokens), batch_size=8, seed=1), self.network, loss)

    def losses(self, first: int = 0, last: int = 9) -> list[float]:
        found = []
        for step in range(first, last):
            rows = self.feed.order.at(step)
            self.stepper(step, self.feed, rows, rows, 1e-3 * (1 - step / 20))
            found.append(float(self.stepper.window.loss))
            self.stepper.window.clear()
        return found

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: each.detach().clone() for name, each in self.network.model.named_parameters()}


def assert_equal_trainings(one: Training, other: Training) -> None:
    np.testing.assert_allclose(one.losses(), other.losses(), rtol=2e-4, atol=1e-6)
    assert float(one.stepper.window.grad_norm) == pytest.approx(float(other.stepper.window.grad_norm), rel=1e-3)
    after, expected = one.weights(), other.weights()
    for name in expected:
        torch.testing.assert_close(after[name], expected[name], rtol=1e-3, atol=2e-5, msg=name)


@pytest.mark.parametrize("kind", list(TASKS))
def test_steps_are_those_of_the_plain_path_for_every_task(kind: str) -> None:
    assert_equal_trainings(Training(True, kind=kind), Training(False, kind=kind))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("family", ["albert", "modernbert", "deberta-v2", "mpnet"])
def test_steps_are_those_of_the_plain_path_for_other_families(family: str) -> None:
    assert_equal_trainings(Training(True, family=family), Training(False, family=family))


@pytest.mark.parametrize("settings", [{"clip": 0.0}, {"clip": 0.01}, {"decay": 0.1}, {"contrastive": 0.5}])
def test_steps_are_those_of_the_plain_path_with_other_settings(settings: dict[str, Any]) -> None:
    assert_equal_trainings(Training(True, **settings), Training(False, **settings))


def test_windows_share_the_weight_of_their_text() -> None:
    assert_equal_trainings(Training(True, windows=True), Training(False, windows=True))


@pytest.mark.parametrize("micro_rows", [3, 5])
def test_micro_batches_add_up_to_the_step(micro_rows: int) -> None:
    assert_equal_trainings(Training(True, micro_rows=micro_rows), Training(False))


def test_preparing_and_measuring_change_nothing() -> None:
    one, other = Training(True), Training(True)
    rows = one.feed.order.at(0)
    one.stepper.prepare(one.feed, rows)
    one.stepper.forward_backward(one.feed, rows[:3])
    assert one.losses() == other.losses()


def test_each_shape_is_captured_once() -> None:
    training = Training(True)
    training.losses()
    captures = training.recorder.captures
    training.losses(9, 18)
    assert captures == training.recorder.captures == len(training.stepper.batches)  # type: ignore[attr-defined]


def test_a_failed_capture_leaves_every_step_to_the_plain_path() -> None:
    training = Training(True, refuses="a number is read back")
    assert_equal_trainings(training, Training(False))
    assert training.network.path == "padded"
    assert training.network.why == "its steps are not captured: a number is read back"


def test_a_loaded_checkpoint_continues_with_the_same_bits() -> None:
    whole, begun, resumed = (Training(True, dropout=0.1, average=0.9) for _ in range(3))
    whole.stepper.keep_average(0.9), begun.stepper.keep_average(0.9), resumed.stepper.keep_average(0.9)
    whole.losses()
    begun.losses(0, 4)
    saved = {group: {n: t.clone() for n, t in tensors.items()} for group, tensors in begun.stepper.tensors().items()}
    resumed.losses(0, 2)  # graphs of before the load are not used again
    resumed.stepper.load(saved)
    resumed.losses(4, 9)
    for group, tensors in whole.stepper.tensors().items():
        for name, expected in tensors.items():
            assert torch.equal(resumed.stepper.tensors()[group][name], expected), name


def test_graphs_are_captured_anew_in_a_pool_of_their_own_after_a_load() -> None:
    training = Training(True)
    training.stepper.forward_backward(training.feed, training.feed.order.at(0))
    training.stepper.load(training.stepper.tensors())
    forgotten = training.recorder.forgotten
    training.losses(0, 2)
    assert forgotten > 0
    assert training.recorder.captures > 1


def test_layers_that_are_left_out_by_chance_are_not_captured() -> None:
    model = small_model()
    assert why_not_captured(model) == ""
    model.config.layerdrop = 0.1
    assert why_not_captured(model) == "whole layers are left out by chance, which the host draws"


def test_a_loss_that_is_not_finite_changes_no_weight() -> None:
    training = Training(True)
    training.losses(0, 1)
    with torch.no_grad():
        training.network.model.classifier.bias.fill_(float("nan"))
    before = training.weights()
    training.losses(1, 3)
    assert int(training.stepper.window.first_nonfinite_step) == 1
    assert all(torch.equal(each, before[name]) for name, each in training.weights().items() if "bias" not in name)


def test_two_processes_take_the_step_of_one() -> None:
    """Each computes its half of the rows; the sum stands between the replays."""
    alone, ranks = Training(True), [Training(True) for _ in range(2)]
    rows = alone.feed.order.at(0)
    alone.stepper(0, alone.feed, rows, rows, 1e-3)
    kept: list[list[torch.Tensor]] = []
    for turn in ("collect", "add"):
        for rank, training in enumerate(ranks):
            other = 1 - rank

            def summed(tensors: Any, turn: str = turn, other: int = other) -> None:
                if turn == "collect":
                    kept.append([each.clone() for each in tensors])
                else:
                    for own, foreign in zip(tensors, kept[other], strict=True):
                        own.add_(foreign)

            training.stepper.synchronized = summed
            share = rows[: len(rows) // 2] if rank == 0 else rows[len(rows) // 2 :]
            if turn == "add":
                training = ranks[rank] = Training(True)
                training.stepper.synchronized = summed
            training.stepper(0, training.feed, rows, share, 1e-3)
    for training in ranks:
        assert float(training.stepper.window.loss) == pytest.approx(float(alone.stepper.window.loss), rel=1e-5)
        for name, expected in alone.weights().items():
            torch.testing.assert_close(training.weights()[name], expected, rtol=1e-3, atol=2e-5, msg=name)


def test_a_process_that_cannot_capture_makes_the_same_sums() -> None:
    """The others wait for its gradients and its loss in one call."""
    captured, launched = Training(True), Training(True, refuses="a number is read back")
    for training in (captured, launched):
        training.stepper.synchronized = lambda tensors: None
    assert captured.losses() == launched.losses()
    assert launched.network.path == "captured"


def test_a_process_without_rows_takes_the_step_too() -> None:
    training = Training(True)
    sums: list[int] = []
    training.stepper.synchronized = lambda tensors: sums.append(len(tensors))
    rows = training.feed.order.at(0)
    training.stepper(0, training.feed, rows, rows[:0], 1e-3)
    assert sums == [2]  # the gradients and the loss
    assert training.stepper.window.steps == 1
