"""A loop of one's own with captured steps is the plain loop, whatever its user does in between."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from tests.conftest import small_model
from tests.engine.captured.replaying import Replaying
from tests.engine.own_loop import Batch, PlainLoop, make_batches, optimizer_and_schedule
from whet import TrainStep
from whet.engine.captured import graphed_step
from whet.models.pretrained import without_dropout


@pytest.fixture(autouse=True)
def _captures_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphed_step, "Recorder", lambda device: Replaying())
    monkeypatch.setattr(TrainStep, "_choose", TrainStep._choose_on_cuda)


class Loops:
    """The plain loop and the captured one, on copies of one model."""

    def __init__(self, *, accumulate: int = 1, model: Any = None, **settings: Any) -> None:
        plain = without_dropout(model or small_model())
        model = copy.deepcopy(plain)
        self.plain = PlainLoop(plain, *optimizer_and_schedule(plain, **settings))
        self.step = TrainStep(
            model, *optimizer_and_schedule(model, **settings), accumulate=accumulate, precision="float32"
        )
        self.paths: list[str] = []

    def take(self, *group: Batch) -> None:
        expected = self.plain(*group)
        for batch, loss in zip(group, expected, strict=True):
            assert float(self.step(batch)) == pytest.approx(loss, rel=1e-4)
            self.paths.append(self.step.path.split(" ")[0])
        self.check()

    def check(self) -> None:
        assert float(self.step.grad_norm) == pytest.approx(float(self.plain.grad_norm), rel=1e-3)  # type: ignore[arg-type]
        expected = dict(self.plain.model.named_parameters())
        for name, each in self.step.model.named_parameters():
            torch.testing.assert_close(each, expected[name], rtol=1e-3, atol=2e-5, msg=name)
        states = zip(self.plain.optimizer.state.values(), self.step.optimizer.state.values(), strict=True)
        assert all(torch.equal(one["step"], other["step"]) for one, other in states)
        assert self.step.scheduler.get_last_lr() == self.plain.schedule.get_last_lr()


def alike(count: int) -> list[Batch]:
    """Batches whose lengths fall into one bucket."""
    return [{n: v[:, :9] if v.dim() == 2 else v for n, v in batch.items()} for batch in make_batches(count)]


def test_steps_are_those_of_the_plain_loop() -> None:
    loops = Loops(weight_decay=0.1)
    for batch in alike(5):
        loops.take(batch)
    assert loops.paths == ["plain", *["captured"] * 4]


def test_rows_of_other_lengths_share_a_graph() -> None:
    loops = Loops()
    for width, batch in zip((9, 7, 8, 5), alike(4), strict=True):
        loops.take({name: value[:, :width] if value.dim() == 2 else value for name, value in batch.items()})
    assert loops.paths == ["plain", *["captured"] * 3]


def test_accumulation_is_the_mean_over_all_rows_even_of_unequal_batches() -> None:
    loops, batches = Loops(accumulate=2), alike(8)
    for first, second in zip(batches[::2], batches[1::2], strict=True):
        loops.take({name: value[:3] for name, value in first.items()}, second)
    # The second group begins captured; its second batch has no graph yet, so autograd goes on with the group.
    assert loops.paths == ["plain", "plain", "captured", "plain", "captured", "plain", "captured", "captured"]


def test_a_group_that_begins_captured_may_end_plain() -> None:
    loops, batches = Loops(accumulate=2), alike(6)
    loops.take(batches[0], batches[1])
    loops.take(batches[2], {name: value[:1] for name, value in batches[3].items()})
    assert loops.paths[2:] == ["captured", "plain"]


def test_the_users_hand_on_optimizer_and_model_counts() -> None:
    loops, batches = Loops(), alike(7)
    for batch in batches[:3]:
        loops.take(batch)
    for loop in (loops.plain, loops.step):
        for group in loop.optimizer.param_groups:
            group["lr"] = 5e-4
        with torch.no_grad():
            loop.model.classifier.weight.mul_(0.5)
        state = copy.deepcopy(loop.optimizer.state_dict())
        loop.optimizer.load_state_dict(state)
    for batch in batches[3:5]:
        loops.take(batch)
    for loop in (loops.plain, loops.step):
        for parameter in loop.model.bert.embeddings.parameters():
            parameter.requires_grad = False
    for batch in batches[5:]:
        loss = loops.plain(batch)
        assert float(loops.step(batch)) == pytest.approx(loss[0], rel=1e-4)


def test_evaluating_in_between_changes_nothing() -> None:
    loops, batches = Loops(), alike(4)
    for batch in batches:
        loops.step.model.eval()
        with torch.no_grad():
            loops.step.model(**batch)
        loops.take(batch)
    assert loops.paths[-1] == "captured"


def test_steps_of_torchs_own_optimizer_in_between_are_counted() -> None:
    loops, batches = Loops(), alike(5)
    for batch in batches[:3]:
        loops.take(batch)
    own = PlainLoop(loops.step.model, loops.step.optimizer, loops.step.scheduler)
    own(batches[3])
    loops.plain(batches[3])
    loops.take(batches[4])


def test_a_hook_leaves_the_batch_to_the_model() -> None:
    loops, batches = Loops(), alike(3)
    loops.take(batches[0])
    seen: list[int] = []
    loops.step.model.classifier.register_forward_hook(lambda *_: seen.append(1) and None)
    loops.take(batches[1])
    loops.take(batches[2])
    assert (loops.step.path, seen) == ("plain (the model has hooks)", [1, 1])


def test_a_batch_with_other_inputs_is_computed_by_the_model() -> None:
    loops, batches = Loops(), alike(3)
    for batch in batches[:2]:
        loops.take(batch)
    loops.take({**batches[2], "position_ids": torch.arange(9)[None]})
    assert loops.paths[1:] == ["captured", "plain"]


@pytest.mark.parametrize("family", ["modernbert", "albert"])
def test_other_families_are_captured_too(family: str) -> None:
    loops = Loops(model=small_model(family))
    for batch in alike(3):
        loops.take({name: value for name, value in batch.items() if name != "token_type_ids"})
    assert loops.paths == ["plain", "captured", "captured"]


def test_a_model_with_adapters_is_captured_and_its_base_stays() -> None:
    peft = pytest.importorskip("peft")
    settings = peft.LoraConfig(task_type="SEQ_CLS", r=4, lora_dropout=0.0, target_modules=["query", "value"])
    model = peft.get_peft_model(small_model(), settings)
    before = {name: each.clone() for name, each in model.named_parameters() if not each.requires_grad}
    loops = Loops(model=model)
    for batch in alike(4):
        loops.take(batch)
    assert loops.paths == ["plain", *["captured"] * 3]
    after = dict(loops.step.model.named_parameters())
    assert all(torch.equal(after[name], each) for name, each in before.items())


def test_memory_that_runs_out_in_a_capture_leaves_the_shape_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    loops, batches = Loops(), alike(4)
    loops.take(batches[0])
    monkeypatch.setattr(Replaying, "capture", out_of_memory)
    for batch in batches[1:]:
        loops.take(batch)
    assert loops.paths == ["plain"] * 4


def out_of_memory(*_: Any) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory")


def test_a_failed_capture_in_a_group_loses_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    loops, batches = Loops(accumulate=2), alike(8)
    for first, second in zip(batches[::2], batches[1::2], strict=True):
        if first is batches[4]:
            monkeypatch.setattr(Replaying, "capture", out_of_memory)
        loops.take({name: value[:3] for name, value in first.items()}, second)


def test_another_limit_for_the_norm_counts_at_once() -> None:
    loops, batches = Loops(), alike(4)
    for batch in batches[:3]:
        loops.take(batch)
    loops.plain.clip = loops.step.clip = 1e-3
    loops.take(batches[3])
    assert loops.paths[-1] == "captured"


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_labels_below_zero_are_left_out_as_debertas_own_loss_does() -> None:
    loops = Loops(model=small_model("deberta-v2"))
    for number, batch in enumerate(alike(4)):
        labels = batch["labels"].clone()
        labels[number % 2] = -1
        loops.take({"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"], "labels": labels})
    assert loops.paths == ["plain", *["captured"] * 3]


def test_a_rate_of_dropout_that_is_changed_is_noticed() -> None:
    loops, batches = Loops(model=small_model("modernbert")), alike(4)
    for batch in batches[:2]:
        loops.take({name: value for name, value in batch.items() if name != "token_type_ids"})
    layer = loops.step.model.model.layers[0].attn
    name = next(name for name in vars(layer) if "drop" in name and isinstance(vars(layer)[name], float))
    setattr(layer, name, 0.9)
    loops.step({name: value for name, value in batches[2].items() if name != "token_type_ids"})
    assert loops.step.path == "plain (the first batch of its shape)"
