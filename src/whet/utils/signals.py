"""Handles signals and deadlines: noticed at once, acted on where it is safe.

While work could be lost, a handler only records the signal, and the loop checks between steps and batches. Before
that (reading data, loading a model) a signal raises where it arrives, like Ctrl-C.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

from whet.errors import Interrupted
from whet.utils.launcher import is_launched

SIGNALS = (signal.SIGINT, signal.SIGTERM)
STOPPED_ELSEWHERE = (
    "Interrupted: another process of this run was told to stop.",
    "Run the same command again to go on.",
)
# A launcher forwards signals that the terminal has already sent to all of its processes: both count as one.
ECHO_SECONDS = 5.0
RESEND_SECONDS = 0.05
_early: list[int] = []


class SignalArrived(KeyboardInterrupt):
    """Raised where a signal arrived.

    This is not a plain KeyboardInterrupt: if that passes through an `exec` (every dataclass has one), `python -m
    whet` ends by SIGINT even if the exception was caught.
    """

    def __init__(self, number: int, forget: Callable[[], None]) -> None:
        """`forget` makes the handler treat the next signal as the first one."""
        super().__init__(signal.Signals(number).name)
        self.number, self.forget = number, forget


Hook = Callable[[Any], object]
_waiting: list[int] = []
"""A signal that will be sent again."""


def resend_lost_signal(otherwise: Hook) -> Hook:
    """Return a hook for `sys.unraisablehook`. Python discards exceptions raised in `__del__`; a lost signal is sent
    again."""

    def hear(lost: Any) -> None:
        if isinstance(lost.exc_value, SignalArrived):
            lost.exc_value.forget()
            _send_again(lost.exc_value.number)
        else:
            otherwise(lost)

    return hear


def defer_during_torch_import(number: int, frame: FrameType | None) -> bool:
    """Return whether a handler must not raise, because torch is being imported: its C++ code would abort the process.
    The signal is sent again shortly. A further signal ends the process."""
    if not _imports_torch(frame):
        return False
    if not _waiting:
        _send_again(number)
    elif not is_launched():
        os._exit(Interrupted.exit_code)
    return True


def _imports_torch(frame: FrameType | None) -> bool:
    while frame is not None:
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        if package == "torch" and frame.f_code.co_name == "<module>":
            return True
        frame = frame.f_back
    return False


def _send_again(number: int) -> None:
    """Send the signal again a moment later, from another thread; sent here it would be lost."""

    def send() -> None:
        _waiting.clear()
        os.kill(os.getpid(), number)

    _waiting.append(number)
    again = threading.Timer(RESEND_SECONDS, send)
    again.daemon = True
    again.start()


def remember(number: int) -> None:
    """A signal that arrived before the run started. A rank with several processes joins the others first and then
    reports it: if it left silently, they would wait for it."""
    _early.append(number)


class Interrupts:
    """Records SIGINT and SIGTERM in this context; `check` raises. A second signal ends the process at once."""

    def __init__(self, max_minutes: float | None = None) -> None:
        self._deadline = None if max_minutes is None else time.monotonic() + max_minutes * 60
        self._minutes = max_minutes
        self._received: int | None = None
        self._when = 0.0
        self._at_once = False
        self._before: dict[int, Any] = {}
        self._hook: Any = None

    def __enter__(self) -> Interrupts:
        if _early:
            self._received, self._when = _early[0], time.monotonic()
        # Only the main thread can set handlers; in another one (a notebook's worker) only the deadline works.
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self._before[number] = signal.signal(number, self._receive)
            self._hook = sys.unraisablehook
            sys.unraisablehook = resend_lost_signal(self._hook)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._before:
            sys.unraisablehook = self._hook
        if isinstance(error, KeyboardInterrupt) and self._received is not None:
            # The signal arrived between leaving `at_once` and the end of its block.
            self.check()

    @property
    def pending(self) -> str:
        """The reason to stop, in words; empty if there is none."""
        if self._received is not None:
            return f"{signal.Signals(self._received).name} was received"
        if self._past_deadline():
            return f"the deadline of {self._minutes:g} minutes has passed"
        return ""

    @property
    def reason(self) -> str:
        """`interrupted` or `deadline`, as in the run's End record."""
        return "interrupted" if self._received is not None or not self._past_deadline() else "deadline"

    def check(self) -> None:
        """Raise Interrupted if there is a reason to stop."""
        if reason := self.pending:
            raise Interrupted(f"Interrupted: {reason}.", "Run the same command again to go on.") from None

    def check_on_all_ranks(self, any_rank: Callable[[bool], bool]) -> None:
        """Raise on all ranks at the same step if any of them has a reason to stop."""
        if any_rank(bool(self.pending)):
            self.check()
            raise Interrupted(*STOPPED_ELSEWHERE)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Context in which no work can be lost: a signal raises where it arrives."""
        self.check()
        try:
            self._at_once = True
            yield
        except BaseException:
            # Libraries may wrap the exception in their own: the signal is the real reason.
            if self._received is not None:
                self.check()
            raise
        finally:
            self._at_once = False
        self.check()

    def _past_deadline(self) -> bool:
        return self._deadline is not None and time.monotonic() >= self._deadline

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._at_once and self._received is None and defer_during_torch_import(number, frame):
            return
        if self._received is not None:
            if is_launched() and time.monotonic() - self._when < ECHO_SECONDS:
                return
            os._exit(Interrupted.exit_code)
        self._received, self._when = number, time.monotonic()
        if self._at_once:
            raise SignalArrived(number, self._forget)

    def _forget(self) -> None:
        self._received = None
