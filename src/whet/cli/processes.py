"""`whet train … --processes N`: the same command in N processes, started and watched by torchrun's own agent."""

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
"""The folder in which processes tell the launcher what they ended with."""
LOST = "-lost"
"""Ends the name of the file in which a process says whom it lost."""
GRACE_SECONDS = 40
"""What processes get to save and leave before they are killed; a minute is the most that may pass."""


class RememberingCommand(ShortHelpCommand):
    """A command that can be given again as it was given."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[ARGUMENTS] = list(args)
        return super().parse_args(ctx, args)


def refuse_other_number(processes: int | None) -> None:
    """`--processes` is for the first process; those that a launcher started have a number already."""
    if is_launched() and processes is not None and world_size() != processes:
        raise UsageError(
            f"--processes is {processes}, and a launcher has started {world_size()} already.", "Leave --processes out."
        )


def is_main() -> bool:
    """Whether this process speaks for the others."""
    return global_rank() == 0


def launch(arguments: list[str], processes: int, restarts: int) -> int:
    """Run `whet train ARGUMENTS` in so many processes of this machine; the exit code that all of them agree on."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # Its warnings tell how it goes about its work; what a person needs to know is said below.
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
            logs_specs=DefaultLogsSpecs(log_dir=scratch),  # else a folder that nobody removes
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
    """What a process ends with goes to the launcher by a file.

    An agent starts again whatever fails. What would only fail again, and what was asked to stop, must be no failure
    to it; only a process that lost the others fails, and is started again with them.
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
            error.copied = True  # the launcher says it: by then it knows how the other one ended
        raise
    except WhetError as error:
        _write_exit_file(str(error.exit_code))
        raise


def exit_code(code: int) -> int:
    """The code for whoever started this process."""
    if code == Interrupted.exit_code:
        _write_exit_file(str(code))
    file = _code_file()
    return 0 if file is not None and file.exists() else code


def _write_exit_file(word: str, ending: str = "") -> None:
    file = _code_file()
    if file is not None:
        file.with_name(file.name + ending).write_text(word)


def _forget_code() -> None:
    """Of a part of the run that came before this one."""
    file = _code_file()
    if file is not None:
        for ending in ("", LOST):
            file.with_name(file.name + ending).unlink(missing_ok=True)


def _code_file() -> Path | None:
    folder = os.environ.get(CODES)
    return Path(folder) / str(global_rank()) if folder and is_launched() else None


def _fault(error: Any, restarts: int, lost: list[str]) -> WhetError:
    """Which process failed first, and how; or what one says that only `lost` another."""
    rank, first = error.get_first_failure()
    if -first.exitcode in SIGNALS:  # so early that it could not answer by itself
        return Interrupted(f"Interrupted: rank {rank} received {first.signal_name()}.", "Run the same command again.")
    how = f"was killed by {first.signal_name()}" if first.exitcode < 0 else f"failed with exit code {first.exitcode}"
    again = f" after {restarts} restarts" if restarts else ""
    failed = f"Rank {rank} (process {first.pid}) {how}{again}, and the others were stopped."
    return EnvironmentFault(
        lost[0] if lost and first.exitcode > 0 else failed,
        "Run the same command again, or with --restarts 3, to go on from the last whole checkpoint.",
    )
