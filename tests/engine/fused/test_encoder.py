"""The hand-written encoder computes the library's model: same logits, same gradients, same training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import random_tokens, small_model
from whet.config import TrainConfig
from whet.data.tokens.batches import BatchOrder, pack
from whet.engine import dispatch as paths
from whet.engine.dispatch import choose_path
from whet.engine.fused.cpu import adamw
from whet.engine.fused.cpu import layers as cpu_layers
from whet.engine.fused.network import FusedNetwork
from whet.engine.fused.stepper import FusedStepper
from whet.engine.losses import Loss
from whet.engine.network import Network, TokenBatches
from whet.engine.optimizer import make_adamw
from whet.engine.stepper import Stepper
from whet.task import Task
from whet.utils.device import Hardware

CPU = torch.device("cpu")
FLOAT32 = Hardware(CPU, "float32", "")
ROWS = np.arange(6)
FAMILIES = ("bert", "roberta", "distilbert", "electra")
TASK = Task("binary", ("no", "yes"))


def tokens_for(family: str, rows: int = 6) -> Any:
    return random_tokens(rows=rows, types=family in ("bert", "electra"))


def used_ids(tokens: Any) -> Any:
    return np.unique(tokens.ids)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_those_of_the_library(family: str) -> None:
    tokens = tokens_for(family)
    model = small_model(family, width=64).eval()
    general = Network(model, CPU)
    expected = general.logits(general.collate(tokens, ROWS))
    fused = FusedNetwork(small_model(family, width=64).eval(), FLOAT32, used_ids(tokens), decay=False, seed=0)
    torch.testing.assert_close(fused.logits(fused.collate(tokens, ROWS)), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_equal_those_of_the_library(family: str) -> None:
    tokens = tokens_for(family)
    general = Network(small_model(family, width=64).train(), CPU)
    general.logits(general.collate(tokens, ROWS)).square().sum().backward()
    fused = FusedNetwork(small_model(family, width=64).train(), FLOAT32, used_ids(tokens), decay=False, seed=0)
    fused.logits(fused.collate(tokens, ROWS)).square().sum().backward()
    for name, parameter in general.model.named_parameters():
        group = fused.flat._group(name)
        ours = group.view(group.gradient, name)
        expected = parameter.grad if name != fused.flat.word else parameter.grad[fused.flat.used]
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-6, msg=lambda text, name=name: f"{name} {text}")


def train(kind: str, steps: int = 12, **settings: Any) -> tuple[Any, list[float]]:
    tokens = tokens_for("bert", rows=20)
    config = TrainConfig(learning_rate=1e-3, batch_size=8, **settings)
    model, loss = small_model("bert", width=64), Loss(TASK)
    if kind == "fused":
        network: Any = FusedNetwork(model, FLOAT32, used_ids(tokens), decay=config.weight_decay > 0, seed=0)
        stepper: Any = FusedStepper(network, lambda b: loss.total(network.logits(b), b.labels), config, FLOAT32)
    else:
        network = Network(model, CPU)
        stepper = Stepper(
            model=model,
            loss_of=lambda b: loss.total(network.logits(b), b.labels),
            optimizer=make_adamw(model, config),
            hardware=FLOAT32,
            clip=config.clip,
            seed=0,
            micro_rows=config.batch_size,
        )
    stepper.micro_rows = config.batch_size // config.accumulate
    feed = TokenBatches(tokens, BatchOrder(rows=20, batch_size=8, seed=0), network, loss)
    losses = []
    for step in range(steps):
        rows = feed.order.at(step)
        stepper(step, feed, rows, rows, config.learning_rate)
        losses.append(float(stepper.window.loss))
        stepper.window.clear()
    return stepper.tensors()["model"], losses


@pytest.mark.parametrize("settings", [{}, {"weight_decay": 0.1}, {"clip": 0.05}, {"clip": 0.0}, {"accumulate": 4}])
def test_training_equals_the_general_path(settings: dict[str, Any]) -> None:
    expected, expected_losses = train("general", **settings)
    weights, losses = train("fused", **settings)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-4)
    for name in expected:
        torch.testing.assert_close(weights[name], expected[name], rtol=2e-3, atol=2e-5, msg=name)


def test_words_that_training_has_not_met_cost_nothing_and_stay_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    def trained(order: BatchOrder | None) -> tuple[dict[str, torch.Tensor], Any, int]:
        tokens, loss = tokens_for("bert", rows=20), Loss(TASK)
        config = TrainConfig(learning_rate=1e-3, batch_size=2, clip=0.0)
        model = small_model("bert", width=64)
        network, stepper = choose_path(model, loss, config, FLOAT32, [tokens], order=order)
        assert isinstance(network, FusedNetwork)
        feed, updated = TokenBatches(tokens, BatchOrder(rows=20, batch_size=2, seed=0), network, loss), 0

        def counted(*lists: Any, **named: Any) -> None:
            nonlocal updated
            updated += lists[0][0].numel()
            update(*lists, **named)

        monkeypatch.setattr(torch, "_fused_adamw_", counted)
        for step in range(4):
            rows = feed.order.at(step)
            stepper(step, feed, rows, rows, 1e-3)
        return stepper.tensors()["model"], network, updated

    update = torch._fused_adamw_
    monkeypatch.setattr(adamw, "CHUNK", 256)
    expected, _, all_elements = trained(None)
    weights, network, updated = trained(BatchOrder(rows=20, batch_size=2, seed=0))
    assert network.words_seen < len(network.flat.used)
    assert updated < all_elements
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


def test_ids_stand_in_the_order_in_which_training_meets_them() -> None:
    tokens, order = tokens_for("bert", rows=20), BatchOrder(rows=20, batch_size=2, seed=0)
    ids = paths.used_ids([tokens], 400, order)
    assert sorted(ids) == sorted(set(tokens.ids.tolist()))
    first = [int(token) for index in range(3) for token in pack(tokens, order.batch(0, index)).input_ids]
    assert ids[: len(set(first))].tolist() == list(dict.fromkeys(first))


def test_training_with_dropout_repeats_itself_to_the_bit() -> None:
    def once() -> dict[str, torch.Tensor]:
        tokens, loss = tokens_for("bert", rows=8), Loss(TASK)
        network = FusedNetwork(small_model("bert", width=64, dropout=0.1), FLOAT32, None, decay=False, seed=3)
        stepper = FusedStepper(network, lambda b: loss.total(network.logits(b), b.labels), TrainConfig(), FLOAT32)
        feed = TokenBatches(tokens, BatchOrder(rows=8, batch_size=8, seed=0), network, loss)
        for step in range(3):
            stepper(step, feed, np.arange(8), np.arange(8), 1e-3)
        return {name: tensor.clone() for name, tensor in stepper.tensors()["model"].items()}

    first, second = once(), once()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("rate", [0.1, 0.25, 0.001, 0.9])
def test_dropout_drops_the_asked_share(rate: float) -> None:
    from whet.engine.fused.cpu.layers import CpuLayerOps

    pieces = CpuLayerOps(0)
    pieces.start(True)
    mask = pieces._mask(torch.Size((2000, 2000)), rate, torch.float32)
    assert mask is not None
    error = 4 * (rate * (1 - rate) / mask.numel()) ** 0.5
    assert float((mask == 0).double().mean()) == pytest.approx(rate, abs=error + 0.5 / 65536)
    assert float(mask.double().mean()) == pytest.approx(1.0, abs=2 * error / (1 - rate))


def test_every_dropout_of_every_step_drops_others() -> None:
    from whet.engine.fused.cpu.layers import CpuLayerOps

    pieces, drawn = CpuLayerOps(0), []
    for pieces.step, pieces.micro in ((0, 0), (0, 1), (1, 0), (0, 0)):
        pieces.start(True)
        drawn += [pieces._mask(torch.Size((500,)), 0.5, torch.bfloat16) for _ in range(2)]
    *first, again, and_again = (tuple(mask.tolist()) for mask in drawn if mask is not None)
    assert len(set(first)) == 6
    assert (again, and_again) == (first[0], first[1])


def with_dropout(of_attention: bool) -> Any:
    """Dropout of this kind alone and none in the head, and weights so large that attention matters."""
    model = small_model("bert", width=64)
    setattr(model.config, "attention_probs_dropout_prob" if of_attention else "hidden_dropout_prob", 0.3)
    for name, module in model.named_modules():
        if name != "dropout" and isinstance(module, torch.nn.Dropout) and ("attention.self" in name) == of_attention:
            module.p = 0.3
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight *= 6 if weight.dim() == 2 and "embedding" not in name else 1
    return model.train()


@pytest.mark.parametrize("of_attention", [False, True])
def test_dropout_moves_the_answers_as_far_as_that_of_the_library(of_attention: bool) -> None:
    """A rate of 0.27 in the place of 0.3 is noticed."""
    tokens, passes, copies = random_tokens(rows=6, longest=8), 30, 50
    torch.manual_seed(0)
    networks = (
        Network(with_dropout(of_attention), CPU),
        FusedNetwork(with_dropout(of_attention), FLOAT32, used_ids(tokens), decay=False, seed=0),
    )
    means, spreads = [], []
    for network in networks:
        batch, found = network.collate(tokens, np.tile(ROWS, copies)), []
        for step in range(passes):
            if isinstance(network, FusedNetwork):
                network.pieces.step = step
            found.append(network.logits(batch).detach().double().diff(dim=1).view(copies, len(ROWS)))
        answers = torch.cat(found)
        means.append(answers.mean(0))
        spreads.append(answers.std(0))
    assert float((spreads[1] / spreads[0]).mean()) == pytest.approx(1.0, abs=0.03)
    surprise = (means[1] - means[0]) / ((spreads[0] ** 2 + spreads[1] ** 2) / len(answers)) ** 0.5
    assert float(surprise.square().mean()) < 3


@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_gradients_through_dropout_are_those_of_autograd(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, factors = tokens_for(family), torch.randn(6, 64, generator=torch.Generator().manual_seed(0))
    model = small_model(family, width=64, dropout=0.3).train()
    fused = FusedNetwork(model, FLOAT32, used_ids(tokens), decay=False, seed=0)
    inputs, encoder, flat = fused._inputs(fused.collate(tokens, ROWS)), fused.encoder, fused.flat
    with torch.no_grad():
        flat.matrices.master *= 3  # so large that attention matters
    (encoder.first_hidden(inputs, training=True)[:, 0] * factors).sum().backward()
    for group in flat.groups():
        group.master.requires_grad_()
    flat.layers = [flat._layer(index) for index in range(len(flat.layers))]
    # The same forward pass as torch sees it; writing into a given tensor is all that autograd cannot follow.
    monkeypatch.setattr(cpu_layers, "off_grid", lambda grid, layout, count: padded(grid[layout.slots], count))
    (encoder._forward(inputs, []) * factors).sum().backward()
    for group in flat.groups():
        for name in (name for name in group.places if name.startswith(flat.prefix) and "pooler" not in name):
            ours, expected = group.view(group.gradient, name), group.view(group.master.grad, name)
            torch.testing.assert_close(
                ours, expected, rtol=1e-3, atol=1e-4, msg=lambda text, name=name: f"{name} {text}"
            )


def padded(tokens: torch.Tensor, count: int) -> torch.Tensor:
    return torch.cat([tokens, tokens.new_zeros(count - len(tokens), tokens.shape[1])])


def test_rows_that_no_text_uses_stay_as_they_were() -> None:
    before = small_model("bert", width=64).bert.embeddings.word_embeddings.weight.detach().clone()
    weights, _ = train("fused")
    unused = np.setdiff1d(np.arange(400), used_ids(tokens_for("bert", rows=20)))
    after = weights["bert.embeddings.word_embeddings.weight"]
    assert torch.equal(after[unused], before[unused])
    assert not torch.equal(after, before)
