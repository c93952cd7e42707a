"""Reads what a launcher put into the environment: rank, number of processes, restarts."""

from __future__ import annotations

import os
from typing import NamedTuple

from whet.errors import UsageError
from whet.utils.launcher import global_rank, local_rank, world_size


def restarts() -> tuple[int, int]:
    """How often an agent has started this process again, and how often it will at most."""
    done, most = (int(os.environ.get(f"TORCHELASTIC_{name}") or "0") for name in ("RESTART_COUNT", "MAX_RESTARTS"))
    return done, most


class Launched(NamedTuple):
    """Which process this is, as its launcher wrote it into the environment."""

    rank: int = 0
    local_rank: int = 0
    """Among those on this machine."""
    world: int = 1


def launched() -> Launched:
    """This process among those that a launcher (torchrun, accelerate, `--processes`) started; none have to meet."""
    return Launched(global_rank(), local_rank(), world_size()) if world_size() > 1 else Launched()


def require_several() -> None:
    if not several_processes():
        raise UsageError(
            "--shard splits a model over processes, and there is one.", "Add --processes 2, or leave it out."
        )


def several_processes() -> bool:
    """Whether a launcher started this one among others."""
    return launched().world > 1
