"""Runs a function on a background thread. If the system refuses a thread, the caller runs the function.

A process that is short of memory may be refused a thread just when it saves its work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from types import TracebackType
from typing import Self, TypeVar

Result = TypeVar("Result")
REFUSED = "can't start new thread"
"""Part of the message of Python's RuntimeError for a refused thread."""


def run_in_background(name: str, work: Callable[..., Result], *arguments: object) -> Future[Result]:
    """Start the function; the future holds its result or its exception."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(work(*arguments))
        except BaseException as error:
            future.set_exception(error)

    try:
        threading.Thread(target=run, name=name).start()
    except RuntimeError as error:
        if REFUSED not in str(error):
            raise
        run()
    return future


class BackgroundTasks:
    """Runs several background tasks; leaving the `with` block waits for all of them."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._begun: list[Future[object]] = []

    def submit(self, work: Callable[..., Result], *arguments: object) -> Future[Result]:
        future = run_in_background(self._name, work, *arguments)
        self._begun.append(future)  # type: ignore[arg-type]
        return future

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        wait(self._begun)
