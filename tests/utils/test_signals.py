"""Signals and deadlines, with real signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from whet.errors import Interrupted
from whet.utils.signals import Interrupts


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_remembered_until_it_is_asked_for(number: signal.Signals) -> None:
    with Interrupts() as interrupts:
        interrupts.check()
        send(number)
        assert number.name in interrupts.pending
        with pytest.raises(Interrupted, match=f"{number.name} was received"):
            interrupts.check()
    assert interrupts.reason == "interrupted"


def test_while_there_is_nothing_to_lose_a_signal_leaves_where_it_arrives() -> None:
    done = []

    def read() -> None:
        send(signal.SIGTERM)
        done.append("read")

    with Interrupts() as interrupts, pytest.raises(Interrupted), interrupts.at_once():
        read()
    assert not done


def test_an_error_that_a_library_made_of_the_signal_is_still_an_interruption() -> None:
    def library() -> None:
        try:
            send(signal.SIGINT)
        except KeyboardInterrupt:
            raise RuntimeError("could not import everything") from None

    with Interrupts() as interrupts, pytest.raises(Interrupted), interrupts.at_once():
        library()


def test_an_error_without_a_signal_stays_itself() -> None:
    with Interrupts() as interrupts, pytest.raises(ZeroDivisionError), interrupts.at_once():
        raise ZeroDivisionError


def test_an_earlier_signal_stops_before_the_next_phase() -> None:
    with Interrupts() as interrupts:
        send(signal.SIGTERM)
        with pytest.raises(Interrupted), interrupts.at_once():
            raise AssertionError("must not begin")


def test_a_second_signal_leaves_at_once() -> None:
    code = (
        "import os, signal; from whet.utils.signals import Interrupts\n"
        "with Interrupts():\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    print('first', flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    print('second', flush=True)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (75, "first\n")


def test_handlers_are_given_back() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with Interrupts():
        assert signal.getsignal(signal.SIGTERM) != before[1]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_deadline_is_a_reason_of_its_own() -> None:
    interrupts = Interrupts(max_minutes=1e-9)
    with pytest.raises(Interrupted, match="deadline"):
        interrupts.check()
    assert interrupts.reason == "deadline"


def test_a_deadline_ahead_lets_work_go_on() -> None:
    Interrupts(max_minutes=1000).check()


def test_another_thread_has_only_the_deadline() -> None:
    found: list[object] = []

    def work() -> None:
        with Interrupts() as interrupts:
            found.append(interrupts.pending)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [""]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("module", ["click", "whet.cli.options", "whet.training.run"])
def test_a_signal_while_a_command_starts_is_said_and_leaves_with_75(module: str, number: signal.Signals) -> None:
    code = (
        "import os, sys\n"
        "sent = []\n"
        "def hear(event, given):\n"
        f"    if event == 'import' and given[0] == {module!r} and not sent:\n"
        "        sent.append(1)\n"
        f"        os.kill(os.getpid(), {int(number)})\n"
        "sys.addaudithook(hear)\n"
        "sys.argv = ['whet', 'train', 'rows.csv']\n"
        "from whet.cli import entry\n"
        "entry()\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    said = f"whet: Interrupted: {number.name} was received.\n      Run the same command again.\n"
    assert (ended.returncode, ended.stderr) == (75, said)


def test_a_second_signal_while_a_command_starts_leaves_at_once() -> None:
    code = (
        "import os, signal; from whet.cli.app import install_signal_handlers\n"
        "install_signal_handlers()\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "finally:\n"
        "    print('first', flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    print('second', flush=True)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (75, "first\n", "")


# Python forgets what passed through an exec at the next one: what is imported at the end must be loaded before.
HEAD = """
import sys, time, whet.cli.commands, whet.cli.processes
from whet.cli import app as cli
from whet.errors import Interrupted
from whet.utils.signals import Interrupts

def kill():
    exec("import os; os.kill(os.getpid(), 15)")

class Gone:
    def __del__(self):
        kill()

def lose():
    Gone()
    time.sleep(60)
"""
STARTING = """
cli.main = {what}
cli.entry()
"""
READING = """
try:
    with Interrupts() as interrupts, interrupts.at_once():
        {what}()
except Interrupted:
    sys.exit(75)
"""


@pytest.mark.parametrize("door", [STARTING, READING], ids=["starting", "reading"])
@pytest.mark.parametrize("what", ["kill", "lose"], ids=["within an exec", "dropped by Python"])
def test_a_signal_in_an_odd_place_is_heard(tmp_path: Path, door: str, what: str) -> None:
    (tmp_path / "victim.py").write_text(HEAD + door.format(what=what))
    command = [sys.executable, "-m", "victim"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=50)
    assert (ended.returncode, "Traceback" in ended.stderr) == (75, False), ended.stderr


IMPORTING = """
import os, signal, sys, time
from whet.cli import app as cli

def hear(event, given):
    if event == "import" and given[0] == "torch.distributed" and not sent:
        sent.append(1)
        os.kill(os.getpid(), signal.SIGTERM)

def main():
    import torch
    print("imported", flush=True)
    time.sleep(60)

sent = []
sys.addaudithook(hear)
cli.main = main
cli.entry()
"""


def test_a_signal_while_torch_is_imported_waits_for_its_end() -> None:
    ended = subprocess.run([sys.executable, "-c", IMPORTING], capture_output=True, text=True, timeout=100)
    assert (ended.returncode, ended.stdout) == (75, "imported\n"), ended.stderr


ENDLESS = """
import os, signal, sys, threading, time
from whet.cli import app as cli
from whet.models import pretrained as model

def endless(*_, **__):
    print("loaded by", threading.current_thread().name, file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(600)

model.load_model = endless
sys.argv = ["whet", "train", "sample/pairs", *sys.argv[1:]]
cli.entry()
"""


def test_whoever_interrupts_does_not_wait_for_a_model_that_is_being_loaded(tiny_model_folder: Path) -> None:
    command = [
        sys.executable,
        "-c",
        ENDLESS,
        "--model",
        str(tiny_model_folder),
        "--run",
        str(tiny_model_folder / "run"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr.count("Interrupted")) == (Interrupted.exit_code, 1), done.stderr
    assert "loaded by whet-model" in done.stderr  # and not by the thread that the signal arrives in
