"""Methods that a subclass overrides, and callbacks, have the same effect in both Trainers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.huggingface.parity import EVERY_TWO, FUSED, Use, compare

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


def overriding(**methods: Callable[[type], Any]) -> Callable[[type], type]:
    """A subclass whose methods are made with its base at hand."""
    return lambda base: type("Mine", (base,), {name: make(base) for name, make in methods.items()})


def twice(base: type) -> Any:
    def compute_loss(self: Any, model: Any, inputs: Any, return_outputs: bool = False, **others: Any) -> Any:
        outputs = model(**inputs)
        return (2 * outputs["loss"], outputs) if return_outputs else 2 * outputs["loss"]

    return compute_loss


def passing(name: str) -> Callable[[type], Any]:
    """A method that does what its base does, and is yet another one."""

    def make(base: Any) -> Any:
        return lambda self, *given, **named: getattr(base, name)(self, *given, **named)

    return make


def with_sgd(base: type) -> Any:
    def create_optimizer(self: Any, model: Any = None) -> Any:
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        return self.optimizer

    return create_optimizer


def with_both(base: type) -> Any:
    def create_optimizer_and_scheduler(self: Any, num_training_steps: int) -> None:
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-3, weight_decay=0.0)
        self.lr_scheduler = transformers.get_linear_schedule_with_warmup(self.optimizer, 1, num_training_steps)

    return create_optimizer_and_scheduler


def doubled(base: Any) -> Any:
    def prediction_step(self: Any, *given: Any, **named: Any) -> Any:
        loss, logits, labels = base.prediction_step(self, *given, **named)
        return loss, None if logits is None else 2 * logits, labels

    return prediction_step


def falling(base: type) -> Any:
    def create_scheduler(self: Any, num_training_steps: int, optimizer: Any = None) -> Any:
        self.lr_scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer or self.optimizer, 0.5)
        return self.lr_scheduler

    return create_scheduler


def with_constant(base: Any) -> Any:
    return lambda self, logs, *others, **named: base.log(self, {**logs, "mine": 1.0}, *others, **named)


def drawn(base: type) -> Any:
    """With rows that are drawn more than once."""
    return lambda self, dataset=None: torch.utils.data.WeightedRandomSampler([1.0 + row for row in range(14)], 14)


def sequential(base: type) -> Any:
    return lambda self, dataset=None: torch.utils.data.SequentialSampler(dataset or self.train_dataset)


METHODS: dict[str, tuple[str, Callable[[type], Any]]] = {
    "compute_loss": ("stock (compute_loss is overridden)", twice),
    "training_step": ("stock (training_step is overridden)", passing("training_step")),
    "get_train_dataloader": ("stock (get_train_dataloader is overridden)", passing("get_train_dataloader")),
    "get_batch_samples": ("stock (get_batch_samples is overridden)", passing("get_batch_samples")),
    "_prepare_inputs": ("stock (_prepare_inputs is overridden)", passing("_prepare_inputs")),
    "floating_point_ops": ("stock (floating_point_ops is overridden)", passing("floating_point_ops")),
    "create_optimizer": ("stock (the optimizer is SGD)", with_sgd),
    "create_scheduler": (FUSED, falling),
    "create_optimizer_and_scheduler": (FUSED, with_both),
    "prediction_step, doubled": (FUSED, doubled),
    "prediction_step": (FUSED, passing("prediction_step")),
    "evaluation_loop": (FUSED, passing("evaluation_loop")),
    "get_eval_dataloader": (FUSED, passing("get_eval_dataloader")),
    "evaluate": (FUSED, passing("evaluate")),
    "log": (FUSED, with_constant),
    "save_model": (FUSED, passing("save_model")),
    "_save_checkpoint": (FUSED, passing("_save_checkpoint")),
    "_get_train_sampler": (FUSED, sequential),
    "_get_train_sampler, weighted": (FUSED, drawn),
}


@pytest.mark.parametrize("name", list(METHODS))
def test_an_overridden_method_is_called_as_in_the_library(name: str, tmp_path: Path) -> None:
    path, make = METHODS[name]
    compare(Use(path, EVERY_TWO, kind=overriding(**{name.partition(",")[0]: make})), tmp_path)


class At(transformers.TrainerCallback):
    """Does something at the end of one step."""

    def __init__(self, step: int, act: Callable[[Any, Any], Any]) -> None:
        self.step, self.act = step, act

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **others: Any) -> None:
        if state.global_step == self.step:
            self.act(control, model)


class SeesGradients(transformers.TrainerCallback):
    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **others: Any) -> None:
        assert all(parameter.grad is not None for parameter in model.parameters())


class AtSubstep(transformers.TrainerCallback):
    def on_substep_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        control.should_training_stop = state.global_step == 2


class Halves(transformers.TrainerCallback):
    """Changes weights in place, in memory that no version counter sees."""

    def on_log(self, args: Any, state: Any, control: Any, model: Any = None, **others: Any) -> None:
        for parameter in model.parameters():
            parameter.data *= 0.5


class Reads(transformers.TrainerCallback):
    """Notes what a callback can see, also of the optimizer's state."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        model, optimizer = others["model"], others["optimizer"]
        moments = [float(each["exp_avg"].abs().sum()) for each in optimizer.state.values()]
        self.seen.append([sum(moments), optimizer.param_groups[0]["lr"], model.training, sorted(others)])

    def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        counts = {float(each["step"]) for each in others["optimizer"].state.values()}
        self.seen.append([counts, others["lr_scheduler"].get_last_lr(), len(others["train_dataloader"])])

    def on_evaluate(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        others["metrics"]["eval_mine"] = 3.0


class ReadsSeldom(Reads):
    on_step_end = transformers.TrainerCallback.on_step_end


def asking(name: str) -> Callable[[Any, Any], Any]:
    return lambda control, model: setattr(control, name, True)


def scale(control: Any, model: Any) -> None:
    model.classifier.weight.data *= 2


def freeze(control: Any, model: Any) -> None:
    model.classifier.bias.requires_grad_(False)


def put_hook(control: Any, model: Any) -> None:
    model.classifier.register_forward_hook(lambda *_: None)


CALLBACKS: dict[str, tuple[str, Callable[[], Any]]] = {
    "stop": (FUSED, lambda: At(2, asking("should_training_stop"))),
    "end the epoch": (FUSED, lambda: At(2, asking("should_epoch_stop"))),
    "save": (FUSED, lambda: At(3, asking("should_save"))),
    "evaluate": (FUSED, lambda: At(3, asking("should_evaluate"))),
    "log": (FUSED, lambda: At(1, asking("should_log"))),
    "stop within a step": ("stock (AtSubstep acts within a step", AtSubstep),
    "change weights after a step": (FUSED, lambda: At(2, scale)),
    "change weights at a log": (FUSED, Halves),
    "look at gradients": ("stock (SeesGradients acts within a step", SeesGradients),
    "put a hook": ("fused from step 0, then stock (the model has hooks) from step 2", lambda: At(2, put_hook)),
    "freeze a weight": ("fused from step 0, then stock (weights were frozen", lambda: At(2, freeze)),
    "early stopping": (FUSED, lambda: transformers.EarlyStoppingCallback(1)),
}


@pytest.mark.parametrize("name", list(CALLBACKS))
def test_a_callback_has_the_same_effect(name: str, tmp_path: Path) -> None:
    path, make = CALLBACKS[name]
    args = {**EVERY_TWO, "metric_for_best_model": "loss", "logging_steps": 2}
    args |= {"gradient_accumulation_steps": 2} if name == "stop within a step" else {}
    compare(Use(path, args, lambda: {"callbacks": [make()]}), tmp_path)


@pytest.mark.parametrize("kind", [Reads, ReadsSeldom])
def test_a_callback_sees_the_same(kind: type[Reads], tmp_path: Path) -> None:
    def seen(trainer: Any) -> Any:
        return next(each.seen for each in trainer.callback_handler.callbacks if isinstance(each, Reads))

    args = {**EVERY_TWO, "max_steps": -1, "num_train_epochs": 2}
    compare(Use(FUSED, args, lambda: {"callbacks": [kind()]}, after=seen), tmp_path)


@pytest.mark.parametrize("order", ["group_by_length", "sequential"])
def test_the_librarys_loop_goes_on_in_the_middle_of_an_epoch_in_the_same_order(order: str, tmp_path: Path) -> None:
    path = "fused from step 0, then stock (the model has hooks) from step 5"
    args = {"train_sampling_strategy": order, "max_steps": 8}
    compare(Use(path, args, lambda: {"callbacks": [At(5, put_hook)]}), tmp_path)
