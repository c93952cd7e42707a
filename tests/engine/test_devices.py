from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from whet.engine.devices import wake


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "no such device"])
def test_a_device_is_woken_without_a_word(device: str, capfd: pytest.CaptureFixture[str]) -> None:
    wake(device)
    for thread in threading.enumerate():
        if thread.name == "whet-wake":
            thread.join()
    assert capfd.readouterr() == ("", "")


@pytest.mark.gpu
def test_a_gpu_that_was_woken_is_started() -> None:
    script = (
        "import threading, torch; from whet.engine.devices import wake\n"
        "wake('auto')\n"
        "[thread.join() for thread in threading.enumerate() if thread.name == 'whet-wake']\n"
        "assert torch.cuda.is_initialized()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
