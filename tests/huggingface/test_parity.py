"""The same use by `transformers.Trainer` and by `whet.Trainer`: the same events, logs, weights and random numbers.

Each line of the tables is one use, with the path that whet must have taken. Losses and weights agree within 1e-5
relative, everything that is counted is equal. bf16 and dropout are in test_exactness.py.
"""

from __future__ import annotations

import copy
import functools
import gc
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import whet
from tests.conftest import small_model
from tests.huggingface.made import make_rows, padding_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")

ROWS, OTHERS = 14, 7
COMMON: dict[str, Any] = {
    "max_steps": 4,
    "per_device_train_batch_size": 4,
    "learning_rate": 1e-3,
    "logging_steps": 1,
    "save_strategy": "no",
    "use_cpu": True,
    "disable_tqdm": True,
    "report_to": "none",
}
EVERY_STEP = {"eval_strategy": "steps", "eval_steps": 1}
EVERY_TWO = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
FUSED, PACKED = "fused from step 0", "packed"


@dataclass
class Use:
    """One way to use a Trainer."""

    path: str
    """How `trainer.path` begins."""
    args: dict[str, Any] = field(default_factory=dict)
    given: Callable[[], dict[str, Any]] = dict
    """Further arguments of the constructor, made anew for each class."""
    model: Callable[[], Any] = lambda: small_model(width=64)
    kind: Callable[[type], type] = lambda base: base
    """A subclass of either class."""
    after: Callable[[Any], Any] = lambda trainer: None
    """What is done with the trained Trainer; its results are compared, too."""


@pytest.fixture(scope="module", autouse=True)
def _few_objects_to_look_at() -> Any:
    """Every training begins with a look for garbage, which takes a third of a second with all libraries loaded."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@functools.cache
def rows_of(kind: str, count: int, seed: int = 0) -> Any:
    return make_rows(count, seed=seed, kind=kind, longest=12)


def accuracy(prediction: Any) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


class Spy:
    """Every event that the handler passes on, with its step, its epoch, the control's flags and the logged names."""

    def __init__(self, handler: Any) -> None:
        self.seen: list[Any] = []
        self.call, handler.call_event = handler.call_event, self.note

    def note(self, event: str, args: Any, state: Any, control: Any, **others: Any) -> Any:
        flags = (control.should_log, control.should_evaluate, control.should_save, control.should_training_stop)
        names = tuple(others.get("logs") or others.get("metrics") or ())
        self.seen.append((event, state.global_step, state.epoch, flags, names))
        return self.call(event, args, state, control, **others)


def run(use: Use, base: type, folder: Path) -> Any:
    arguments = whet.TrainingArguments if base is whet.Trainer else transformers.TrainingArguments
    settings = {**COMMON, **use.args, **({"bf16": False, "record_run": False} if base is whet.Trainer else {})}
    given: dict[str, Any] = {"train_dataset": rows_of("binary", ROWS), "eval_dataset": rows_of("binary", OTHERS, 1)}
    given |= {"processing_class": padding_tokenizer(), **use.given()}
    if "model_init" not in given:
        given["model"] = use.model()
    if "optimizers" in given:
        given["optimizers"] = given["optimizers"](given["model"])
    trainer = use.kind(base)(args=arguments(str(folder), **settings), **given)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.spy = Spy(trainer.callback_handler)
    torch.manual_seed(11)  # the order of rows is drawn from where torch's generator stands
    trainer.output = trainer.train()
    trainer.result = use.after(trainer)
    trainer.generator = torch.get_rng_state()
    return trainer


def same(found: Any, expected: Any, place: str = "") -> None:
    """Equal, numbers within the tolerance, all the way down; timings only have to be there."""
    if isinstance(expected, dict):
        assert list(found) == list(expected), place
        for name in expected:
            if "runtime" not in name and "per_second" not in name and "preparation_time" not in name:
                same(found[name], expected[name], f"{place}.{name}")
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected), place
        for index, (one, other) in enumerate(zip(found, expected, strict=True)):
            same(one, other, f"{place}[{index}]")
    elif isinstance(expected, float | np.ndarray):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6, err_msg=place)
    elif isinstance(expected, torch.Tensor):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, msg=place)
    else:
        assert found == expected, place


def compare(use: Use, folder: Path) -> tuple[Any, Any]:
    ours, stock = (run(use, base, folder / base.__module__) for base in (whet.Trainer, transformers.Trainer))
    assert ours.path.startswith(use.path), ours.path
    assert ours.spy.seen == stock.spy.seen
    same(ours.state.log_history, stock.state.log_history, "log_history")
    same(tuple(ours.output), tuple(stock.output), "output")
    same(ours.result, stock.result, "result")
    for name in ("global_step", "max_steps", "best_global_step", "num_input_tokens_seen", "total_flos", "best_metric"):
        same(getattr(ours.state, name), getattr(stock.state, name), name)
    expected = stock.model.state_dict()
    for name, tensor in ours.model.state_dict().items():
        if not name.endswith(("key.bias", "k_lin.bias")):  # no output depends on it: its gradient is rounding alone
            same(tensor, expected[name], name)
    assert torch.equal(ours.generator, stock.generator)
    return ours, stock


# Arguments ----------------------------------------------------------------------------------------------------------

ARGUMENTS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "num_train_epochs": {"max_steps": -1, "num_train_epochs": 1.5},
    "per_device_train_batch_size": {"per_device_train_batch_size": 5},
    "accumulation with a short group": {"gradient_accumulation_steps": 3, "per_device_train_batch_size": 2},
    "linear with warm-up": {"warmup_steps": 2},
    "warm-up as a share": {"warmup_steps": 0.5},
    "cosine": {"lr_scheduler_type": "cosine"},
    "restarts": {"lr_scheduler_type": "cosine_with_restarts", "lr_scheduler_kwargs": {"num_cycles": 2}},
    "constant": {"lr_scheduler_type": "constant"},
    "constant with warm-up": {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 2},
    "polynomial": {"lr_scheduler_type": "polynomial"},
    "inverse square root": {"lr_scheduler_type": "inverse_sqrt", "warmup_steps": 1},
    "plateau": {"lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": {"patience": 0}, **EVERY_STEP},
    "weight_decay": {"weight_decay": 0.1},
    "betas and epsilon": {"adam_beta1": 0.8, "adam_beta2": 0.95, "adam_epsilon": 1e-6},
    "optim adamw_torch": {"optim": "adamw_torch"},
    "clipping": {"max_grad_norm": 0.05},
    "no clipping": {"max_grad_norm": 0.0},
    "label smoothing": {"label_smoothing_factor": 0.2, **EVERY_TWO},
    "label smoothing, accumulated": {"label_smoothing_factor": 0.2, "gradient_accumulation_steps": 2},
    "seed": {"seed": 7},
    "data_seed": {"data_seed": 5},
    "sequential": {"train_sampling_strategy": "sequential"},
    "grouped by length": {"train_sampling_strategy": "group_by_length", "num_train_epochs": 2, "max_steps": -1},
    "dataloader_drop_last": {"dataloader_drop_last": True, **EVERY_TWO},
    "no pinned memory": {"dataloader_pin_memory": False},
    "evaluation by steps": {**EVERY_TWO, "per_device_eval_batch_size": 3},
    "evaluation by epochs": {"eval_strategy": "epoch", "save_strategy": "epoch", "logging_strategy": "epoch"},
    "eval_delay": {**EVERY_STEP, "eval_delay": 2},
    "eval_on_start": {**EVERY_TWO, "eval_on_start": True},
    "prediction_loss_only": {**EVERY_TWO, "prediction_loss_only": True},
    "eval_accumulation_steps": {**EVERY_TWO, "eval_accumulation_steps": 1},
    "best model": {**EVERY_TWO, "load_best_model_at_end": True, "save_total_limit": 1},
    "best by accuracy": {**EVERY_TWO, "metric_for_best_model": "accuracy", "load_best_model_at_end": True},
    "save the best": {"save_strategy": "best", "metric_for_best_model": "accuracy", **EVERY_STEP},
    "save_only_model": {**EVERY_TWO, "save_only_model": True},
    "logging_first_step": {"logging_steps": 3, "logging_first_step": True},
    "logging as a share": {"logging_steps": 0.5},
    "no logs": {"logging_strategy": "no"},
    "all tokens counted": {"include_num_input_tokens_seen": "all"},
    "tokens counted without padding": {"include_num_input_tokens_seen": "non_padding"},
    "auto_find_batch_size": {"auto_find_batch_size": True},
    "torch_empty_cache_steps": {"torch_empty_cache_steps": 2},
    "skip_memory_metrics": {"skip_memory_metrics": True},
}
STOCK_ARGUMENTS: dict[str, dict[str, Any]] = {
    "stock (the optimizer is Adafactor)": {"optim": "adafactor"},
    "stock (the optimizer is SGD)": {"optim": "sgd"},
    "stock (neftune_noise_alpha is 5.0)": {"neftune_noise_alpha": 5.0},
    "stock (gradient_checkpointing is True)": {"gradient_checkpointing": True},
    "stock (accelerator_config": {"accelerator_config": {"use_seedable_sampler": False}},
}


@pytest.mark.parametrize("name", list(ARGUMENTS))
def test_an_argument_means_the_same_on_the_fast_path(name: str, tmp_path: Path) -> None:
    compare(Use(FUSED, ARGUMENTS[name], lambda: {"compute_metrics": accuracy}), tmp_path)


@pytest.mark.parametrize("path", list(STOCK_ARGUMENTS))
def test_an_argument_that_changes_the_training_takes_the_librarys_loop(path: str, tmp_path: Path) -> None:
    if "gradient_checkpointing" in path and not hasattr(transformers.TrainingArguments, "gradient_checkpointing"):
        path, args = path.replace("gradient", "activation"), {"activation_checkpointing": True}
    else:
        args = STOCK_ARGUMENTS[path]
    compare(Use(path, args), tmp_path)


# Methods ------------------------------------------------------------------------------------------------------------


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


def falling(base: type) -> Any:
    def create_scheduler(self: Any, num_training_steps: int, optimizer: Any = None) -> Any:
        self.lr_scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer or self.optimizer, 0.5)
        return self.lr_scheduler

    return create_scheduler


def with_constant(base: Any) -> Any:
    return lambda self, logs, *others, **named: base.log(self, {**logs, "mine": 1.0}, *others, **named)


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
    "prediction_step": (FUSED, passing("prediction_step")),
    "evaluation_loop": (FUSED, passing("evaluation_loop")),
    "get_eval_dataloader": (FUSED, passing("get_eval_dataloader")),
    "evaluate": (FUSED, passing("evaluate")),
    "log": (FUSED, with_constant),
    "save_model": (FUSED, passing("save_model")),
    "_save_checkpoint": (FUSED, passing("_save_checkpoint")),
    "_get_train_sampler": (FUSED, sequential),
}


@pytest.mark.parametrize("name", list(METHODS))
def test_an_overridden_method_is_called_as_in_the_library(name: str, tmp_path: Path) -> None:
    path, make = METHODS[name]
    compare(Use(path, EVERY_TWO, kind=overriding(**{name: make})), tmp_path)


# Callbacks ----------------------------------------------------------------------------------------------------------


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
    "early stopping": (FUSED, lambda: transformers.EarlyStoppingCallback(1)),
}


@pytest.mark.parametrize("name", list(CALLBACKS))
def test_a_callback_has_the_same_effect(name: str, tmp_path: Path) -> None:
    path, make = CALLBACKS[name]
    args = {**EVERY_TWO, "metric_for_best_model": "loss", "logging_steps": 2}
    args |= {"gradient_accumulation_steps": 2} if name == "stop within a step" else {}
    compare(Use(path, args, lambda: {"callbacks": [make()]}), tmp_path)


# Data, models, optimizers -------------------------------------------------------------------------------------------


class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __init__(self, rows: Any) -> None:
        self.rows = [{name: row[name] for name in ("input_ids", "attention_mask", "label")} for row in rows]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


class Endless(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        yield from Rows(rows_of("binary", ROWS)).rows


class Named(torch.nn.Module):
    """A model of one's own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = torch.nn.Embedding(400, 8), torch.nn.Linear(8, 2)

    def forward(self, input_ids: Any, attention_mask: Any = None, labels: Any = None) -> dict[str, Any]:
        logits = self.head(self.embedding(input_ids).mean(dim=1))
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def as_lists() -> dict[str, Any]:
    return {"train_dataset": list(rows_of("binary", ROWS)), "eval_dataset": list(rows_of("binary", OTHERS, 1))}


def padded_rows() -> dict[str, Any]:
    def pad(row: Any) -> dict[str, Any]:
        more = 12 - len(row["input_ids"])
        return {name: row[name] + [0] * more for name in ("input_ids", "attention_mask", "token_type_ids")}

    found = {"train_dataset": rows_of("binary", ROWS), "eval_dataset": rows_of("binary", OTHERS, 1)}
    return {name: rows.map(pad) for name, rows in found.items()}


def both(change: Callable[[Any], Any], kind: str = "binary") -> Callable[[], dict[str, Any]]:
    return lambda: {"train_dataset": change(rows_of(kind, ROWS)), "eval_dataset": change(rows_of(kind, OTHERS, 1))}


def own_optimizer(model: Any) -> Any:
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)


def two_rates(model: Any) -> Any:
    groups = [{"params": model.bert.parameters()}, {"params": model.classifier.parameters(), "lr": 1e-2}]
    return torch.optim.AdamW(groups, lr=1e-3), None


def frozen() -> Any:
    model = small_model(width=64)
    model.bert.embeddings.requires_grad_(False)
    return model


def hooked() -> Any:
    model = small_model(width=64)
    model.bert.register_forward_hook(lambda *_: None)
    return model


def doubled(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    return 2 * torch.nn.functional.cross_entropy(outputs.logits, labels, reduction="sum") / num_items_in_batch


def of_family(family: str, **others: Any) -> Callable[[], Any]:
    return lambda: small_model(family, width=64, **others)


def plain(rows: Any) -> Any:
    return rows.remove_columns(["token_type_ids"])


GROUPS = {"gradient_accumulation_steps": 2, **EVERY_TWO}
THINGS: dict[str, Use] = {
    "two evaluation sets": Use(
        FUSED, EVERY_TWO, lambda: {"eval_dataset": {"a": rows_of("binary", 5, 1), "b": rows_of("binary", 4, 2)}}
    ),
    "compute_metrics": Use(FUSED, EVERY_TWO, lambda: {"compute_metrics": accuracy}),
    "preprocess_logits_for_metrics": Use(
        FUSED,
        EVERY_TWO,
        lambda: {
            "compute_metrics": lambda p: {"share": float(p.predictions.mean())},
            "preprocess_logits_for_metrics": lambda logits, labels: logits.argmax(-1),
        },
    ),
    "include_for_metrics": Use(
        FUSED,
        {**EVERY_TWO, "include_for_metrics": ["inputs", "loss"]},
        lambda: {"compute_metrics": lambda p: {"first": float(p.inputs[0, 0]), "loss_mean": float(p.losses.mean())}},
    ),
    "the column labels": Use(FUSED, EVERY_TWO, both(lambda rows: rows.rename_column("label", "labels"))),
    "no mask column": Use(FUSED, EVERY_TWO, both(lambda rows: rows.remove_columns(["attention_mask"]))),
    "torch tensors": Use(FUSED, EVERY_TWO, both(lambda rows: rows.with_format("torch"))),
    "lists of dictionaries": Use(FUSED, EVERY_TWO, as_lists),
    "rows padded before": Use(FUSED, EVERY_TWO, padded_rows),
    "default_data_collator": Use(
        FUSED, EVERY_TWO, lambda: {**padded_rows(), "data_collator": transformers.default_data_collator}
    ),
    "padding to a multiple": Use(
        FUSED,
        EVERY_TWO,
        lambda: {"data_collator": transformers.DataCollatorWithPadding(padding_tokenizer(), pad_to_multiple_of=8)},
    ),
    "padding to a length": Use(
        FUSED,
        EVERY_TWO,
        lambda: {
            "data_collator": transformers.DataCollatorWithPadding(
                padding_tokenizer(), padding="max_length", max_length=20
            )
        },
    ),
    "several labels a row": Use(
        FUSED, GROUPS, both(lambda rows: rows, "multilabel"), lambda: multi("multi_label_classification")
    ),
    "regression": Use(
        FUSED, GROUPS, both(lambda rows: rows, "regression"), functools.partial(small_model, width=64, labels=1)
    ),
    "three classes": Use(FUSED, EVERY_TWO, model=functools.partial(small_model, width=64, labels=3)),
    "own optimizer and schedule": Use(FUSED, {}, lambda: {"optimizers": own_optimizer}),
    "optimizer_cls_and_kwargs": Use(
        FUSED, {}, lambda: {"optimizer_cls_and_kwargs": (torch.optim.AdamW, {"lr": 1e-3, "betas": (0.5, 0.9)})}
    ),
    "model_init": Use(FUSED, {}, lambda: {"model_init": lambda: small_model(width=64)}),
    "a width that is not fused": Use(PACKED, GROUPS, model=small_model),
    "frozen embeddings": Use(PACKED, GROUPS, model=frozen),
    "roberta": Use(FUSED, GROUPS, both(plain), of_family("roberta")),
    "distilbert": Use(FUSED, GROUPS, both(plain), of_family("distilbert")),
    "distilbert with a column of types": Use(FUSED, {}, model=of_family("distilbert")),
    "electra": Use(FUSED, GROUPS, both(plain), of_family("electra")),
    "modernbert": Use(PACKED, GROUPS, both(plain), of_family("modernbert")),
    "rates by layer": Use("stock (the optimizer's groups differ", {}, lambda: {"optimizers": two_rates}),
    "compute_loss_func": Use("stock (compute_loss_func is given)", GROUPS, lambda: {"compute_loss_func": doubled}),
    "a hook on the model": Use("stock (the model has hooks)", EVERY_TWO, model=hooked),
    "half precision": Use("stock (weights are bfloat16)", {}, model=lambda: small_model(width=64).bfloat16()),
    "a model of one's own": Use(
        "stock (the model is a Named)",
        {"max_steps": 2},
        lambda: {"train_dataset": Rows(rows_of("binary", ROWS))},
        Named,
    ),
    "a torch data set": Use(
        "stock (the data set is a Rows)", {}, lambda: {"train_dataset": Rows(rows_of("binary", ROWS))}
    ),
    "an iterable data set": Use("stock (the loader is a", {"max_steps": 2}, lambda: {"train_dataset": Endless()}),
    "set_transform": Use(
        "stock (the data set has the format 'custom')",
        {"max_steps": 2, "remove_unused_columns": True},
        lambda: {"train_dataset": rows_of("binary", ROWS).with_transform(lambda rows: rows)},
    ),
    "an own collator": Use(
        "stock (the collator is <lambda>)",
        {},
        lambda: {"data_collator": lambda rows: transformers.DataCollatorWithPadding(padding_tokenizer())(rows)},
    ),
    "positions among the columns": Use(
        "stock (The rows hold the model input 'position_ids'",
        {},
        lambda: {
            **padded_rows(),
            "train_dataset": padded_rows()["train_dataset"].map(lambda row: {"position_ids": list(range(12))}),
        },
    ),
}


def multi(problem: str) -> Any:
    model = small_model(width=64)
    model.config.problem_type = problem
    return model


@pytest.mark.parametrize("name", list(THINGS))
def test_data_models_and_optimizers_are_taken_as_in_the_library(name: str, tmp_path: Path) -> None:
    compare(THINGS[name], tmp_path)


# Outputs ------------------------------------------------------------------------------------------------------------

OUTPUTS: dict[str, Callable[[Any], Any]] = {
    "evaluate": lambda trainer: trainer.evaluate(),
    "evaluate other rows": lambda trainer: trainer.evaluate(rows_of("binary", 5, 3), metric_key_prefix="other"),
    "predict": lambda trainer: tuple(trainer.predict(rows_of("binary", 9, 4))),
    "predict without labels": lambda trainer: (
        trainer.predict(rows_of("binary", 9, 4).remove_columns(["label"])).predictions
    ),
    "train again": lambda trainer: tuple(trainer.train())[:2],
    "a batch of training": lambda trainer: dict(next(iter(trainer.get_train_dataloader()))),
    "a batch of evaluation": lambda trainer: dict(next(iter(trainer.get_eval_dataloader()))),
    "learning rates": lambda trainer: trainer.get_learning_rates() if hasattr(trainer, "get_learning_rates") else [],
    "decaying parameters": lambda trainer: sorted(trainer.get_decay_parameter_names(trainer.model)),
    "save_model": lambda trainer: files_after(trainer, lambda: trainer.save_model()),
    "save_state": lambda trainer: files_after(trainer, trainer.save_state),
    "save_metrics": lambda trainer: files_after(trainer, lambda: trainer.save_metrics("train", {"a": 1.0})),
}


def files_after(trainer: Any, act: Callable[[], Any]) -> list[str]:
    act()
    return sorted(path.name for path in Path(trainer.args.output_dir).iterdir())


@pytest.mark.parametrize("name", list(OUTPUTS))
def test_an_output_is_the_librarys(name: str, tmp_path: Path) -> None:
    compare(Use(FUSED, {}, lambda: {"compute_metrics": accuracy}, after=OUTPUTS[name]), tmp_path)


def test_a_checkpoint_has_the_librarys_files_and_states(tmp_path: Path) -> None:
    ours, stock = compare(Use(FUSED, {**EVERY_TWO, "weight_decay": 0.1}), tmp_path)
    mine, theirs = (Path(each.args.output_dir) / "checkpoint-4" for each in (ours, stock))
    assert {path.name for path in mine.iterdir()} == {path.name for path in theirs.iterdir()} | {"manifest.json"}
    states = [json.loads((folder / "trainer_state.json").read_text()) for folder in (mine, theirs)]
    same(states[0], states[1], "trainer_state")
    moments = [torch.load(folder / "optimizer.pt") for folder in (mine, theirs)]
    assert moments[0]["param_groups"] == moments[1]["param_groups"]
    for index, expected in moments[1]["state"].items():
        for kind, tensor in expected.items():
            found = moments[0]["state"][index][kind]
            assert found.dtype == tensor.dtype
            torch.testing.assert_close(found, tensor, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("bases", [(whet.Trainer, transformers.Trainer), (transformers.Trainer, whet.Trainer)])
@pytest.mark.parametrize("step", [2, 4])
def test_either_class_goes_on_from_a_checkpoint_of_the_other(bases: Any, step: int, tmp_path: Path) -> None:
    use = Use(FUSED, {"max_steps": 7, "save_strategy": "steps", "save_steps": 2})
    first, second = bases
    run(use, first, tmp_path / "first")
    whole = run(use, transformers.Trainer, tmp_path / "whole")
    again = copy.copy(use)
    arguments = whet.TrainingArguments if second is whet.Trainer else transformers.TrainingArguments
    more = {"bf16": False} if second is whet.Trainer else {}
    given = {"train_dataset": rows_of("binary", ROWS), "processing_class": padding_tokenizer()}
    trainer = second(again.model(), arguments(str(tmp_path / "again"), **{**COMMON, **use.args, **more}), **given)
    trainer.remove_callback(transformers.PrinterCallback)
    torch.manual_seed(11)
    trainer.train(resume_from_checkpoint=str(tmp_path / "first" / f"checkpoint-{step}"))
    entries = [[dict(sorted(entry.items())) for entry in each.state.log_history] for each in (trainer, whole)]
    for entry in (entries[0][-1], entries[1][-1]):
        del entry["train_loss"]  # a mean over the steps of one call
    same(*entries, "log_history")
    for name, tensor in trainer.model.state_dict().items():
        if not name.endswith("key.bias"):
            same(tensor, whole.model.state_dict()[name], name)
