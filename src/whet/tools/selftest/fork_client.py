"""Starts commands in the fork server and waits for them."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.errors import EnvironmentFault

STUCK_SECONDS = 120.0


START_SECONDS = 300.0


CALL_SECONDS = 3600.0


class ForkServer:
    """The fork server process, and the commands started in it."""

    def __init__(self) -> None:
        if os.name != "posix":
            raise EnvironmentFault("The self-test needs signals and kill -9.", "Run it on Linux or macOS.")
        environment = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            # A fork is safe only from a process with one thread.
            "JE_ARROW_MALLOC_CONF": "background_thread:false",
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "whet.tools.selftest.fork_server"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                bufsize=0,
                start_new_session=True,  # only the parent handles Ctrl-C
            )
        except OSError as error:
            reason = error.strerror or str(error)
            raise EnvironmentFault(
                f"The self-test could not start a process: {reason}.", "Raise this user's limit on processes."
            ) from None
        self._answers: dict[int, queue.Queue[int]] = {}
        self._asking = threading.Lock()
        self._ready: queue.Queue[bool] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()
        try:
            self.forks = self._ready.get(timeout=START_SECONDS)
        except BaseException as error:
            self._process.kill()
            if not isinstance(error, queue.Empty):
                raise
            raise EnvironmentFault("The self-test's process did not start.", "Try: python -m whet --version") from None

    def start(self, arguments: list[str], folder: Path, **request: Any) -> Command:
        """Start a whet command in a folder."""
        with self._asking:
            number = len(self._answers)
            self._answers[number] = queue.Queue()
        output = folder / "output.txt"
        about = {"id": number, "arguments": arguments, "folder": str(folder), "output": str(output), **request}
        self._send({"do": "start", **about})
        return Command(self, number, output)

    def call(self, function: str, *arguments: Any, folder: Path) -> None:
        """Call a function of whet in a fork, because computing here would make forks unsafe."""
        command = self.start([*arguments], folder, call=function)
        if command.wait(CALL_SECONDS) != 0:
            raise EnvironmentFault(f"The self-test could not {function}: {command.output.read_text()[-400:]}")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _send(self, request: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with self._asking:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            if "ready" in answer:
                self._ready.put(bool(answer["forks"]))
            else:
                self._answers[answer["id"]].put(int(answer["status"]))


@dataclass(frozen=True)
class Command:
    """A started command."""

    warm: ForkServer
    number: int
    output: Path

    def signal(self, number: int) -> None:
        """Send a signal if it still runs."""
        self.warm._send({"do": "signal", "id": self.number, "number": int(number)})

    def wait(self, seconds: float = STUCK_SECONDS) -> int | None:
        """Return its exit status, negative for a signal; None if it hangs, in which case it is killed."""
        try:
            return self.warm._answers[self.number].get(timeout=seconds)
        except queue.Empty:
            self.signal(signal.SIGKILL)
            return None


@contextmanager
def warm_process() -> Iterator[ForkServer]:
    warm = ForkServer()
    try:
        yield warm
    finally:
        warm.close()
