"""Running out of memory, under the names that has, and how much was used."""

from __future__ import annotations

import errno

import torch

from whet.errors import EnvironmentFault

WORDS = (
    "can't allocate memory",
    "Cannot allocate memory",
    "out of memory",
    "not enough memory",
    "bad_alloc",
    "could not create a primitive",
)


def is_memory_error(error: BaseException) -> bool:
    """Whether this is the device or the host running out of memory, under any of the names that has."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(word in str(error) for word in WORDS)


def no_room_for_one_row(error: BaseException) -> EnvironmentFault:
    """The end of halving."""
    return EnvironmentFault(
        f"One row at a time does not fit into memory: {str(error).splitlines()[0][:200]}.",
        "Try a shorter --max-length or a smaller --model.",
    )


def no_room_together(error: BaseException, rows: int) -> EnvironmentFault:
    """Where one process cannot take fewer rows without the others."""
    return EnvironmentFault(
        f"{rows} rows at a time do not fit into memory: {str(error).splitlines()[0][:200]}.",
        f"With --shard rows are not halved by themselves: try --batch-size {max(1, rows // 2)} --accumulate 2.",
    )


def no_room_to_evaluate_together(half: int) -> EnvironmentFault:
    """The same for an evaluation, half of whose batch might fit."""
    return EnvironmentFault(
        "An evaluation batch does not fit into memory.",
        f"With --shard rows are not halved by themselves: try --eval-batch-size {half}.",
    )


def free_cached_memory(device: torch.device) -> None:
    """What is free but still held, before something smaller is tried.

    On the CPU freed memory stays with the allocator, where nobody but itself can have it: oneDNN needs fresh pages for
    its code.
    """
    import ctypes
    import sys

    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif sys.platform == "linux" and hasattr(ctypes.CDLL(None), "malloc_trim"):
        ctypes.CDLL(None).malloc_trim(0)


def peak_memory_mb(device: torch.device) -> float:
    """Peak memory of this process: on the GPU where it computes there, else of the host."""
    import resource
    import sys

    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20
