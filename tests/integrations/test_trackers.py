"""Trackers of `whet train` and `whet.fit`: fed from the records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import whet
from whet.errors import UsageError
from whet.integrations.trackers import TRACKERS, Place, values_of
from whet.records import End, Evaluation, Step


@pytest.fixture
def source(tmp_path: Path) -> str:
    rows = [f"{('no', 'yes')[i % 2]} {i},{i % 2}" for i in range(40)]
    (tmp_path / "rows.csv").write_text("text,label\n" + "\n".join(rows) + "\n")
    return str(tmp_path / "rows.csv")


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
def test_tensorboard_shows_the_records(tmp_path: Path, source: str, tiny_model_folder: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = whet.fit(
        source, model=str(tiny_model_folder), run=str(tmp_path / "run"), max_steps=6, report_to="tensorboard"
    )
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    evaluations = [r for r in run.records if isinstance(r, Evaluation) and r.split == "validation"]
    assert [e.step for e in events.Scalars("eval/loss")] == [r.step for r in evaluations]
    assert [e.value for e in events.Scalars("eval/loss")] == pytest.approx([r.loss for r in evaluations])


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
def test_tags_and_settings_steer_nothing_in_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tracker = TRACKERS["tensorboard"](Place(tmp_path / "events", "p", None))
    tracker.open({"label": "a\n<b>\x1b[31m"})
    tracker.log(1, {"eval/\x1b[31mscore\u202e": 0.5})
    tracker.close()
    events = EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    assert events.Tags()["scalars"] == ["eval/\ufffd[31mscore\ufffd"]
    text = events.Tensors("arguments/text_summary")[0].tensor_proto.string_val[0].decode()
    assert text == "    label: a\ufffd<b>\ufffd[31m"  # still indented: a listing, no markup


def test_a_tracker_that_fails_is_said_and_the_run_is_finished(
    tmp_path: Path, source: str, tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from whet.config import make_config
    from whet.training.run import train_run

    class Broken:
        def __init__(self, place: Any) -> None:
            pass

        def open(self, settings: Any) -> None:
            raise RuntimeError("no such host")

    monkeypatch.setitem(TRACKERS, "tensorboard", Broken)
    monkeypatch.setattr("whet.integrations.trackers.find_spec", lambda package: package)
    settings = {"model": str(tiny_model_folder), "run": str(tmp_path / "run"), "max_steps": 2, "recipe": "course"}
    said: list[str] = []
    run = train_run(source, make_config({**settings, "report_to": "tensorboard"}), echo=said.append)
    assert any("tensorboard stopped" in line and "no such host" in line for line in said)
    assert (run.path / "model" / "model.safetensors").exists()


def test_an_unknown_tracker_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Did you mean 'mlflow'"):
        whet.fit(str(tmp_path / "nowhere.csv"), report_to="mlfow")


def test_only_numbers_by_step_are_shown() -> None:
    step = Step(step=2, epoch=0.5, loss=0.7, learning_rate=1e-5)
    assert values_of(step) == {"train/loss": 0.7, "train/learning_rate": 1e-5, "train/epoch": 0.5}
    test = Evaluation(step=2, epoch=1, split="test", loss=0.6, metrics={"f1": 0.5}, rows=4)
    assert values_of(test) == {"test/loss": 0.6, "test/f1": 0.5}
    assert values_of(End(step=2, reason="finished", best_step=2)) == {}
