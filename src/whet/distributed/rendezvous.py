"""Joins the processes that a launcher started together with this one."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import socket
import time
from dataclasses import replace
from datetime import timedelta
from typing import Any

from whet.distributed.environment import several_processes
from whet.distributed.group import ANSWER_TIMEOUT, DistributedContext
from whet.errors import EnvironmentFault
from whet.utils.device import find_device
from whet.utils.launcher import global_rank, world_size

THREAD_EXIT_SECONDS = 0.05
"""Time for gloo's threads to release the last message, for which they need Python."""


CONNECT_TIMEOUT = timedelta(seconds=30)
"""How long to try the launcher's store on this machine; it exists already, unless it was killed."""


def join_processes(device: str = "auto") -> DistributedContext:
    """Join the processes that were started together with this one; a process that was started alone does nothing."""
    return _join_group(on_cpu=find_device(device).type != "cuda") if several_processes() else DistributedContext()


@functools.cache  # processes join once; later calls return the same group
def _join_group(*, on_cpu: bool) -> DistributedContext:
    import torch.distributed as dist
    from accelerate import PartialState

    try:
        state = PartialState(cpu=on_cpu, timeout=ANSWER_TIMEOUT, **_store_for_this_restart())
        # Independent of `on_cpu`: a script may have created the process group itself.
        control = None if dist.get_backend() == "gloo" else dist.new_group(backend="gloo", timeout=ANSWER_TIMEOUT)
    except (RuntimeError, ValueError) as error:
        said = str(error).splitlines()[0].rstrip(".")
        raise EnvironmentFault(
            f"Rank {global_rank()} could not meet the other processes: {said}.",
            "Check MASTER_ADDR and MASTER_PORT, and that every machine reaches the first one.",
        ) from None
    atexit.register(_close_gloo_group, control)
    ranks = DistributedContext(state.process_index, state.num_processes, control)
    return replace(ranks, places=tuple(ranks.gather((socket.gethostname(), os.getpid()))))


def _close_gloo_group(control: Any) -> None:
    """End the gloo group while Python still runs: its threads need Python and would abort the process later.

    The threads end only if nothing refers to the group, which a sharded model does, so they get a moment. A default
    group of NCCL is left alone: ending it would wait for processes that may be gone.
    """
    import torch.distributed as dist

    if dist.is_initialized():
        time.sleep(THREAD_EXIT_SECONDS)
        with contextlib.suppress(Exception):
            dist.destroy_process_group(control)


def _store_for_this_restart() -> dict[str, Any]:
    """Return a separate part of torchrun's store for each restart.

    The store of torchrun's agent survives restarts and holds addresses of dead processes, which restarted ones would
    wait for. On one machine the number of restarts is the same for all processes, so it can name the part.
    """
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    one_machine = os.environ.get("GROUP_WORLD_SIZE") == "1"
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or not one_machine:
        return {}
    rank, world = global_rank(), world_size()
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(address, port, world, is_master=False, timeout=CONNECT_TIMEOUT)
    store.set_timeout(ANSWER_TIMEOUT)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return {"store": PrefixStore(f"whet-attempt-{attempt}", store), "rank": rank, "world_size": world}
