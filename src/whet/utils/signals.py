"""Signals and deadlines: noticed at once, acted on where it is safe.

While there is something to lose, a handler only remembers; the loop asks between steps and batches. While there is
nothing to lose (data is being read, a model is being fetched) a signal leaves where it arrives, like Ctrl-C anywhere.
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
# A launcher passes on what the terminal has sent to all of its processes already: that is one signal, not two.
ECHO_SECONDS = 5.0
RESEND_SECONDS = 0.05
_early: list[int] = []


class SignalArrived(KeyboardInterrupt):
    """A signal that leaves where it arrived.

    Never a plain KeyboardInterrupt: where that passes through an `exec` (every dataclass has one), `python -m whet`
    ends by SIGINT, whatever was caught and whatever code it leaves with.
    """

    def __init__(self, number: int, forget: Callable[[], None]) -> None:
        """`forget` makes the handler wait for its first signal again."""
        super().__init__(signal.Signals(number).name)
        self.number, self.forget = number, forget


Hook = Callable[[Any], object]
_waiting: list[int] = []
"""A signal that will be sent again."""


def resend_lost_signal(otherwise: Hook) -> Hook:
    """For `sys.unraisablehook`: Python drops what is raised where an object is taken away, as imports often do."""

    def hear(lost: Any) -> None:
        if isinstance(lost.exc_value, SignalArrived):
            lost.exc_value.forget()
            _send_again(lost.exc_value.number)
        else:
            otherwise(lost)

    return hear


def defer_during_torch_import(number: int, frame: FrameType | None) -> bool:
    """Whether a handler must not raise here, because torch is being imported: its C++ ends the process by an abort
    where that happens. The signal comes again in a moment; another one meanwhile is a second one."""
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
    """A moment later, by another thread: here it would be dropped."""

    def send() -> None:
        _waiting.clear()
        os.kill(os.getpid(), number)

    _waiting.append(number)
    again = threading.Timer(RESEND_SECONDS, send)
    again.daemon = True
    again.start()


def remember(number: int) -> None:
    """A signal that came before there was a run to stop. One of several processes first meets the others, and then
    tells them: if it left without a word, they would wait for it."""
    _early.append(number)


class Interrupts:
    """Within this context SIGINT and SIGTERM are remembered; `check` raises. A second signal leaves at once."""

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
        # Handlers can only be set by the main thread; elsewhere (a notebook's worker) there is only the deadline.
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
            # It arrived between leaving `at_once` and the line that ends it.
            self.check()

    @property
    def pending(self) -> str:
        """Why to stop, in words; empty while there is no reason."""
        if self._received is not None:
            return f"{signal.Signals(self._received).name} was received"
        if self._past_deadline():
            return f"the deadline of {self._minutes:g} minutes has passed"
        return ""

    @property
    def reason(self) -> str:
        """`interrupted` or `deadline`, as the run's End record says it."""
        return "interrupted" if self._received is not None or not self._past_deadline() else "deadline"

    def check(self) -> None:
        """Raise Interrupted if there is a reason to stop."""
        if reason := self.pending:
            raise Interrupted(f"Interrupted: {reason}.", "Run the same command again to go on.") from None

    def check_on_all_ranks(self, any_rank: Callable[[bool], bool]) -> None:
        """Agreed here by all processes, at the same step: a handler of one of them could not do that."""
        if any_rank(bool(self.pending)):
            self.check()
            raise Interrupted(*STOPPED_ELSEWHERE)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Inside there is nothing to save: a signal leaves where it arrives."""
        self.check()
        try:
            self._at_once = True
            yield
        except BaseException:
            # Libraries wrap what a signal raised in errors of their own: the signal is the reason.
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
