"""Reads what a launcher put into the environment: rank, number of processes, restarts."""

from __future__ import annotations

import os
from typing import NamedTuple

from whet.errors import UsageError
from whet.utils.launcher import global_rank, local_rank, world_size


def restarts() -> tuple[int, int]:
    """The number of times that the agent has restarted this process, and its limit."""
    done, most = (int(os.environ.get(f"TORCHELASTIC_{name}") or "0") for name in ("RESTART_COUNT", "MAX_RESTARTS"))
    return done, most


class Launched(NamedTuple):
    """The rank of this process and the number of processes, as the launcher set them."""

    rank: int = 0
    local_rank: int = 0
    """The rank on this machine."""
    world: int = 1


def launched() -> Launched:
    """Return the rank and world size that a launcher (torchrun, accelerate, `--processes`) set; no process has to
    join yet."""
    return Launched(global_rank(), local_rank(), world_size()) if world_size() > 1 else Launched()


def require_several() -> None:
    if not several_processes():
        raise UsageError(
            "--shard splits a model over processes, and there is one.", "Add --processes 2, or leave it out."
        )


def several_processes() -> bool:
    """Return whether a launcher started several processes."""
    return launched().world > 1
