"""Checkpoints: the library's folders, whole or passed over; a training on the fast path goes on to the bit."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import small_model
from tests.huggingface.made import history, logged, make_trainer, weights
from whet import EarlyStoppingCallback, Trainer, TrainerCallback
from whet.engine.notices import WhetNotice
from whet.huggingface.checkpoints import UNFINISHED, newest_whole, why_not_whole
from whet.records import Resume
from whet.runs.folder import RunFolder

SETTINGS: dict[str, Any] = {
    "num_train_epochs": 3,
    "save_steps": 2,
    "logging_steps": 3,
    "eval_strategy": "steps",
    "eval_steps": 3,
    "learning_rate": 1e-3,
    "lr_scheduler_type": "cosine",
    "weight_decay": 0.01,
}


def make(folder: Path, width: int = 64, **others: Any) -> Trainer:
    return make_trainer(folder, model=small_model(width=width, dropout=0.1), **{**SETTINGS, **others})


class StopAt(TrainerCallback):
    """The process is sent a signal in the middle of a run."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(
    ("width", "order", "step"),
    [(64, "random", 4), (64, "group_by_length", 5), (32, "random", 4)],
)
def test_a_run_that_was_interrupted_goes_on_to_the_bit(width: int, order: str, step: int, tmp_path: Path) -> None:
    whole = make(tmp_path / "whole", width, train_sampling_strategy=order)
    whole.train()
    with pytest.raises(KeyboardInterrupt, match="resume_from_checkpoint"):
        make(tmp_path / "cut", width, train_sampling_strategy=order, callbacks=[StopAt(step)]).train()
    resumed = make(tmp_path / "cut", width, train_sampling_strategy=order)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.path.endswith(f"from step {step}")
    assert all(torch.equal(weights(resumed.model)[name], each) for name, each in weights(whole.model).items())
    assert history(resumed) == history(whole)
    assert [record.step for record in RunFolder.open(tmp_path / "cut").records() if isinstance(record, Resume)] == [
        step
    ]


def test_a_checkpoint_can_be_taken_to_another_folder(tmp_path: Path) -> None:
    whole = make(tmp_path / "a")
    whole.train()
    elsewhere = make(tmp_path / "b")
    elsewhere.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-2"))
    assert all(torch.equal(weights(elsewhere.model)[name], each) for name, each in weights(whole.model).items())


def test_a_damaged_and_an_unfinished_checkpoint_are_passed_over(tmp_path: Path) -> None:
    whole = make(tmp_path)
    whole.train()
    path = tmp_path / "checkpoint-9" / "optimizer.pt"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    (tmp_path / "checkpoint-8" / UNFINISHED).touch()
    again = make(tmp_path)
    with pytest.warns(WhetNotice, match=r"optimizer\.pt is damaged|not written to its end") as heard:
        again.train(resume_from_checkpoint=True)
    assert len(heard) == 2
    assert again.path == "fused from step 6"
    assert all(torch.equal(weights(again.model)[name], each) for name, each in weights(whole.model).items())
    assert RunFolder.open(tmp_path).finished


def test_a_save_that_fails_leaves_a_folder_that_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make(tmp_path, max_steps=4)
    monkeypatch.setattr(trainer, "_save_rng_state", lambda folder: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        trainer.train()
    assert why_not_whole(tmp_path / "checkpoint-2") == "it was not written to its end"
    with pytest.warns(WhetNotice, match="passed over"):
        assert newest_whole(tmp_path) is None


def test_a_checkpoint_without_a_manifest_is_the_librarys(tmp_path: Path) -> None:
    make(tmp_path, max_steps=2).train()
    (tmp_path / "checkpoint-2" / "manifest.json").unlink()
    assert newest_whole(tmp_path) == tmp_path / "checkpoint-2"


def test_nothing_to_resume_from_is_the_librarys_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="No valid checkpoint"):
        make(tmp_path).train(resume_from_checkpoint=True)


def test_patience_survives_a_resume(tmp_path: Path) -> None:
    args = {"eval_steps": 1, "save_steps": 1, "metric_for_best_model": "loss", "learning_rate": 1e-12}
    args["restore_callback_states_from_checkpoint"] = True
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path, callbacks=[EarlyStoppingCallback(3, 0.5), StopAt(3)], **args).train()
    resumed = make(tmp_path, callbacks=[EarlyStoppingCallback(3, 0.5)], **args)
    assert resumed.train(resume_from_checkpoint=True).global_step == 4


def test_rotation_and_the_best_model_are_the_librarys(tmp_path: Path) -> None:
    args = {"eval_steps": 2, "save_total_limit": 2, "load_best_model_at_end": True, "learning_rate": 0.05}
    trainer = make(tmp_path, **args)
    trainer.train()
    kept = sorted(path.name for path in tmp_path.glob("checkpoint-*"))
    assert len(kept) == 2
    assert Path(str(trainer.state.best_model_checkpoint)).name in kept
    assert trainer.evaluate()["eval_loss"] == pytest.approx(min(logged(trainer, "eval_loss")), rel=1e-6)


def test_a_second_training_counts_its_own_signals(tmp_path: Path) -> None:
    trainer = make(tmp_path, max_steps=3, callbacks=[StopAt(1)], save_strategy="no", eval_strategy="no")
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    trainer.remove_callback(StopAt)
    assert trainer.train().global_step == 3
