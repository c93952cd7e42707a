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


def test_a_thread_that_saves_comes_to_its_end() -> None:
    assert ended("threading.Thread(target=lambda: (time.sleep(0.5), print('saved'))).start()") == (0, "saved\n")


def test_a_thread_that_nobody_waits_for_does_not_hold_it_up() -> None:
    assert ended("threading.Thread(target=time.sleep, args=(600,), daemon=True).start()") == (0, "")


def test_what_was_registered_is_done() -> None:
    assert ended("atexit.register(print, 'tidied')") == (0, "tidied\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a file that is always full is a thing of Linux")
def test_output_that_cannot_be_written_at_the_end_is_a_fault() -> None:
    with open("/dev/full", "w") as full:
        assert ended("print('result')", full)[0] == 4
