"""A second stream for work that nothing in the backward pass waits for, such as gradients of weights."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from whet.utils.cuda_streams import stream_of

BEHIND = 8
"""How many operations the side stream may lag behind: less than two layers of four or five operations each."""

# torch has no type annotations for these.
_cuda: Any = torch.cuda


class SideStream:
    """Runs work beside the current stream, and keeps the memory that the work reads until it has been read."""

    def __init__(self, device: torch.device) -> None:
        self.stream = stream_of(self, device)
        self._being_read: deque[tuple[torch.cuda.Event, tuple[Tensor, ...]]] = deque()

    def run(self, work: Callable[[], None], *read: Tensor) -> None:
        """Run work that may begin now and that nothing waits for before `join`."""
        main = torch.cuda.current_stream()
        self.stream.wait_stream(main)
        # The main stream may reuse this memory, so the tensors are kept until they have been read.
        self._being_read.append((self._enqueue(work), read))
        if len(self._being_read) > BEHIND:
            main.wait_event(self._being_read.popleft()[0])

    def begin(self, works: Sequence[Callable[[], None]]) -> list[torch.cuda.Event]:
        """Run works one after another at the begin of a step; each event says that one of them is done.

        They read nothing that may be freed. What a step that failed has left here is forgotten.
        """
        self._being_read.clear()
        self.stream.wait_stream(torch.cuda.current_stream())
        return [self._enqueue(work) for work in works]

    def join(self) -> None:
        """Make the current stream wait for everything."""
        torch.cuda.current_stream().wait_stream(self.stream)
        self._being_read.clear()

    def _enqueue(self, work: Callable[[], None]) -> Any:
        with torch.cuda.stream(self.stream):
            work()
        done = _cuda.Event()
        done.record(self.stream)
        return done
