from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest

import whet
from whet import garbage
from whet.playground import write_model, write_rows


def said_by(script: str) -> list[str]:
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return run.stdout.split()


def test_what_a_command_has_loaded_is_not_searched() -> None:
    script = (
        "import gc; from whet import garbage; garbage.load_without_looking(); garbage.keep_what_is_loaded();"
        "print(gc.get_freeze_count() > 0, gc.get_threshold() == garbage.USUAL)"
    )
    assert said_by(script) == ["True", "True"]


def test_in_a_process_of_somebody_else_nothing_is_set_aside() -> None:
    script = "import gc; from whet import garbage; garbage.keep_what_is_loaded(); print(gc.get_freeze_count())"
    assert said_by(script) == ["0"]


def test_a_command_loads_without_looking() -> None:
    script = (
        "import gc; from whet import cli, garbage;"
        "cli.main = lambda: print(gc.get_threshold() == garbage.LOADING) or 0; cli.entry()"
    )
    assert said_by(script) == ["True"]


def test_a_training_sets_aside_what_was_loaded_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "model")
    write_rows(tmp_path / "rows.csv", 40)
    before = gc.get_threshold()
    garbage.load_without_looking()
    try:
        whet.fit("rows.csv", model=str(tmp_path / "model"), max_steps=1, evaluations=1, device="cpu")
        assert gc.get_freeze_count() > 0
        assert gc.get_threshold() == garbage.USUAL
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
