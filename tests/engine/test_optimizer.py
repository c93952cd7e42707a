"""The optimizer is AdamW with the numbers that were asked for, in each of its forms."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.conftest import small_model
from whet.config import TrainConfig
from whet.engine.fused.cpu import adamw
from whet.engine.fused.cpu.adamw import AdamW, corrections, update_on_cpu
from whet.engine.fused.parameters import Group
from whet.engine.optimizer import learning_rate, make_adamw, warmup_steps

NUMBERS: dict[str, Any] = {"beta1": 0.7, "beta2": 0.95, "epsilon": 1e-3, "weight_decay": 0.1}
RATE = 0.01


def by_hand(weight: torch.Tensor, gradients: list[torch.Tensor], decay: float) -> torch.Tensor:
    """Decoupled weight decay as Loshchilov and Hutter wrote it down, in float64."""
    beta1, beta2, epsilon = (NUMBERS[name] for name in ("beta1", "beta2", "epsilon"))
    weight, first, second = weight.double(), torch.zeros_like(weight).double(), torch.zeros_like(weight).double()
    for step, gradient in enumerate(gradients, start=1):
        first = beta1 * first + (1 - beta1) * gradient.double()
        second = beta2 * second + (1 - beta2) * gradient.double() ** 2
        weight = weight * (1 - RATE * decay)
        weight = weight - RATE * (first / (1 - beta1**step)) / ((second / (1 - beta2**step)).sqrt() + epsilon)
    return weight.float()


def test_the_general_optimizer_is_adamw_with_the_settings_numbers() -> None:
    model = torch.nn.Linear(4, 3)
    optimizer = make_adamw(model, TrainConfig(learning_rate=RATE, **NUMBERS))
    before = {name: each.detach().clone() for name, each in model.named_parameters()}
    gradients = {name: [torch.randn_like(each) for _ in range(3)] for name, each in before.items()}
    for number in range(3):
        for name, parameter in model.named_parameters():
            parameter.grad = gradients[name][number].clone()
        optimizer.step()
    for name, parameter in model.named_parameters():
        decay = 0.0 if name == "bias" else NUMBERS["weight_decay"]
        torch.testing.assert_close(parameter.detach(), by_hand(before[name], gradients[name], decay))


class OneGroup:
    """As much of a flat model as the update looks at: one group of which a part decays."""

    def __init__(self, compute: torch.dtype) -> None:
        self.matrices = Group(torch.device("cpu"), compute, torch.float32)
        self.matrices.add("weight", torch.Size([96]))
        self.matrices.decays_until, self.matrices.computes_until = 50, 64
        self.matrices.allocate(training=True)
        self.matrices.master.copy_(torch.linspace(-1, 1, self.matrices.size))

    def groups(self) -> list[Group]:
        return [self.matrices]


@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_the_update_on_flat_buffers_is_the_same_rule(scale: float) -> None:
    flat: Any = OneGroup(torch.bfloat16)
    group, rule = flat.matrices, AdamW.of(TrainConfig(**NUMBERS))
    before, gradients = group.master.clone(), [torch.randn(group.size) for _ in range(3)]
    for step, gradient in enumerate(gradients, start=1):
        group.gradient.copy_(gradient / scale)
        update_on_cpu(flat, rule, step, RATE, scale)
    decaying = by_hand(before, gradients, NUMBERS["weight_decay"])
    expected = torch.cat([decaying[:50], by_hand(before, gradients, 0.0)[50:]])
    torch.testing.assert_close(group.master, expected)
    assert torch.equal(group.compute, group.master[:64].bfloat16())


@pytest.mark.parametrize(("idle", "norm"), [(range(0), 13.0), (range(64, 96), 5.0), (range(65, 96), 13.0)])
def test_the_norm_is_that_of_all_gradients_but_idle_ones(
    idle: range, norm: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adamw, "CHUNK", 32)
    flat: Any = OneGroup(torch.float32)
    flat.matrices.gradient[[0, 63, 95]] = torch.tensor([3.0, 4.0, 12.0])
    assert float(adamw.norm_of_gradients(flat, idle)) == pytest.approx(norm)


def test_corrections_are_those_of_the_two_moments() -> None:
    rule = AdamW.of(TrainConfig(**NUMBERS))
    assert corrections(rule, 2) == pytest.approx((1 / (1 - 0.7**2), (1 - 0.95**2) ** -0.5))


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant"])
def test_the_rate_is_that_of_transformers(schedule: str) -> None:
    from transformers import get_scheduler

    config = TrainConfig(learning_rate=0.5, schedule=schedule, warmup=0.25)  # type: ignore[arg-type]
    rate, optimizer = learning_rate(config, 10), torch.optim.SGD(small_model().parameters(), lr=0.5)
    name = "constant_with_warmup" if schedule == "constant" else schedule
    scheduler = get_scheduler(name, optimizer, num_warmup_steps=warmup_steps(0.25, 10), num_training_steps=10)
    for step in range(10):
        assert rate(step) == pytest.approx(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize("warmup, steps", [(0.0, 0), (0.21, 3), (1, 1), (7, 7)])
def test_a_warmup_below_one_is_a_share_rounded_up(warmup: float, steps: int) -> None:
    assert warmup_steps(warmup, 10) == steps
