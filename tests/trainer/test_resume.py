"""Checkpoints of a Trainer: standard folders, and a run that goes on to the bit."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import small_model
from tests.trainer.made import logged, make_rows, make_trainer, weights
from whet import EarlyStoppingCallback, Trainer, TrainerCallback
from whet.errors import ArtifactError, UsageError
from whet.records import Resume
from whet.runs.folder import RunFolder
from whet.trainer.notices import WhetNotice

SETTINGS: dict[str, Any] = {
    "num_train_epochs": 3,
    "save_steps": 2,
    "logging_steps": 2,
    "eval_strategy": "steps",
    "eval_steps": 3,
    "learning_rate": 1e-3,
    "lr_scheduler_type": "cosine",
    "weight_decay": 0.01,
}


def make(folder: Path, width: int = 32, **others: Any) -> Trainer:
    return make_trainer(folder, model=small_model(width=width, dropout=0.1), **{**SETTINGS, **others})


def history(trainer: Trainer) -> list[dict[str, float]]:
    """What was logged, without timings."""
    timings = ("runtime", "per_second")
    return [
        {name: value for name, value in entry.items() if not name.endswith(timings)}
        for entry in trainer.state.log_history
    ]


class StopAt(TrainerCallback):
    """The process is sent a signal in the middle of a run."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("width", [32, 64])
@pytest.mark.parametrize("step", [3, 4])
def test_a_run_that_was_interrupted_goes_on_to_the_bit(width: int, step: int, tmp_path: Path) -> None:
    whole = make(tmp_path / "whole", width)
    expected = whole.train()
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path / "cut", width, callbacks=[StopAt(step)]).train()
    resumed = make(tmp_path / "cut", width)
    found = resumed.train(resume_from_checkpoint=True)
    assert all(torch.equal(weights(resumed.model)[name], each) for name, each in weights(whole.model).items())
    assert history(resumed) == history(whole)
    assert found.training_loss == expected.training_loss


def test_an_explicit_checkpoint_goes_on_from_there(tmp_path: Path) -> None:
    whole = make(tmp_path)
    whole.train()
    expected = weights(whole.model)
    again = make(tmp_path)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert all(torch.equal(weights(again.model)[name], each) for name, each in expected.items())
    resumed = [record for record in RunFolder.open(tmp_path).records() if isinstance(record, Resume)]
    assert [record.step for record in resumed] == [4]


def test_a_checkpoint_can_be_taken_to_another_folder(tmp_path: Path) -> None:
    whole = make(tmp_path / "a")
    whole.train()
    elsewhere = make(tmp_path / "b")
    elsewhere.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-2"))
    assert all(torch.equal(weights(elsewhere.model)[name], each) for name, each in weights(whole.model).items())


def test_a_checkpoint_is_a_standard_model_folder(tmp_path: Path, tiny_model_folder: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    trainer = make(tmp_path, 64, max_steps=2)
    trainer.processing_class = AutoTokenizer.from_pretrained(tiny_model_folder)
    trainer.train()
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "checkpoint-2")
    assert all(torch.equal(weights(loaded)[name], each) for name, each in weights(trainer.model).items())
    assert AutoTokenizer.from_pretrained(tmp_path / "checkpoint-2")("abc")["input_ids"]
    state = json.loads((tmp_path / "checkpoint-2" / "trainer_state.json").read_text())
    assert state["global_step"] == 2


@pytest.mark.parametrize("family", ["roberta", "distilbert", "modernbert"])
def test_checkpoints_of_other_families_load_as_they_are(family: str, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    rows = make_rows().remove_columns(["token_type_ids"])
    trainer = make_trainer(tmp_path, model=small_model(family), train=rows, max_steps=1, save_steps=1)
    trainer.train()
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "checkpoint-1")
    assert all(torch.equal(weights(loaded)[name], each) for name, each in weights(trainer.model).items())


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path) -> None:
    whole = make(tmp_path)
    whole.train()
    expected = weights(whole.model)
    path = tmp_path / "checkpoint-9" / "optimizer.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    again = make(tmp_path)
    again.train(resume_from_checkpoint=True)
    assert all(torch.equal(weights(again.model)[name], each) for name, each in expected.items())
    assert RunFolder.open(tmp_path).finished


def test_rotation_keeps_the_best_and_the_newest(tmp_path: Path) -> None:
    class Worsening(Trainer):
        def evaluate(self, *args: Any, **others: Any) -> dict[str, float]:
            found = super().evaluate(*args, **others)
            return {**found, "eval_loss": float(self.state.global_step)}

    args = {"eval_steps": 2, "save_total_limit": 2, "load_best_model_at_end": True}
    trainer = make_trainer(tmp_path, kind=Worsening, **{**SETTINGS, **args})
    trainer.train()
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-9"]
    assert trainer.state.best_model_checkpoint == str(tmp_path / "checkpoint-2")


def test_the_best_model_is_loaded_at_the_end(tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    args = {"load_best_model_at_end": True, "learning_rate": 0.05, "save_strategy": "no"}
    trainer = make(tmp_path, **args)
    trainer.train()
    best = AutoModelForSequenceClassification.from_pretrained(str(trainer.state.best_model_checkpoint))
    assert all(torch.equal(weights(best)[name], each) for name, each in weights(trainer.model).items())
    assert trainer.evaluate()["eval_loss"] == pytest.approx(min(logged(trainer, "eval_loss")), rel=1e-6)


def test_early_stopping_stops_and_its_patience_survives_a_resume(tmp_path: Path) -> None:
    args = {"eval_steps": 1, "save_steps": 1, "metric_for_best_model": "loss", "learning_rate": 1e-12}
    stopper = EarlyStoppingCallback(early_stopping_patience=3, early_stopping_threshold=0.5)
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path, callbacks=[stopper, StopAt(3)], **args).train()
    resumed = make(tmp_path, callbacks=[EarlyStoppingCallback(3, 0.5)], **args)
    assert resumed.train(resume_from_checkpoint=True).global_step == 4
    assert RunFolder.open(tmp_path).records()[-1].reason == "patience"  # type: ignore[attr-defined]


def test_checkpoints_of_an_earlier_training_are_left_alone(tmp_path: Path) -> None:
    make(tmp_path, max_steps=8).train()
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path, max_steps=4, callbacks=[StopAt(3)], save_total_limit=1).train()
    assert (tmp_path / "checkpoint-8").is_dir()
    resumed = make(tmp_path, max_steps=4, save_total_limit=1)
    assert resumed.train(resume_from_checkpoint=True).global_step == 4


def test_other_settings_are_said_when_resuming(tmp_path: Path) -> None:
    make(tmp_path, max_steps=4).train()
    with pytest.warns(WhetNotice, match=r"max_steps: 4 → 6"):
        assert make(tmp_path, max_steps=6).train(resume_from_checkpoint=True).global_step == 6


def test_nothing_to_resume_from_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no checkpoint"):
        make(tmp_path).train(resume_from_checkpoint=True)


def test_a_stock_checkpoint_is_refused_with_what_to_do(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-5"
    folder.mkdir()
    (folder / "trainer_state.json").write_text("{}")
    with pytest.raises(ArtifactError, match="from_pretrained"):
        make(tmp_path / "out").train(resume_from_checkpoint=str(folder))


def test_a_model_only_checkpoint_cannot_be_resumed(tmp_path: Path) -> None:
    make(tmp_path, max_steps=2, save_only_model=True).train()
    assert not (tmp_path / "checkpoint-2" / "optimizer.safetensors").exists()
    with pytest.raises(ArtifactError, match="save_only_model"):
        make(tmp_path).train(resume_from_checkpoint=True)
