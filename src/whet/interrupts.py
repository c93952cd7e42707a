"""Signals and deadlines: noticed at once, acted on where it is safe."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any

from whet.errors import Interrupted


class Interrupts:
    """Within this context SIGINT and SIGTERM are remembered; `check` raises. A second signal leaves at once."""

    def __init__(self, max_minutes: float | None = None) -> None:
        self._deadline = None if max_minutes is None else time.monotonic() + max_minutes * 60
        self._minutes = max_minutes
        self._received: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        # Handlers can only be set by the main thread; elsewhere (a notebook's worker) there is only the deadline.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def pending(self) -> str:
        """Why to stop, in words; empty while there is no reason."""
        if self._received is not None:
            return f"{signal.Signals(self._received).name} was received"
        if self._deadline is not None and time.monotonic() >= self._deadline:
            return f"the deadline of {self._minutes:g} minutes has passed"
        return ""

    def check(self) -> None:
        """Raise Interrupted if there is a reason to stop."""
        if reason := self.pending:
            raise Interrupted(f"Interrupted: {reason}.", "Run the same command again to go on.")

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._received is not None:
            os._exit(Interrupted.exit_code)
        self._received = number
