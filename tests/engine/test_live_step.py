"""TrainStep on the fused path: step by step the plain loop, also where its owner does something in between."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import FAMILIES, small_model
from tests.engine.own_loop import Both, make_batches, on_the_left, optimizer_and_schedule
from whet import AdamW, TrainStep, get_scheduler
from whet.engine.fused import live
from whet.engine.losses import Loss
from whet.engine.optimizer import parameter_groups


def model_of(family: str = "bert", **others: Any) -> Any:
    return small_model(family, width=64, **others)


def decaying_matrices(model: Any) -> Any:
    optimizer = AdamW(parameter_groups(model, 0.1), lr=1e-3)
    return optimizer, get_scheduler("cosine", optimizer=optimizer, num_warmup_steps=1, num_training_steps=6)


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "decay everywhere": lambda model: optimizer_and_schedule(model, weight_decay=0.1),
    "no decay": lambda model: optimizer_and_schedule(model, weight_decay=0.0),
    "decay of matrices": decaying_matrices,
    "other betas": lambda model: optimizer_and_schedule(model, betas=(0.8, 0.95), eps=1e-6),
    "torch's fused": lambda model: optimizer_and_schedule(model, fused=True),
}


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_every_step_is_the_plain_loops(name: str) -> None:
    both = Both(model_of(), clip=0.5, make=OPTIMIZERS[name])
    for batch in make_batches(4):
        both.take(batch)


@pytest.mark.parametrize("kind", ["multilabel", "regression"])
def test_other_labels(kind: str) -> None:
    both = Both(model_of(labels=1 if kind == "regression" else 2), clip=0.0 if kind == "regression" else 1.0)
    both.plain.clip = both.plain.clip or float("inf")
    for batch in make_batches(2, kind=kind):
        both.take(batch)
    assert both.step.model.config.problem_type == both.plain.model.config.problem_type


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in ("bert", "modernbert")])
def test_every_fused_family(family: str) -> None:
    both = Both(model_of(family))
    for batch in make_batches(2):
        types = {"token_type_ids": torch.zeros_like(batch["token_type_ids"])}
        plain = {name: value for name, value in batch.items() if name != "token_type_ids"}
        both.take({**plain, **types} if family == "electra" else plain)


def test_a_group_of_unequal_batches() -> None:
    first, second, third = make_batches(3)
    both = Both(model_of(), accumulate=2)
    both.take(first, {name: value[:1] for name, value in second.items()})
    both.take(third)


def test_a_batch_that_is_not_plain_in_the_middle_of_a_group() -> None:
    first, second, third = make_batches(3)
    both = Both(model_of(), accumulate=2)
    both.take(first, on_the_left(second), path="plain (the batch is padded on the left")
    both.take(on_the_left(third), first, path="packed")
    both.take(second, third)


def load_state(loop: Any) -> None:
    """As when a checkpoint is loaded: tensors of its own, and of another number of steps."""
    state = copy.deepcopy(loop.optimizer.state_dict())
    for each in state["state"].values():
        each["exp_avg"].mul_(0.5)
        each["step"].add_(7)
    loop.optimizer.load_state_dict(state)


def take_plain_step(loop: Any) -> None:
    loop.model(**make_batches(1)[0]).loss.backward()
    loop.optimizer.step()
    loop.optimizer.zero_grad()


def evaluate(loop: Any) -> None:
    loop.model.eval()
    with torch.no_grad():
        loop.seen = loop.model(**make_batches(1)[0]).logits


BETWEEN: dict[str, Callable[[Any], Any]] = {
    "set the rate": lambda loop: [group.update(lr=5e-3) for group in loop.optimizer.param_groups],
    "evaluate": evaluate,
    "zero gradients": lambda loop: loop.optimizer.zero_grad(),
    "load the optimizer": load_state,
    "forget the optimizer's state": lambda loop: loop.optimizer.state.clear(),
    "take a step by hand": take_plain_step,
    "load weights": lambda loop: loop.model.load_state_dict(
        {name: value * 0.9 if value.is_floating_point() else value for name, value in loop.model.state_dict().items()}
    ),
    "write into weights": lambda loop: [parameter.data.mul_(0.9) for parameter in loop.model.parameters()],
}


@pytest.mark.parametrize("name", list(BETWEEN))
def test_what_is_done_between_two_steps_counts(name: str) -> None:
    first, second, third = make_batches(3)
    both = Both(model_of())
    both.take(first)
    both.do(BETWEEN[name])
    if name == "evaluate":
        torch.testing.assert_close(both.step.seen, both.plain.seen, rtol=1e-4, atol=1e-5)  # type: ignore[attr-defined]
    both.take(second)
    both.take(third)


def put_hook(loop: Any) -> None:
    loop.model.bert.register_forward_hook(lambda *_: None)


def freeze(loop: Any) -> None:
    loop.model.bert.embeddings.requires_grad_(False)


def replace_head(loop: Any) -> None:
    torch.manual_seed(1)
    loop.model.classifier = torch.nn.Linear(64, 2)
    loop.optimizer.add_param_group({"params": loop.model.classifier.parameters(), "lr": 1e-3})
    loop.schedule.base_lrs.append(1e-3)
    loop.schedule.lr_lambdas.append(loop.schedule.lr_lambdas[0])


def double_loss(loop: Any) -> None:
    loop.model.classifier.bias.register_hook(lambda gradient: 2 * gradient)


def half_rate(loop: Any) -> None:
    loop.optimizer.param_groups[0]["weight_decay"] = 0.5


LEAVING: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a hook": (put_hook, "plain (the model has hooks)"),
    "a hook on a parameter": (double_loss, "plain (a parameter has a hook)"),
    "frozen weights": (freeze, "packed (weights were frozen"),
    "another head": (replace_head, "packed (a part of the model was replaced"),
    "another decay": (half_rate, "packed (the optimizer's settings have changed"),
    "dropout by hand": (lambda loop: setattr(loop.model.bert.embeddings.dropout, "p", 1e-9), "plain (the model drops"),
}


@pytest.mark.parametrize("name", list(LEAVING))
def test_what_the_fused_step_does_not_follow_is_left_to_autograd(name: str) -> None:
    first, second, third = make_batches(3)
    both = Both(model_of())
    both.take(first)
    act, path = LEAVING[name]
    both.do(act)
    both.plain.model.zero_grad()
    both.take(second, path=path)
    both.take(third, path=path)


def test_a_gradient_that_is_there_already_is_added() -> None:
    both = Both(model_of())
    first, second = make_batches(2)
    both.do(lambda loop: loop.model.train()(**first).loss.backward())
    both.take(second, path="packed")
    both.take(first)


def test_a_part_in_evaluation_mode_stays_so() -> None:
    both = Both(model_of())
    both.do(lambda loop: loop.model.train().bert.eval())
    both.step(make_batches(1)[0])
    assert both.step.path.startswith("packed")
    assert not both.step.model.bert.training


@pytest.mark.parametrize("wrapped", ["before", "after"])
def test_accelerate(wrapped: str) -> None:
    from accelerate import Accelerator

    def make(model: Any) -> Any:
        accelerator = Accelerator(cpu=True)
        optimizer = AdamW(model.parameters(), lr=1e-3)
        if wrapped == "before":
            _, optimizer = accelerator.prepare(model, optimizer)
        schedule = get_scheduler("linear", optimizer=optimizer, num_warmup_steps=0, num_training_steps=6)
        return accelerator.prepare(optimizer, schedule) if wrapped == "after" else (optimizer, schedule)

    both = Both(model_of(), make=make)
    for batch in make_batches(3):
        both.take(batch)


@pytest.mark.parametrize("where", ["backward", "update"])
def test_a_step_that_was_broken_off_leaves_nothing_behind(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = make_batches(3)
    both = Both(model_of(), accumulate=2)
    place: tuple[Any, str] = (live, "norm_of_gradients") if where == "update" else (Loss, "total")

    def broken(*given: Any) -> Any:
        raise KeyboardInterrupt

    both.step(first)
    with monkeypatch.context() as patched:
        patched.setattr(*place, broken)
        with pytest.raises(KeyboardInterrupt):
            both.step(second)
    assert all(parameter.grad is None for parameter in both.step.model.parameters())
    both.take(second, third)


def test_dropout_is_a_function_of_the_seed_and_the_number_of_updates() -> None:
    losses = []
    for _ in range(2):
        model = model_of(dropout=0.3)
        torch.manual_seed(5)
        step = TrainStep(model, *optimizer_and_schedule(model), precision="float32")
        losses.append([float(step(batch)) for batch in make_batches(3)])
        assert step.path == "fused"
    assert losses[0] == losses[1]
    assert len({*losses[0]}) == 3


@pytest.mark.filterwarnings("ignore:TrainStep. bf16 was asked for")
def test_bf16_sees_weights_that_were_changed_by_hand() -> None:
    batch, model = make_batches(1)[0], model_of()
    step = TrainStep(model, *optimizer_and_schedule(model), precision="bf16")
    model.classifier.weight.data.mul_(50)  # so that what the encoder gives is seen in the loss
    before = float(step(batch))
    torch.manual_seed(0)
    for parameter in model.bert.encoder.parameters():
        parameter.data.normal_(std=0.3)
    with torch.no_grad():
        expected = float(model(**batch).loss)
    assert abs(expected - before) > 0.2
    assert float(step(batch)) == pytest.approx(expected, abs=0.02)
    assert step.path == "fused"


def test_weights_and_moments_can_be_saved(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    model = model_of()
    step = TrainStep(model, *optimizer_and_schedule(model), precision="float32")
    step(make_batches(1)[0])
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    torch.save(step.optimizer.state_dict(), tmp_path / "optimizer.pt")
    assert all(
        torch.equal(value, model.state_dict()[name])
        for name, value in load_file(tmp_path / "model.safetensors").items()
    )
    loaded = torch.load(tmp_path / "optimizer.pt")["state"]
    assert all(float(state["step"]) == 1.0 for state in loaded.values())


def test_a_loss_that_is_not_finite_is_the_plain_loops() -> None:
    both = Both(model_of())
    both.do(lambda loop: loop.model.classifier.weight.data.fill_(torch.inf))
    batch = make_batches(1)[0]
    assert not torch.isfinite(both.step(batch))
    both.plain(batch)
    assert both.step.path == "fused"
    for name, value in both.plain.model.state_dict().items():
        assert torch.equal(torch.isnan(value), torch.isnan(both.step.model.state_dict()[name])), name


@pytest.mark.parametrize("change", [lambda labels: labels.requires_grad_(), lambda labels: labels.bfloat16()])
def test_labels_that_are_not_plain_numbers(change: Any) -> None:
    batch = make_batches(1, kind="multilabel")[0]
    both = Both(model_of())
    both.take({**batch, "labels": change(batch["labels"])}, path="plain (the batch has tensors")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"labels": torch.tensor([0, 1, -100, 1])}, "the labels"),
        ({"labels": torch.tensor([[0], [1], [0], [1]])}, "the labels"),
        ({"token_type_ids": torch.ones(4, 1, dtype=torch.int64)}, "the inputs of the batch differ in shape"),
        ({"position_ids": torch.arange(1)}, "the batch has"),
    ],
)
def test_odd_batches_are_computed_by_the_model_itself(change: dict[str, Any], why: str) -> None:
    batch = {**make_batches(1)[0], **change}
    width = batch["input_ids"].shape[1]
    if "position_ids" in batch:
        batch["position_ids"] = torch.arange(width).flip(0).expand(4, width)
    if "token_type_ids" in change:
        batch["token_type_ids"] = batch["token_type_ids"].expand(4, width)[:1]
    both = Both(model_of())
    both.take(batch, path=f"plain ({why}")
    both.take(make_batches(1)[0])
