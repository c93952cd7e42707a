"""The same use by `transformers.Trainer` and by `whet.Trainer`: the same events, logs, weights and random numbers.

Losses and weights agree within 1e-5 relative, everything that is counted is equal. The tables are in the files
`test_parity_….py`: each line is one use, with the path that whet must have taken.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import whet
from tests.conftest import small_model
from tests.huggingface.made import make_rows, padding_tokenizer

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
    assert (", then " in ours.path) == (", then " in use.path), ours.path
    assert ours.spy.seen == stock.spy.seen
    same(ours.state.log_history, stock.state.log_history, "log_history")
    same(tuple(ours.output), tuple(stock.output), "output")
    same(ours.result, stock.result, "result")
    for name in ("global_step", "max_steps", "best_global_step", "num_input_tokens_seen", "total_flos", "best_metric"):
        same(getattr(ours.state, name), getattr(stock.state, name), name)
    expected = stock.model.state_dict()
    for name, tensor in ours.model.state_dict().items():
        # No output depends on a key's bias: its gradient is rounding alone.
        if not name.endswith(("key.bias", "k_lin.bias", ".k.bias")):
            same(tensor, expected[name], name)
    assert torch.equal(ours.generator, stock.generator)
    return ours, stock
