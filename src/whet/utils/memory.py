"""Recognises out-of-memory errors and measures peak memory."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

from whet.errors import EnvironmentFault

if TYPE_CHECKING:
    import torch

WORDS = (
    "can't allocate memory",
    "Cannot allocate memory",
    "out of memory",
    "not enough memory",
    "bad_alloc",
    "could not create a primitive",
)

COMPILED_PRODUCTS = 128
"""How many compiled products a server keeps: its memory is flat after some hundred requests, and it is as fast."""


def is_memory_error(error: BaseException) -> bool:
    """Return whether this is an out-of-memory error of the device or the host, in any of its forms."""
    import torch

    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(word in str(error) for word in WORDS)


def no_room_for_one_row(error: BaseException) -> EnvironmentFault:
    """The error if a single row does not fit."""
    return EnvironmentFault(
        f"One row at a time does not fit into memory: {str(error).splitlines()[0][:200]}.",
        "Try a shorter --max-length or a smaller --model.",
    )


def no_room_together(error: BaseException, rows: int) -> EnvironmentFault:
    """The error if the processes of a sharded model cannot halve a batch on their own."""
    return EnvironmentFault(
        f"{rows} rows at a time do not fit into memory: {str(error).splitlines()[0][:200]}.",
        f"With --shard rows are not halved by themselves: try --batch-size {max(1, rows // 2)} --accumulate 2.",
    )


def no_room_to_evaluate_together(half: int) -> EnvironmentFault:
    """The error for an evaluation batch of a sharded model; half of its rows may fit."""
    return EnvironmentFault(
        "An evaluation batch does not fit into memory.",
        f"With --shard rows are not halved by themselves: try --eval-batch-size {half}.",
    )


def free_cached_memory(device: torch.device) -> None:
    """Return unused memory to the system, before a smaller batch is tried.

    On the CPU freed memory stays with the allocator. oneDNN needs fresh pages for its code and cannot use it.
    """
    import ctypes
    import sys

    import torch

    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif sys.platform == "linux" and hasattr(ctypes.CDLL(None), "malloc_trim"):
        ctypes.CDLL(None).malloc_trim(0)


def bound_compiled_code() -> None:
    """Limit what oneDNN and torch's layer above it keep of compiled matrix products, one for each shape.

    Both hold a thousand by default, of up to half a megabyte: a server of texts of all lengths would grow for hours.
    They read the limits at their first product. A user's own limits are kept.
    """
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, str(COMPILED_PRODUCTS))


def resident_bytes() -> int | None:
    """Memory of this process that is resident; None where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return None


def peak_memory_mb(device: torch.device) -> float:
    """Peak memory of this process: the GPU's if it computes there, else the host's."""
    import resource
    import sys

    import torch

    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20
