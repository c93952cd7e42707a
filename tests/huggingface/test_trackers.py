"""Trackers are the library's callbacks: none unasked, none that asks for an account."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.huggingface.made import logged, make_trainer
from whet.integrations.trackers import wandb_mode


def test_nothing_is_tracked_by_default(tmp_path: Path) -> None:
    names = {type(callback).__name__ for callback in make_trainer(tmp_path).callback_handler.callbacks}
    assert names == {"DefaultFlowCallback", "RunFolderCallback"}


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
def test_tensorboard_gets_every_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "here"))
    settings = {"max_steps": 4, "logging_steps": 2, "eval_strategy": "steps", "report_to": "tensorboard"}
    trainer = make_trainer(tmp_path, save_strategy="no", **settings)
    trainer.train()
    events = EventAccumulator(str(tmp_path / "here"))
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [2, 4]
    assert [event.value for event in events.Scalars("eval/loss")] == pytest.approx(logged(trainer, "eval_loss"))


@pytest.mark.parametrize(("key", "mode"), [("", "offline"), ("abc", "online")])
def test_wandb_without_a_key_stays_offline(
    key: str, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("WANDB_API_KEY", key)
    assert wandb_mode() == mode


def test_the_librarys_callback_is_told_to_stay_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("WANDB_MODE", "")  # so that it is put back after the test
    monkeypatch.delenv("WANDB_MODE")
    with pytest.raises(RuntimeError, match="wandb"):  # the package is not installed here
        make_trainer(tmp_path, report_to=["wandb"])
    assert os.environ["WANDB_MODE"] == "offline"
