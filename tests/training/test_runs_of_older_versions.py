"""Runs that version 0.1 wrote: they open, go on to their end, and can be compared."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import whet
from whet.config import make_config
from whet.records import Step
from whet.runs.compare import compare
from whet.runs.folder import RunFolder
from whet.training.run import train_run

FIXTURE = Path(__file__).parent.parent / "fixtures" / "runs-of-version-0.1"
SETTINGS: dict[str, Any] = {
    "source": "rows.csv",
    "model": "model",
    "epochs": 2,
    "batch_size": 4,
    "lr": 0.01,
    "evaluations": 4,
    "save_every": 4,
    "log_every": 1,
    "keep": 1,
    "precision": "float32",
    "device": "cpu",
    "metric": "accuracy",
    "recipe": "course",
    "folds": 0,
}


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a finished run, one that was stopped at step 6, and the rows and the model of both."""
    shutil.copytree(FIXTURE, tmp_path / "old")
    monkeypatch.chdir(tmp_path / "old")
    return tmp_path / "old"


def test_a_finished_run_opens_and_predicts(old: Path) -> None:
    assert "test_accuracy" in whet.Run(old / "finished").metrics
    assert whet.load(old / "finished").predict("yes apple brick").label in ("good", "bad")


def test_a_stopped_run_goes_on_to_the_end_of_an_undisturbed_one(old: Path) -> None:
    train_run("rows.csv", make_config({**SETTINGS, "run": "stopped"}))
    steps = [record.step for record in RunFolder.open(old / "stopped").records() if isinstance(record, Step)]
    assert steps == list(range(1, 17))
    resumed, undisturbed = (load_file(old / run / "model" / "model.safetensors") for run in ("stopped", "finished"))
    for name, weights in undisturbed.items():  # made on another processor: not to the bit
        assert torch.allclose(resumed[name], weights, atol=1e-3), name


def test_runs_are_compared_row_by_row_and_with_new_ones(old: Path) -> None:
    train_run("rows.csv", make_config({**SETTINGS, "run": "new", "lr": 0.02}))
    found = compare([old / "finished", old / "new"])
    assert found.settings["learning_rate"] == (0.01, 0.02)
    assert found.differences[0].test is not None, found.differences[0].sentence
