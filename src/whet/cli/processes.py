"""`whet train … --processes N`: the same command in N processes, started and watched by torchrun's own agent."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

import click

from whet.errors import EnvironmentFault, Interrupted

ARGUMENTS = "whet.arguments"
GRACE_SECONDS = 40
"""What processes get to save and leave before they are killed; a minute is the most that may pass."""


class RememberingCommand(click.Command):
    """A command that can be given again as it was given."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[ARGUMENTS] = list(args)
        return super().parse_args(ctx, args)


def is_started() -> bool:
    """Whether a launcher started this process already."""
    return "LOCAL_RANK" in os.environ


def is_main() -> bool:
    """Whether this process speaks for the others."""
    return int(os.environ.get("RANK") or "0") == 0


def launch(arguments: list[str], processes: int, restarts: int) -> int:
    """Run `whet train ARGUMENTS` in so many processes of this machine; the exit code that all of them agree on."""
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # Its warnings tell how it goes about its work; what a person needs to know is said below.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=f"whet-{os.getpid()}",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=restarts,
        shutdown_timeout=GRACE_SECONDS,
    )
    try:
        codes = elastic_launch(config, work)(arguments)
    except ChildFailedError as error:
        raise _fault(error, restarts) from None
    except SignalException:
        return Interrupted.exit_code
    return max(codes.values(), default=0)


def work(arguments: list[str]) -> int:
    """One process. What it returns is final; only what it dies of is started again."""
    from whet.cli import leave_when_terminated, main
    from whet.engine.ranks import LostRank

    leave_when_terminated()
    code = main(["train", *arguments], retried=LostRank)
    sys.stdout.flush()
    return code


def _fault(error: Any, restarts: int) -> EnvironmentFault:
    rank, first = error.get_first_failure()
    how = f"was killed by {first.signal_name()}" if first.exitcode < 0 else f"failed with exit code {first.exitcode}"
    again = f" after {restarts} restarts" if restarts else ""
    return EnvironmentFault(
        f"Rank {rank} (process {first.pid}) {how}{again}, and the others were stopped.",
        "The last checkpoint is whole. Run the same command again, or with --restarts 3, to go on from it.",
    )
