"""Reads what a launcher put into the environment: rank, number of processes, restarts."""

from __future__ import annotations

import os
from typing import NamedTuple

from whet.errors import UsageError


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
    world = int(os.environ.get("WORLD_SIZE") or "1")
    if world <= 1:
        return Launched()
    return Launched(int(os.environ.get("RANK") or "0"), int(os.environ.get("LOCAL_RANK") or "0"), world)


def require_several() -> None:
    if not several_processes():
        raise UsageError(
            "--shard splits a model over processes, and there is one.", "Add --processes 2, or leave it out."
        )


def several_processes() -> bool:
    """Whether a launcher started this one among others."""
    return launched().world > 1
