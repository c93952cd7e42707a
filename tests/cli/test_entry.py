"""How a command ends: with its code, after what was under way, and without taking Python down."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HEAD = """
import atexit, threading, time
from whet import cli

def main():
    {body}
    return 0

cli.main = main
cli.entry()
"""


def ended(body: str, stdout: Any = subprocess.PIPE) -> tuple[int, str]:
    command = [sys.executable, "-c", HEAD.format(body=body)]
    environment = {**os.environ, "PYTHONUNBUFFERED": ""}  # output is written at the end
    done = subprocess.run(command, stdout=stdout, env=environment, text=True, timeout=60)
    return done.returncode, done.stdout


def test_what_a_library_left_to_a_thread_is_done() -> None:
    assert ended("threading.Thread(target=lambda: (time.sleep(0.5), print('sent'))).start()") == (0, "sent\n")


@pytest.mark.parametrize("daemon", [True, False])
def test_whoever_interrupts_waits_for_no_thread(daemon: bool) -> None:
    endless = f"threading.Thread(target=time.sleep, args=(600,), daemon={daemon}).start()"
    assert ended(f"{endless}; import signal; signal.raise_signal(signal.SIGINT)") == (75, "")


def test_what_was_registered_is_done() -> None:
    assert ended("atexit.register(print, 'tidied')") == (0, "tidied\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a file that is always full is a thing of Linux")
def test_output_that_cannot_be_written_at_the_end_is_a_fault() -> None:
    with open("/dev/full", "w") as full:
        assert ended("print('result')", full)[0] == 4
