"""Computes the rows of many requests together, with a bounded queue and one thread.

A batch takes a part of each request in turn, so a request of thousands of rows does not block a single text. While a
batch is computed, the next one fills. The thread waits for more rows only if the previous batch had several requests.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field

import numpy as np

from whet.errors import WhetError
from whet.utils.arrays import Array

Compute = Callable[[list[str], list[str] | None], Array]
"""Maps texts, with pairs if there are any, to logits [rows, outputs]."""

LINGER_SECONDS = 0.003
PART_ROWS = 64
"""The largest number of rows of one request in a batch while others wait."""


class QueueFull(WhetError):
    """Too many rows are waiting; try again later."""


class DeadlinePassed(WhetError):
    """The deadline of a request passed before its rows were computed."""


@dataclass(eq=False)
class Request:
    """The rows of one client, and the future of their logits."""

    texts: Sequence[str]
    pairs: Sequence[str] | None
    deadline: float
    """On the clock of `time.monotonic`."""
    logits: Future[Array] = field(default_factory=Future)
    taken: int = 0
    parts: list[Array] = field(default_factory=list)

    @property
    def left(self) -> int:
        return len(self.texts) - self.taken

    def settle(self, result: Array | BaseException) -> None:
        """Give the client its result, unless it has left."""
        try:
            if isinstance(result, BaseException):
                self.logits.set_exception(result)
            else:
                self.logits.set_result(result)
        except InvalidStateError:
            pass  # cancelled in the meantime


Part = tuple[Request, int, int]
"""Rows start to end of a request."""


class Batcher:
    """The queue and its thread. `submit` never waits; the future it returns can be cancelled."""

    def __init__(
        self, compute: Compute, *, most_waiting: int = 16_384, batch_rows: int = 512, batch_characters: int = 8192
    ) -> None:
        """`most_waiting` limits the rows in the queue; a batch ends at `batch_rows` or before `batch_characters`."""
        self._compute = compute
        self._most_waiting, self._batch_rows, self._batch_characters = most_waiting, batch_rows, batch_characters
        self._changed = threading.Condition()
        self._queue: deque[Request] = deque()
        self._waiting = 0
        self._closing = False
        self._together = 0
        self.batch_sizes: dict[int, int] = {}
        """Number of batches with at most 1, 2, 4, 8 … rows."""
        self.batches = self.rows = 0
        self._thread = threading.Thread(target=self._run, name="whet-batches", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Rows in the queue."""
        return self._waiting

    def submit(self, texts: Sequence[str], pairs: Sequence[str] | None, seconds: float) -> Future[Array]:
        """Return the logits of these rows, or DeadlinePassed after so many seconds; raise QueueFull if there is no
        room."""
        request = Request(texts, pairs, time.monotonic() + seconds)
        with self._changed:
            if self._closing or self._waiting + len(texts) > self._most_waiting:
                raise QueueFull(f"{self._waiting} rows wait, and {self._most_waiting} may.", "Try again later.")
            self._queue.append(request)
            self._waiting += len(texts)
            self._changed.notify_all()
        return request.logits

    def close(self) -> None:
        """Compute the waiting rows, take no more, and end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while parts := self._take():
            self._answer(parts)

    def _take(self) -> list[Part]:
        """Return the next batch; an empty one if the queue is closed and empty."""
        with self._changed:
            while True:
                while not self._queue and not self._closing:
                    self._changed.wait()
                self._linger()
                parts = self._fill()
                if parts or self._closing:
                    return parts

    def _linger(self) -> None:
        """Clients that were answered together send again together: wait shortly for as many as last time."""
        until = time.monotonic() + LINGER_SECONDS
        while 0 < len(self._queue) < self._together and not self._closing:
            remaining = until - time.monotonic()
            if remaining <= 0 or not self._changed.wait(remaining):
                return

    def _fill(self) -> list[Part]:
        parts: list[Part] = []
        rows = characters = 0
        now = time.monotonic()
        asked = set()
        while self._queue and rows < self._batch_rows:
            request = self._queue.popleft()
            if self._given_up(request, now):
                continue
            if parts and (request.pairs is None) != (parts[0][0].pairs is None):
                self._queue.appendleft(request)
                break
            start, stop = request.taken, request.taken
            limit = min(len(request.texts), start + min(PART_ROWS, self._batch_rows - rows))
            while stop < limit:
                size = len(request.texts[stop]) + (len(request.pairs[stop]) if request.pairs else 0)
                first = not parts and stop == start  # always taken, whatever its length
                if not first and characters + size > self._batch_characters:
                    break
                characters, stop = characters + size, stop + 1
            if stop > start:
                parts.append((request, start, stop))
                asked.add(id(request))
                rows, request.taken = rows + stop - start, stop
                self._waiting -= stop - start
            if request.left:
                if stop < limit:  # the batch is full; this one is first in the next
                    self._queue.appendleft(request)
                    break
                self._queue.append(request)
        self._together = len(asked)
        return parts

    def _given_up(self, request: Request, now: float) -> bool:
        """Return whether no client waits for the request any more; then its rows leave the queue."""
        if not request.logits.done() and now < request.deadline:
            return False
        self._waiting -= request.left
        if not request.logits.done():
            request.settle(DeadlinePassed("The request's deadline came before its rows were computed."))
        return True

    def _answer(self, parts: list[Part]) -> None:
        try:
            found = self._logits(parts)
        except Exception as error:
            if len(parts) > 1:  # an error of one request does not reach the others
                for part in parts:
                    self._answer([part])
            else:
                parts[0][0].settle(error)
            return
        start = 0
        for request, begin, end in parts:
            request.parts.append(found[start : start + end - begin])
            start += end - begin
            if end == len(request.texts):
                request.settle(request.parts[0] if len(request.parts) == 1 else np.concatenate(request.parts))

    def _logits(self, parts: list[Part]) -> Array:
        texts = [text for request, begin, end in parts for text in request.texts[begin:end]]
        paired = parts[0][0].pairs is not None
        pairs = [pair for request, begin, end in parts for pair in (request.pairs or ())[begin:end]]
        found = self._compute(texts, pairs if paired else None)
        self.batches, self.rows = self.batches + 1, self.rows + len(texts)
        size = 1 << (len(texts) - 1).bit_length()
        self.batch_sizes[size] = self.batch_sizes.get(size, 0) + 1
        return found
