"""`whet bench` on a tiny model: the real contenders in their own processes. How fast they are is not asked here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.decoder_models import write_decoder
from whet.tools.selftest.tiny_run import write_rows


def bench(*words: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "whet", "bench", *words, "--turns", "1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_training_is_timed_side_by_side_and_the_losses_agree(tiny_model_folder: Path) -> None:
    found = bench("sample/pairs", "--model", str(tiny_model_folder), "--steps", "2", "--batch-size", "4")
    assert list(found["contenders"]) == ["stock float32", "stock bf16", "whet"]
    assert all(each["ms_a_step"] > 0 and each["peak_mb"] > 0 for each in found["contenders"].values())
    assert found["contenders"]["whet"]["ratio"] == 1
    assert found["losses"]["whet"]["largest_difference"] < 0.01
    assert found["preparing_seconds"] >= 0


def test_a_loop_is_timed_side_by_side_and_the_losses_agree(tiny_model_folder: Path) -> None:
    found = bench("loop", "sample/pairs", "--model", str(tiny_model_folder), "--steps", "2", "--batch-size", "4")
    assert list(found["contenders"]) == ["loop float32", "loop bf16", "whet"]
    assert all(each["ms_a_step"] > 0 and each["peak_mb"] > 0 for each in found["contenders"].values())
    assert found["losses"]["whet"]["largest_difference"] < 0.01
    assert found["job"]["path"].split()[0] in ("fused", "packed")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["train", "predict"])
def test_a_decoder_without_a_padding_token_is_timed(kind: str, tmp_path: Path) -> None:
    write_decoder(tmp_path / "model", padding=False)
    write_rows(tmp_path / "rows.csv")
    sizes = ("--steps", "2", "--batch-size", "4") if kind == "train" else ("--rows", "64")
    found = bench(kind, str(tmp_path / "rows.csv"), "--model", str(tmp_path / "model"), *sizes)
    assert "whet" in found["contenders"]


def test_compiling_is_for_training(capsys: pytest.CaptureFixture[str]) -> None:
    from whet.cli import main

    assert main(["bench", "loop", "--compile"]) == 2
    assert "--compile is for `whet bench train`" in capsys.readouterr().err


def test_prediction_is_timed_side_by_side_and_the_labels_agree(tiny_model_folder: Path) -> None:
    found = bench("predict", "sample/pairs", "--model", str(tiny_model_folder), "--rows", "64")
    assert list(found["contenders"]) == ["stock pipeline", "whet"]
    assert all(each["rows_a_second"] > 0 for each in found["contenders"].values())
    assert found["same_labels"] >= 0.95


@pytest.mark.parametrize("flag", ["--turns", "--steps", "--rows", "--batch-size"])
def test_none_of_anything_is_refused(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    from whet.cli import main

    assert main(["bench", flag, "0"]) == 2
    assert flag.lstrip("-").replace("-", "_") in capsys.readouterr().err.replace("-", "_")


@pytest.mark.slow
def test_the_compiled_stock_trainer_is_timed_too(tiny_model_folder: Path) -> None:
    where = ("sample/pairs", "--model", str(tiny_model_folder), "--batch-size", "4")
    found = bench(*where, "--steps", "2", "--compile")
    assert found["contenders"]["stock compiled"]["ms_a_step"] > 0
    assert "stock compiled" not in found["losses"]
