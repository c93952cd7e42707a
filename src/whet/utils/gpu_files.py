"""Checks without torch whether this machine can have a CUDA device: importing torch takes longer than the check."""

from __future__ import annotations

import os
import sys
from glob import glob

from whet.errors import UsageError

FILES = ("/dev/nvidia[0-9]*", "/dev/dxg", "/dev/kfd", "/dev/nvhost-gpu", "/dev/nvgpu*", "/dev/nvmap")
"""Device files of the NVIDIA drivers (also under WSL and on small boards) and of the AMD drivers."""


def no_cuda(name: str) -> UsageError:
    """The error for a CUDA device that does not exist."""
    return UsageError(f"device is {name!r} and torch sees no CUDA device.", "Leave --device out to use the CPU.")


def refuse_impossible(device: str) -> None:
    """Raise if torch certainly cannot find this device; otherwise torch decides later."""
    if device.startswith("cuda") and not _may_have_cuda():
        raise no_cuda(device)


def _may_have_cuda() -> bool:
    if sys.platform == "darwin" or os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return False
    return not sys.platform.startswith("linux") or any(map(glob, FILES))
