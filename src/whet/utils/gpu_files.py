"""Whether this machine can have a CUDA device at all, without torch: its import takes longer than the question."""

from __future__ import annotations

import os
import sys
from glob import glob

from whet.errors import UsageError

FILES = ("/dev/nvidia[0-9]*", "/dev/dxg", "/dev/kfd", "/dev/nvhost-gpu", "/dev/nvgpu*", "/dev/nvmap")
"""What the drivers of NVIDIA (also under Windows' Linux, and on small boards) and AMD put there."""


def no_cuda(name: str) -> UsageError:
    """The error of a device that is not there, whoever finds it."""
    return UsageError(f"device is {name!r} and torch sees no CUDA device.", "Leave --device out to use the CPU.")


def refuse_impossible(device: str) -> None:
    """Raise where it is certain that torch would not find this device; it is asked itself in the end."""
    if device.startswith("cuda") and not _may_have_cuda():
        raise no_cuda(device)


def _may_have_cuda() -> bool:
    if sys.platform == "darwin" or os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return False
    return not sys.platform.startswith("linux") or any(map(glob, FILES))
