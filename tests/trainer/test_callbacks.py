"""Callbacks: stock event names at their places, and control that is obeyed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers

from tests.trainer.made import logged, make_trainer
from whet import EarlyStoppingCallback, TrainerCallback
from whet.errors import UsageError
from whet.trainer.callbacks import PrintLines, overrides
from whet.trainer.notices import WhetNotice

EVENTS = [name for name in vars(TrainerCallback) if name.startswith("on_")]


class Recorder(TrainerCallback):
    """Writes down every event with its step."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def said(self, *names: str) -> list[str]:
        return [event for event in self.events if event.split()[0] in names]


def _listen(name: str) -> Any:
    def event(self: Recorder, args: Any, state: Any, control: Any, **others: Any) -> None:
        assert {"model", "optimizer", "lr_scheduler", "processing_class"} <= set(others)
        self.events.append(f"{name} {state.global_step}")

    return event


for _name in EVENTS:
    if _name not in ("on_pre_optimizer_step", "on_optimizer_step"):
        setattr(Recorder, _name, _listen(_name))


def test_events_come_in_the_stock_order(tmp_path: Path) -> None:
    recorder = Recorder()
    args = {"num_train_epochs": 2, "per_device_train_batch_size": 12, "logging_steps": 2, "save_steps": 2}
    make_trainer(tmp_path, callbacks=[recorder], eval_strategy="epoch", **args).train()
    epoch = ["on_epoch_begin", "on_step_begin", "on_step_end", "on_step_begin", "on_step_end", "on_epoch_end"]
    epoch += ["on_log", "on_prediction_step", "on_prediction_step", "on_log", "on_evaluate", "on_save"]
    found = [event.split()[0] for event in recorder.events]
    assert found == ["on_init_end", "on_train_begin", *epoch, *epoch, "on_log", "on_train_end"]


def test_the_same_callback_sees_the_same_steps_as_in_the_stock_trainer(tmp_path: Path) -> None:
    args = {"num_train_epochs": 2, "logging_steps": 2, "eval_strategy": "steps", "eval_steps": 3, "save_steps": 4}
    ours, stock = Recorder(), Recorder()
    trainer = make_trainer(tmp_path / "ours", callbacks=[ours], **args)
    trainer.train()
    settings = transformers.TrainingArguments(
        str(tmp_path / "stock"), use_cpu=True, disable_tqdm=True, report_to="none", **args
    )
    rows = {"train_dataset": trainer.train_dataset, "eval_dataset": trainer.eval_dataset}
    rows = {name: each.map(lambda row: {"input_ids": row["input_ids"][:4]}) for name, each in rows.items()}
    rows = {name: each.select_columns(["input_ids", "label"]) for name, each in rows.items()}
    other = transformers.Trainer(trainer.model, settings, callbacks=[stock], **rows)
    other.remove_callback(transformers.PrinterCallback)
    other.train()
    names = (
        "on_train_begin",
        "on_epoch_begin",
        "on_step_begin",
        "on_step_end",
        "on_evaluate",
        "on_save",
        "on_epoch_end",
    )
    for name in names:
        assert ours.said(name) == stock.said(name)


class Ask(TrainerCallback):
    """Asks for something at one step."""

    def __init__(self, step: int, what: str) -> None:
        self.step, self.what = step, what

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> Any:
        if state.global_step == self.step:
            setattr(control, self.what, True)
        return control


def test_a_callback_can_stop_the_training(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, callbacks=[Ask(2, "should_training_stop")])
    assert trainer.train().global_step == 2


def test_a_callback_can_ask_for_an_evaluation(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, callbacks=[Ask(2, "should_evaluate")], max_steps=3)
    trainer.train()
    assert [entry["step"] for entry in trainer.state.log_history if "eval_loss" in entry] == [2]


def test_a_callback_can_ask_for_a_save_and_a_log(tmp_path: Path) -> None:
    asking = [Ask(2, "should_save"), type("Log", (Ask,), {})(2, "should_log")]
    trainer = make_trainer(tmp_path, callbacks=asking, max_steps=3, save_strategy="no")
    trainer.train()
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-2"]
    assert len(logged(trainer)) == 1


def test_stopping_an_epoch_is_said_to_have_no_effect(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, callbacks=[Ask(1, "should_epoch_stop")], max_steps=2)
    with pytest.warns(WhetNotice, match="epoch"):
        assert trainer.train().global_step == 2


def test_what_looks_at_a_saved_folder_finds_it(tmp_path: Path) -> None:
    found = []

    class Look(TrainerCallback):
        def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            found.append((tmp_path / f"checkpoint-{state.global_step}" / "model.safetensors").is_file())

    make_trainer(tmp_path, callbacks=[Look], max_steps=2, save_steps=1).train()
    assert found == [True, True]


def test_early_stopping_waits_as_long_as_it_is_told(tmp_path: Path) -> None:
    args = {"eval_strategy": "steps", "eval_steps": 1, "load_best_model_at_end": True, "learning_rate": 1e-12}
    trainer = make_trainer(tmp_path, callbacks=[EarlyStoppingCallback(2, 0.5)], save_strategy="no", **args)
    assert trainer.train().global_step == 3


@pytest.mark.parametrize("args", [{}, {"eval_strategy": "epoch"}])
def test_early_stopping_that_could_never_stop_is_refused(args: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="EarlyStoppingCallback"):
        make_trainer(tmp_path, callbacks=[EarlyStoppingCallback()], **args).train()


def test_callbacks_can_be_added_and_removed(tmp_path: Path) -> None:
    trainer, recorder = make_trainer(tmp_path, max_steps=1), Recorder()
    trainer.add_callback(recorder)
    assert trainer.pop_callback(Recorder) is recorder
    trainer.remove_callback(PrintLines)
    trainer.train()
    assert not recorder.events


def test_only_an_overridden_event_counts() -> None:
    assert overrides([Recorder()], "on_save")
    assert not overrides([TrainerCallback()], "on_save")
