from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import whet
from tests.conftest import small_model
from tests.huggingface.made import make_trainer
from whet.config import make_config
from whet.engine.notices import WhetNotice
from whet.tools.selftest.tiny_run import write_rows
from whet.training.run import dry_run
from whet.utils import device as devices
from whet.utils.device import choose_hardware, start_gpu_in_background

AVX2 = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}


@pytest.fixture
def without_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor like most: oneDNN does not multiply bf16 on it."""
    monkeypatch.setattr(devices, "onednn_takes_bf16", lambda: False)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("takes", [True, False])
@pytest.mark.parametrize("multiplies", [True, False])
def test_bf16_is_native_where_it_is_taken_and_on_x86_multiplied(
    machine: str, takes: bool, multiplies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr(devices, "onednn_takes_bf16", lambda: takes)
    monkeypatch.setattr(devices, "_x86_multiplies_bf16", lambda: multiplies)
    native = takes and (multiplies or machine == "aarch64")
    assert choose_hardware("cpu").bf16 == native
    assert bool(choose_hardware("cpu", "bf16").slow) == (not native)


@pytest.mark.skipif(not torch.cpu._is_avx2_supported(), reason="there is no AVX2 on this processor")
def test_a_processor_with_avx2_alone_is_not_taken_for_more() -> None:
    script = (
        "from whet.utils.device import choose_hardware, instruction_sets\n"
        "from whet.engine.fused.cpu.inference_layers import CpuInferenceLayerOps\n"
        "print(choose_hardware('cpu').precision, instruction_sets(), CpuInferenceLayerOps.available())"
    )
    done = subprocess.run([sys.executable, "-c", script], env=os.environ | AVX2, capture_output=True, text=True)
    assert done.stdout == "float32 AVX2, no bf16 False\n", done.stderr


@pytest.mark.usefixtures("without_bf16")
def test_bf16_that_was_asked_for_trains_slowly_and_it_is_said(
    tmp_path: Path, tiny_model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "rows.csv"
    write_rows(source)
    asked = {"model": str(tiny_model_folder), "precision": "bf16", "device": "cpu", "max_steps": 1}
    asked["recipe"] = "course"
    dry_run(source, make_config(asked), print)
    lines = capsys.readouterr().out.splitlines()
    assert sum("bf16 was asked for and the CPU has no native bf16" in line for line in lines) == 1


@pytest.mark.usefixtures("without_bf16")
def test_a_trainer_and_a_step_say_that_bf16_is_slow(tmp_path: Path) -> None:
    with pytest.warns(WhetNotice, match="TrainingArguments: bf16 was asked for"):
        make_trainer(tmp_path, bf16=True)
    model = small_model()
    with pytest.warns(WhetNotice, match="TrainStep: bf16 was asked for"):
        whet.TrainStep(model, whet.AdamW(model.parameters()), precision="bf16")


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "no such device"])
def test_a_device_is_woken_without_a_word(device: str, capfd: pytest.CaptureFixture[str]) -> None:
    start_gpu_in_background(device)
    for thread in threading.enumerate():
        if thread.name == "whet-gpu":
            thread.join()
    assert capfd.readouterr() == ("", "")


@pytest.mark.gpu
def test_a_gpu_that_was_woken_is_started() -> None:
    script = (
        "import threading, torch; from whet.utils.device import start_gpu_in_background\n"
        "start_gpu_in_background('auto')\n"
        "[thread.join() for thread in threading.enumerate() if thread.name == 'whet-gpu']\n"
        "assert torch.cuda.is_initialized()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
