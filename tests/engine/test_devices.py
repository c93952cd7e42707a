from __future__ import annotations

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
