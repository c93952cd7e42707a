"""How a command ends: with its code, after what was under way, and without taking Python down."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from whet.cli import main
from whet.errors import EnvironmentFault

HEAD = """
import atexit, threading, time
from whet.cli import app as cli

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


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["runs"]])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_went_away_is_no_failure(tmp_path: Path, arguments: list[str], unbuffered: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    command = [sys.executable, "-m", "whet", *arguments]
    with open(writing, "w") as gone:
        done = subprocess.run(command, stdout=gone, stderr=subprocess.PIPE, env=environment, cwd=tmp_path, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_are_no_failure(tmp_path: Path, tiny_model_folder: Path, closed: str) -> None:
    settings = f"--model {tiny_model_folder} --max-steps 2 --run {tmp_path / 'run'}"
    command = f"{sys.executable} -m whet train sample/pairs {settings} {closed}"
    assert subprocess.run(command, shell=True, cwd=tmp_path).returncode == 0
    assert subprocess.run(f"{sys.executable} -m whet verdict {tmp_path / 'run'} {closed}", shell=True).returncode == 0


@pytest.mark.parametrize("arguments", [["selftest"], ["bench", "sample/pairs"]])
def test_whoever_interrupts_helpers_hears_of_them_once(
    tmp_path: Path, tiny_model_folder: Path, arguments: list[str]
) -> None:
    """As a terminal does it: every process of the group gets the signal."""
    model = ["--model", str(tiny_model_folder)] if arguments[0] == "bench" else []
    running = subprocess.Popen(
        [sys.executable, "-m", "whet", *arguments, *model],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        start_new_session=True,
        text=True,
    )
    time.sleep(3)
    os.killpg(running.pid, signal.SIGINT)
    _, said = running.communicate(timeout=60)
    assert (running.returncode, "Traceback" in said, said.count("Interrupted")) == (75, False, 1), said
    assert list(tmp_path.glob("whet-*")) == []


def test_a_thread_that_the_system_refuses_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from whet.cli import app as cli
    from whet.cli.commands import root

    def refused(**given: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(root, "main", refused)
    assert cli.main(["runs"]) == EnvironmentFault.exit_code
    assert capsys.readouterr().err.splitlines()[0].endswith("The system allows no more threads.")


def test_a_fault_of_ours_is_told_and_what_is_under_way_is_done() -> None:
    body = "threading.Thread(target=lambda: (time.sleep(0.5), print('sent'))).start(); raise ValueError('ours')"
    command = [sys.executable, "-c", HEAD.format(body=body)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "sent\n")
    assert done.stderr.splitlines()[-1] == "ValueError: ours"


def test_the_traceback_of_an_error_is_shown_when_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for value, shown in (("", False), ("1", True)):
        monkeypatch.setenv("WHET_DEBUG", value)
        assert main(["check", "nowhere.csv"]) == 2
        assert ("Traceback" in capsys.readouterr().err) is shown
