"""A process that has imported everything and forks commands, for thousands of interruptions in tests.

It reads one JSON object per line and answers with one JSON object per line:

    {"do": "start", "id": 1, "arguments": ["train", …], …}   ->  {"id": 1, "status": 0} when the command has ended
    {"do": "signal", "id": 1, "number": 9}

A fork is safe only while there is one thread, so nothing is computed here; commands compute in the forked process. On
platforms whose libraries do not survive a fork (macOS), every command gets a process of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from whet.utils.signals import SIGNALS

PRELOADED = (
    "datasets",
    "jinja2",
    "pandas",
    "pyarrow.parquet",
    "safetensors.torch",
    "scipy.stats",
    "sklearn.feature_extraction.text",
    "sklearn.linear_model",
    "sklearn.metrics",
    "torch",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.bert.modeling_bert",
    "whet.cli.train",
    "whet.training.checkpoints",
    "whet.engine.fused.stepper",
    "whet.training.loop",
    "whet.engine.dispatch",
    "whet.training.estimate",
    "whet.training.evaluation",
    "whet.training.export",
    "whet.api",
    "whet.runs.report.html",
    "whet.runs.verdict.judge",
    "whet.training.run",
)
POLL_SECONDS = 0.002


def serve() -> None:
    """Serve until the other end closes, then kill everything that was started."""
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # output of libraries must not look like an answer
    # A command unblocks them once its handlers are set; before that it is not yet a command.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    forks = sys.platform == "linux"
    if forks:
        for name in PRELOADED:
            with contextlib.suppress(ImportError):
                import_module(name)
        forks = thread_count() == 1
    running: dict[int, int] = {}
    try:
        replies.write(json.dumps({"ready": True, "forks": forks}) + "\n")
        _answer_requests(running, replies, forks)
    except BrokenPipeError:
        pass  # the client is gone
    for process in running.values():
        os.kill(process, signal.SIGKILL)


def _answer_requests(running: dict[int, int], replies: Any, forks: bool) -> None:
    buffer = b""
    while True:
        readable, _, _ = select.select([0], [], [], POLL_SECONDS if running else None)
        if readable:
            received = os.read(0, 65536)
            if not received:
                return
            *lines, buffer = (buffer + received).split(b"\n")
            for line in lines:
                _obey(json.loads(line), running, forks)
        for number in _reap(running, replies):
            del running[number]


def _obey(request: dict[str, Any], running: dict[int, int], forks: bool) -> None:
    if request["do"] == "signal":
        # Sent only to child processes that were not waited for: their process ids cannot have been reused.
        if request["id"] in running:
            os.kill(running[request["id"]], request["number"])
        return
    if not forks:
        command = [sys.executable, "-m", "whet.tools.selftest.fork_server", json.dumps(request)]
        running[request["id"]] = subprocess.Popen(command, stdin=subprocess.DEVNULL).pid
        return
    process = os.fork()
    if process == 0:
        run(request)
    running[request["id"]] = process


def _reap(running: dict[int, int], replies: Any) -> list[int]:
    ended = []
    for number, process in running.items():
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            replies.write(json.dumps({"id": number, "status": os.waitstatus_to_exitcode(status)}) + "\n")
            ended.append(number)
    return ended


def run(request: dict[str, Any]) -> None:
    """Turn this process into the command, and end with it."""
    status = 1
    try:
        output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for standard, handle in ((0, os.open(os.devnull, os.O_RDONLY)), (1, output), (2, output)):
            os.dup2(handle, standard)
        os.chdir(request["folder"])
        os.environ.update(request.get("environment", {}))
        for name, limit in request.get("limits", {}).items():
            _limit(name, limit)
        count = _watch_files(request) if "watch" in request else None
        status = _call(request) if "call" in request else _command(request["arguments"])
        if count is not None and "count_to" in request:
            with open(request["count_to"], "w", encoding="utf-8") as file:
                file.write(str(count()))
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _limit(name: str, most: int) -> None:
    """Limit the address space: what is in use, and so much more."""
    import resource

    if name == "RLIMIT_AS":
        with open("/proc/self/statm", encoding="ascii") as file:
            most += int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(getattr(resource, name), (most, most))


def _call(request: dict[str, Any]) -> int:
    module, _, name = request["call"].partition(":")
    getattr(import_module(module), name)(*request.get("arguments", []))
    return 0


def _command(arguments: list[str]) -> int:
    from whet.cli.app import install_signal_handlers, main
    from whet.errors import Interrupted

    try:
        install_signal_handlers()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        return main(arguments)
    except KeyboardInterrupt:
        return Interrupted.exit_code


def _watch_files(request: dict[str, Any]) -> Callable[[], int]:
    """Count file operations in a folder; before the operation of a given number, kill -9 this process."""
    under, fatal = os.path.realpath(request["watch"]), request.get("kill_at", -1)
    done = 0

    def boundary() -> None:
        nonlocal done
        done += 1
        if done == fatal:
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _mode, flags = arguments
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if writes and _is_under(path, under):
                boundary()
        elif event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate"):
            # Removing a tree uses names relative to an open folder.
            relative = arguments[-1] != -1 and event in ("os.remove", "os.rmdir")
            if relative or _is_under(arguments[0], under):
                boundary()

    sync = os.fsync

    def counted_sync(handle: Any) -> None:
        boundary()
        sync(handle)

    setattr(os, "fsync", counted_sync)  # noqa: B010
    sys.addaudithook(hook)
    return lambda: done


def _is_under(path: Any, folder: str) -> bool:
    if not isinstance(path, str | bytes | os.PathLike):
        return False
    return os.path.abspath(os.fsdecode(path)).startswith(folder + os.sep)


def thread_count() -> int:
    """Return the number of threads of this process, including those of libraries."""
    return len(os.listdir("/proc/self/task"))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run(json.loads(sys.argv[1]))
    serve()
