"""CUDA streams with one owner at a time.

torch takes streams from a pool of 32 and then starts again at the first. A process with many trainings and checkpoints
would give one stream to two owners. A checkpoint's copy on the stream that another owner captures breaks the capture.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from typing import Any

import torch

_free: dict[tuple[torch.device, int], list[Any]] = defaultdict(list)


def stream_of(owner: object, device: torch.device, priority: int = 0) -> Any:
    """Return a stream that belongs to `owner` as long as it exists."""
    stream = take_stream(device, priority)
    weakref.finalize(owner, give_back_stream, stream, device, priority).atexit = False
    return stream


def take_stream(device: torch.device, priority: int = 0) -> Any:
    """Return a stream that nobody else has until it is given back."""
    try:
        return _free[device, priority].pop()
    except IndexError:
        return torch.cuda.Stream(device, priority=priority)  # type: ignore[no-untyped-call]


def give_back_stream(stream: Any, device: torch.device, priority: int = 0) -> None:
    """Let another owner take this stream. What is queued on it comes first."""
    _free[device, priority].append(stream)
