"""Trackers: told every log, never in the way, never asking for an account."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.made import logged, make_trainer
from whet import TrainingArguments
from whet.errors import EnvironmentFault, UsageError
from whet.integrations.trackers import TRACKERS, Place, Wandb
from whet.trainer.notices import WhetNotice
from whet.trainer.trackers import grouped, trackers_of


def test_nothing_is_tracked_by_default(tmp_path: Path) -> None:
    names = {type(callback).__name__ for callback in make_trainer(tmp_path).callback_handler.callbacks}
    assert names == {"DefaultFlowCallback", "PrintLines"}


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
def test_tensorboard_gets_every_log(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    settings = {"max_steps": 4, "logging_steps": 2, "eval_strategy": "steps", "report_to": "tensorboard"}
    trainer = make_trainer(tmp_path, **settings)
    trainer.train()
    events = EventAccumulator(str(tmp_path / "runs"))
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [2, 4]
    assert [event.value for event in events.Scalars("eval/loss")] == pytest.approx(logged(trainer, "eval_loss"))


@pytest.mark.parametrize("name", sorted(TRACKERS))
def test_a_tracker_that_is_not_installed_says_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whet.integrations.trackers.find_spec", lambda package: None)
    with pytest.raises(EnvironmentFault, match=rf"pip install 'whet\[{name}\]'"):
        trackers_of(TrainingArguments("out", report_to=name))


def test_an_unknown_tracker_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Did you mean 'wandb'"):
        make_trainer(tmp_path, report_to=["wandbb"])


def test_a_tracker_that_fails_never_stops_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def __init__(self, args: Any) -> None:
            self.calls = 0

        def open(self, settings: Any) -> None:
            pass

        def log(self, step: int, values: Any) -> None:
            raise RuntimeError("no space left")

        def close(self) -> None:
            raise AssertionError("it was left out before")

    monkeypatch.setitem(TRACKERS, "tensorboard", Broken)
    monkeypatch.setattr("whet.integrations.trackers.find_spec", lambda package: package)
    trainer = make_trainer(tmp_path, report_to="tensorboard", max_steps=2, logging_steps=1)
    with pytest.warns(WhetNotice, match="no space left") as heard:
        assert trainer.train().global_step == 2
    assert len(heard) == 1


@pytest.mark.parametrize(("key", "mode"), [("", "offline"), ("abc", "online")])
def test_wandb_without_a_key_stays_offline(
    key: str, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real package is not installed here: what is shown is what would be handed to it."""
    asked: dict[str, Any] = {}
    double = types.SimpleNamespace(init=lambda **given: asked.update(given), Settings=dict)
    monkeypatch.setitem(sys.modules, "wandb", double)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("WANDB_API_KEY", key)
    Wandb(Place(tmp_path, "project", None)).open({})
    assert asked["mode"] == mode


def test_names_are_grouped_as_trackers_show_them() -> None:
    found = grouped({"loss": 1, "eval_loss": 2, "test_f1": 3, "train_runtime": 4})
    assert found == {"train/loss": 1, "eval/loss": 2, "test/f1": 3, "train/train_runtime": 4}
