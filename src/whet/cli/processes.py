"""`whet train … --processes N`: runs the command in N processes with torchrun's agent."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from whet.cli.options import ShortHelpCommand
from whet.errors import EnvironmentFault, Interrupted, UsageError, WhetError
from whet.utils.launcher import global_rank, is_launched, world_size
from whet.utils.signals import SIGNALS

ARGUMENTS = "whet.arguments"
CODES = "_WHET_EXIT_CODES"
"""The folder in which processes report their exit codes to the launcher."""
LOST = "-lost"
"""Suffix of the file in which a process names the rank that it lost."""
GRACE_SECONDS = 40
"""Time for processes to save and exit before they are killed; the agent waits a minute at most."""


class RememberingCommand(ShortHelpCommand):
    """A command that stores its arguments, so that they can be passed on."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[ARGUMENTS] = list(args)
        return super().parse_args(ctx, args)


def refuse_other_number(processes: int | None) -> None:
    """Refuse `--processes` in a process that a launcher started with another number."""
    if is_launched() and processes is not None and world_size() != processes:
        raise UsageError(
            f"--processes is {processes}, and a launcher has started {world_size()} already.", "Leave --processes out."
        )


def is_main() -> bool:
    """Return whether this is the main process."""
    return global_rank() == 0


def launch(arguments: list[str], processes: int, restarts: int) -> int:
    """Run `whet train ARGUMENTS` in so many processes on this machine; return their common exit code."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # The agent's warnings describe its own work; whet prints the necessary lines itself.
    for name in logging.root.manager.loggerDict:
        if name.startswith(("torch.distributed.elastic", "torch.multiprocessing")):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    with tempfile.TemporaryDirectory(prefix="whet-") as scratch:
        codes = Path(scratch) / "codes"
        codes.mkdir()
        os.environ[CODES] = str(codes)
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=processes,
            logs_specs=DefaultLogsSpecs(log_dir=scratch),  # otherwise nothing removes the folder
            run_id=f"whet-{os.getpid()}",
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            local_addr="localhost",
            max_restarts=restarts,
            shutdown_timeout=GRACE_SECONDS,
        )
        try:
            elastic_launch(config, sys.executable)("-m", "whet", "train", *arguments)
        except ChildFailedError as error:
            lost = [file.read_text() for file in sorted(codes.glob(f"*{LOST}"))]
            raise _fault(error, restarts, lost) from None
        except SignalException:
            return Interrupted.exit_code
        except OSError as error:
            raise EnvironmentFault(
                f"{processes} processes could not be started: {error.strerror or error}.",
                "Leave --processes out, or raise this user's limit on processes.",
            ) from None
        return max((int(file.read_text()) for file in codes.iterdir()), default=0)


@contextmanager
def report_exit_code_to_launcher() -> Iterator[None]:
    """Report this process's exit code to the launcher in a file.

    An agent restarts every process that fails. An error that would repeat, or a requested stop, must therefore not
    count as a failure. Only a process that lost another one fails, and is restarted with the others.
    """
    from whet.distributed.environment import restarts
    from whet.distributed.group import LostRank

    _forget_code()
    try:
        yield
    except LostRank as error:
        done, most = restarts()
        if _code_file() is not None and done == most:
            _write_exit_file(error.message, LOST)
            error.copied = True  # the launcher prints it, once it has the other process's result
        raise
    except WhetError as error:
        _write_exit_file(str(error.exit_code))
        raise


def exit_code(code: int) -> int:
    """Return the exit code for the caller."""
    if code == Interrupted.exit_code:
        _write_exit_file(str(code))
    file = _code_file()
    return 0 if file is not None and file.exists() else code


def _write_exit_file(word: str, ending: str = "") -> None:
    file = _code_file()
    if file is not None:
        file.with_name(file.name + ending).write_text(word)


def _forget_code() -> None:
    """Remove the exit codes of an earlier part of the run."""
    file = _code_file()
    if file is not None:
        for ending in ("", LOST):
            file.with_name(file.name + ending).unlink(missing_ok=True)


def _code_file() -> Path | None:
    folder = os.environ.get(CODES)
    return Path(folder) / str(global_rank()) if folder and is_launched() else None


def _fault(error: Any, restarts: int, lost: list[str]) -> WhetError:
    """Return which process failed first, and how; or the message of one that only `lost` another."""
    rank, first = error.get_first_failure()
    if -first.exitcode in SIGNALS:  # too early to report by itself
        return Interrupted(f"Interrupted: rank {rank} received {first.signal_name()}.", "Run the same command again.")
    how = f"was killed by {first.signal_name()}" if first.exitcode < 0 else f"failed with exit code {first.exitcode}"
    again = f" after {restarts} restarts" if restarts else ""
    failed = f"Rank {rank} (process {first.pid}) {how}{again}, and the others were stopped."
    return EnvironmentFault(
        lost[0] if lost and first.exitcode > 0 else failed,
        "Run the same command again, or with --restarts 3, to go on from the last whole checkpoint.",
    )
