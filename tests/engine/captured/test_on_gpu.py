"""Captured steps of library models on a GPU: the plain training, and the same bits every time."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import random_tokens, small_model
from whet import TrainStep
from whet.config import make_config
from whet.data.tokens.batches import BatchOrder, pad
from whet.engine.dispatch import choose_path
from whet.engine.losses import Loss
from whet.engine.network import Network, TokenBatches
from whet.engine.stepper import Stepper
from whet.models.pretrained import without_dropout
from whet.task import Task
from whet.utils.device import choose_hardware

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning"),
]
FAMILIES = ("albert", "modernbert", "deberta-v2", "mpnet", "eurobert", "qwen3")
STEPS = 24


class Training:
    """Steps of a small model on random rows, with the loss of each."""

    def __init__(
        self,
        family: str,
        *,
        precision: str = "bf16",
        plain: bool = False,
        dropout: bool = False,
        rows: int = 8,
        contrastive: float = 0.0,
    ) -> None:
        config = make_config({"batch_size": 8, "device": "cuda", "precision": precision}).train
        tokens, loss = random_tokens(90, types=False), Loss(Task("binary", ("no", "yes")), None, 0.0, contrastive)
        model = small_model(family, width=64, layers=3)
        if not dropout:
            without_dropout(model)
        hardware = choose_hardware("cuda", precision)
        self.network, self.stepper = choose_path(model, loss, config, hardware, [tokens])
        if plain:
            self.network = Network(model, hardware.device, packed=False)
            self.stepper = Stepper(
                model=model,
                loss_of=self.stepper.loss_of,
                optimizer=self.stepper.optimizer,
                hardware=hardware,
                clip=config.clip,
                seed=config.seed,
                micro_rows=8,
            )
        self.stepper.micro_rows = rows
        order = BatchOrder(rows=len(tokens), batch_size=8, seed=1)
        self.feed = TokenBatches(tokens, order, self.network, loss)

    def losses(self, first: int = 0, last: int = STEPS) -> list[float]:
        found = []
        for step in range(first, last):
            rows = self.feed.order.at(step)
            self.stepper(step, self.feed, rows, rows, 1e-3)
            found.append(float(self.stepper.window.loss))
            self.stepper.window.clear()
        return found

    def state(self) -> dict[str, Any]:
        return {
            f"{group} {name}": tensor.detach().cpu().clone()
            for group, tensors in self.stepper.tensors().items()
            for name, tensor in tensors.items()
        }


def assert_same_bits(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


@pytest.mark.parametrize("precision", ["bf16", "float32"])
@pytest.mark.parametrize("family", FAMILIES)
def test_captured_steps_have_the_losses_of_plain_ones(family: str, precision: str) -> None:
    captured, plain = Training(family, precision=precision), Training(family, precision=precision, plain=True)
    found = captured.losses()
    assert captured.network.path == "captured", captured.network.why
    np.testing.assert_allclose(found, plain.losses(), atol=0.03 if precision == "bf16" else 1e-3)


def test_a_family_of_fused_layers_is_captured_in_float32() -> None:
    captured, plain = Training("bert", precision="float32"), Training("bert", precision="float32", plain=True)
    np.testing.assert_allclose(captured.losses(), plain.losses(), atol=1e-4)
    assert captured.network.path == "captured"


@pytest.mark.parametrize("rows", [8, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_twice_the_same_training_gives_the_same_bits(family: str, rows: int) -> None:
    one, other = (Training(family, dropout=True, rows=rows, contrastive=0.5) for _ in range(2))
    assert one.losses() == other.losses()
    assert_same_bits(one.state(), other.state())


@pytest.mark.parametrize("family", FAMILIES)
def test_going_on_from_a_checkpoint_gives_the_same_bits(family: str) -> None:
    whole, begun, resumed = (Training(family, dropout=True) for _ in range(3))
    whole.losses()
    begun.losses(0, 10)
    saved = begun.stepper.tensors()
    resumed.stepper.load({group: {n: t.cpu() for n, t in tensors.items()} for group, tensors in saved.items()})
    resumed.losses(10, STEPS)
    assert_same_bits(whole.state(), resumed.state())


def test_graphs_are_captured_again_after_a_load() -> None:
    whole, again = Training("albert", dropout=True), Training("albert", dropout=True)
    whole.losses()
    rows = again.feed.order.at(0)
    saved = {group: {n: t.clone() for n, t in tensors.items()} for group, tensors in again.stepper.tensors().items()}
    again.stepper.forward_backward(again.feed, rows)
    again.losses(0, 5)
    again.stepper.load(saved)
    again.losses()
    assert again.network.path == "captured", again.network.why
    assert_same_bits(whole.state(), again.state())


def test_a_failed_capture_leaves_the_allocator_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training("albert")
    encoder = training.network.model.base_model.encoder
    before = encoder.forward

    def reading(hidden: Any, *given: Any, **named: Any) -> Any:
        hidden.detach().sum().item()
        return before(hidden, *given, **named)

    monkeypatch.setattr(encoder, "forward", reading)
    training.losses(0, 3)
    assert training.network.path == "padded"
    large = torch.zeros(1 << 28, device="cuda")
    del large
    reserved = torch.cuda.memory_reserved()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= reserved - (1 << 30)


def test_dropout_differs_from_step_to_step() -> None:
    training = Training("albert", dropout=True)
    rows = training.feed.order.at(0)
    found = []
    for step in range(3):
        training.stepper(step, training.feed, rows, rows, 0.0)
        found.append(float(training.stepper.window.loss))
        training.stepper.window.clear()
    assert len(set(found)) == 3


def test_a_model_that_reads_a_number_back_is_trained_by_the_plain_step(monkeypatch: pytest.MonkeyPatch) -> None:
    training, plain = Training("albert"), Training("albert", plain=True)
    encoder = training.network.model.base_model.encoder
    before = encoder.forward

    def reading(hidden: Any, *given: Any, **named: Any) -> Any:
        assert float(hidden.detach().abs().sum()) > 0
        return before(hidden, *given, **named)

    monkeypatch.setattr(encoder, "forward", reading)
    np.testing.assert_allclose(training.losses(), plain.losses(), atol=0.03)
    assert training.network.path == "padded"
    assert "its steps are not captured" in training.network.why


class Loops:
    """The loop of the course in float32, and the same with `TrainStep`, on copies of one model."""

    def __init__(self, family: str, **settings: Any) -> None:
        self.models = [without_dropout(small_model(family, width=64, layers=3)).cuda().train() for _ in range(2)]
        self.optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-3, **settings) for model in self.models]
        self.step = TrainStep(self.models[1], self.optimizers[1])
        self.tokens = random_tokens(90, types=False)

    def take(self, number: int, where: str = "cpu") -> tuple[float, float]:
        arrays = pad(self.tokens, np.arange(8) + 8 * (number % 10), pad_id=self.models[0].config.pad_token_id or 0)
        batch = {name: torch.from_numpy(np.array(array)).to(where) for name, array in arrays.items()}
        loss = self.models[0](**{name: value.cuda() for name, value in batch.items()}).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.models[0].parameters(), 1.0)
        self.optimizers[0].step()
        self.optimizers[0].zero_grad()
        return float(loss), float(self.step(batch))


@pytest.mark.parametrize("where", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("family", "path"), [("bert", "fused"), ("deberta-v2", "captured"), ("modernbert", "captured")]
)
def test_a_loop_of_ones_own_has_the_losses_of_the_plain_loop(family: str, path: str, where: str) -> None:
    loops = Loops(family)
    losses = np.array([loops.take(number, where) for number in range(30)])
    np.testing.assert_allclose(losses[:, 1], losses[:, 0], atol=0.05)
    assert loops.step.path.split(" ")[0] == path, loops.step.path
    assert {float(state["step"]) for state in loops.optimizers[1].state.values()} == {30.0}


def test_the_users_hand_on_a_fused_loop_counts() -> None:
    loops = Loops("bert", weight_decay=0.3)
    for number in range(10):
        loops.take(number)
    for model, optimizer in zip(loops.models, loops.optimizers, strict=True):
        optimizer.param_groups[0]["lr"] = 3e-4
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        model.classifier.bias.data.add_(0.5)
    losses = np.array([loops.take(number) for number in range(10, 30)])
    np.testing.assert_allclose(losses[:, 1], losses[:, 0], atol=0.05)
    plain, fused = (dict(model.named_parameters()) for model in loops.models)
    for name in ("classifier.bias", "bert.pooler.dense.bias", "bert.encoder.layer.0.output.LayerNorm.weight"):
        torch.testing.assert_close(fused[name], plain[name], atol=5e-3, rtol=0.02, msg=name)
    assert loops.step.path == "fused"


def test_larger_batches_than_the_first_are_fused_too() -> None:
    loops = Loops("bert")
    loops.take(0)
    arrays = pad(loops.tokens, np.arange(24), pad_id=0)
    loops.step({name: torch.from_numpy(np.array(array)) for name, array in arrays.items()})
    assert loops.step.path == "fused"
    assert {float(state["step"]) for state in loops.optimizers[1].state.values()} == {2.0}
