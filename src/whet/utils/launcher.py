"""Reads the rank of this process and the number of processes from the environment variables of a launcher."""

from __future__ import annotations

import os


def is_launched() -> bool:
    """Whether a launcher started this process."""
    return "LOCAL_RANK" in os.environ


def global_rank() -> int:
    """The rank among the processes of all machines; 0 for a process that was started alone."""
    return int(os.environ.get("RANK") or "0")


def local_rank() -> int:
    """The rank among the processes of this machine."""
    return int(os.environ.get("LOCAL_RANK") or "0")


def world_size() -> int:
    """The number of processes on all machines."""
    return int(os.environ.get("WORLD_SIZE") or "1")
