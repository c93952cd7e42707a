"""Mistakes in the settings are told before torch is imported: that takes longer than most mistakes deserve."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.data_files import as_csv, labelled, write
from whet.cli import main
from whet.config import make_config, to_toml
from whet.data.examples import load_examples
from whet.errors import UsageError
from whet.utils import gpu_files
from whet.utils.gpu_files import refuse_impossible


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return write(tmp_path / "rows.csv", as_csv(labelled(60)))


def refused(*arguments: str, **environment: str) -> str:
    """What a command says that ends with 2, in a process that must not have imported torch by then."""
    script = (
        f"import sys, os; os.environ.update({environment!r});"
        f"from whet.cli import main; code = main({list(arguments)!r});"
        "sys.exit(code if not {'torch', 'transformers'} & set(sys.modules) else 99)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert run.returncode == 2, run.stderr
    return run.stderr


@pytest.mark.parametrize("command", [["train"], ["train", "--dry-run"], ["predict", "run", "--text", "a"]])
def test_a_gpu_that_is_not_there(command: list[str], rows: Path) -> None:
    source = [] if command[0] == "predict" else [str(rows)]
    said = refused(*command, *source, "--device", "cuda", CUDA_VISIBLE_DEVICES="")
    assert "device is 'cuda' and torch sees no CUDA device." in said


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_a_metric_that_the_task_has_not(dry: list[str], rows: Path) -> None:
    assert "metric is 'mse'" in refused("train", str(rows), "--metric", "mse", *dry)


def begun(rows: Path, folder: Path, **settings: object) -> Path:
    """A run folder as the first seconds of a training leave it."""
    config = make_config({"source": str(rows), "run": str(folder), **settings})
    write(folder / "config.toml", to_toml(config))
    write(folder / "data.json", json.dumps({"fingerprint": load_examples(str(rows), config.data).fingerprint}))
    return folder


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_changed_settings_of_a_run(dry: list[str], rows: Path, tmp_path: Path) -> None:
    folder = begun(rows, tmp_path / "run", epochs=5)
    assert "epochs was 5.0, is 2.0" in refused("train", str(rows), "--run", str(folder), "--epochs", "2", *dry)


def test_changed_data_of_a_run(rows: Path, tmp_path: Path) -> None:
    folder = begun(rows, tmp_path / "run")
    write(rows, as_csv(labelled(80)))
    assert "data was" in refused("train", str(rows), "--run", str(folder))


def test_a_machine_that_may_have_a_gpu_is_asked_by_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(gpu_files, "FILES", (str(tmp_path / "nvidia[0-9]"),))
    with pytest.raises(UsageError, match="no CUDA device"):
        refuse_impossible("cuda:1")
    refuse_impossible("cpu")
    refuse_impossible("auto")
    write(tmp_path / "nvidia0", "")
    refuse_impossible("cuda:1")


def test_a_dry_run_makes_no_folder(
    rows: Path, tmp_path: Path, tiny_model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--model", str(tiny_model_folder), "--device", "cpu", "--run", str(tmp_path / "run")]
    assert main(["train", str(rows), *flags, "--dry-run"]) == 0
    assert "steps, about" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
