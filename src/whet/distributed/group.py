"""The processes of one run, and their collectives.

Every process computes the same plan from the same data. They exchange the sums of gradients, the logits of an
evaluation, and flags: was a rank told to stop, did a rank fail. With one process every method here does nothing.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from whet.distributed.environment import restarts
from whet.errors import ArtifactError, DataError, Diverged, EnvironmentFault, Interrupted, UsageError, WhetError

if TYPE_CHECKING:
    from torch import Tensor

ANSWER_TIMEOUT = timedelta(minutes=3)
"""How long a process waits for the others during training, where all take about the same time."""
SAVE_TIMEOUT = timedelta(minutes=30)
"""How long it waits if the main process may be writing a checkpoint or computing metrics."""
WORK_TIMEOUT = timedelta(hours=6)
"""How long it waits if another process may be reading or tokenizing all of the data."""

_ERROR_KEY = "whet-left"
_KINDS: dict[str, type[WhetError]] = {
    kind.__name__: kind for kind in (UsageError, DataError, ArtifactError, EnvironmentFault, Diverged, Interrupted)
}


class LostRank(EnvironmentFault):
    """Another process does not answer: it was killed, or the connection is lost."""


@dataclass(frozen=True)
class DistributedContext:
    """This process among `world` processes. Rank 0 is the main process, the only one that writes."""

    rank: int = 0
    world: int = 1
    control: Any = None
    """The process group for objects and numbers in host memory; gradients use the default group."""
    places: Sequence[tuple[str, int]] = ()
    """Host name and process id by rank, to find a process that stopped answering."""

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    # Tensors and arrays

    def sum_in_place(self, tensors: Sequence[Tensor]) -> None:
        """Sum each tensor over all processes, in place; the result has the same bits everywhere."""
        if self.world == 1:
            return
        import torch.distributed as dist

        with self.translate_connection_errors():
            for tensor in tensors:
                dist.all_reduce(tensor)

    def gather_rows(self, part: Any, places: Any, count: int) -> Any:
        """Join the rows that the processes computed: this one's are `part`, at the indices `places` of `count`."""
        import numpy as np

        if self.world == 1:
            whole = np.empty((count, *part.shape[1:]), part.dtype)
            whole[places] = part
            return whole
        import torch
        import torch.distributed as dist

        whole = np.zeros((count, *part.shape[1:]), part.dtype)
        whole[places] = part
        tensor = torch.from_numpy(whole)
        with self.translate_connection_errors():
            dist.all_reduce(tensor, group=self.control)  # every index is nonzero in one process only
        return whole

    def broadcast_tensors(self, tensors: Iterable[Tensor]) -> None:
        """Copy the main process's bits into each tensor, in place."""
        if self.world == 1:
            return
        import torch
        import torch.distributed as dist

        for tensor in tensors:
            if not tensor.numel():
                continue
            # Sent as bytes, because the backends support different types.
            flat = tensor.detach().contiguous().reshape(-1)
            with self.translate_connection_errors():
                dist.broadcast(flat.view(torch.uint8), src=0)
            if not self.is_main:
                tensor.detach().copy_(flat.view_as(tensor))

    # Objects and flags

    def any_rank(self, flag: bool) -> bool:
        """Return whether the flag is set on any rank."""
        return self.any_rank_each([flag])[0]

    def barrier(self) -> None:
        """Wait for all ranks. An error that stopped one of them raises here on all."""
        self.any_rank(False)

    def any_rank_each(self, flags: Sequence[bool]) -> list[bool]:
        """Return for each flag whether it is set on any rank."""
        if self.world == 1:
            return list(flags)
        import torch
        import torch.distributed as dist

        found = torch.tensor([int(flag) for flag in flags])
        with self.translate_connection_errors():
            dist.all_reduce(found, op=dist.ReduceOp.MAX, group=self.control)
        return [bool(each) for each in found.tolist()]

    def broadcast_object(self, value: Any) -> Any:
        """Return the main process's value; the others wait while it computes it."""
        self.monitored_barrier()
        return self.gather(value)[0] if self.world > 1 else value

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, by rank."""
        if self.world == 1:
            return [value]
        import torch.distributed as dist

        found: list[Any] = [None] * self.world
        with self.translate_connection_errors():
            dist.all_gather_object(found, value, group=self.control)
        return found

    def require_same(self, what: str, value: Any) -> None:
        """Raise if the ranks have different values."""
        found = self.gather(value)
        for rank, other in enumerate(found):
            if other != found[0]:
                raise EnvironmentFault(
                    f"{what} of rank {rank} are not those of rank 0.",
                    "All processes must read the same files with the same versions, on like processors.",
                )

    def monitored_barrier(self, most: timedelta = SAVE_TIMEOUT) -> None:
        """Wait until every process arrives; it may have other work first."""
        if self.world == 1:
            return
        import torch.distributed as dist

        with self.translate_connection_errors():
            dist.monitored_barrier(self.control, timeout=most)

    # Errors

    @contextlib.contextmanager
    def raise_on_all_ranks(self) -> Iterator[None]:
        """Run the block on all ranks: an error of one rank is raised on all of them and reported once."""
        if self.world == 1:
            yield
            return
        error: WhetError | None = None
        try:
            yield
        except (Interrupted, LostRank):
            raise
        except WhetError as raised:
            error = raised
        self.monitored_barrier(WORK_TIMEOUT)
        for rank, told in enumerate(self.gather(None if error is None else _as_list(error))):
            if told is not None:
                if rank == self.rank and error is not None:
                    error.rank = self.rank
                    raise error
                raise _as_error(told)

    @contextlib.contextmanager
    def publish_error(self) -> Iterator[None]:
        """On an error, store it where the other ranks look when this one stops answering."""
        try:
            yield
        except LostRank:
            raise
        except WhetError as error:
            if self.world > 1:
                if not isinstance(error, Interrupted | Diverged) and not error.copied:
                    error.rank = self.rank
                self._store_error(error)
            raise
        except Exception as error:  # errors of other code: a metric, a collator, a library
            reason = str(error).strip().splitlines()[0][:300] if str(error).strip() else ""
            named = f"{type(error).__name__}: {reason}" if reason else type(error).__name__
            self._store_error(EnvironmentFault(f"Rank {self.rank} stopped with {named}."))
            raise

    def _store_error(self, error: WhetError) -> None:
        """Store the error where the other ranks look when this process stops answering."""
        if self.world > 1:
            with contextlib.suppress(Exception):
                _store().set(_ERROR_KEY, json.dumps(_as_list(error)))

    @contextlib.contextmanager
    def barrier_on_exit(self) -> Iterator[None]:
        """Wait for all ranks at the end, also after an agreed stop: a launcher ends all processes when the first one
        exits."""
        try:
            yield
        except (Interrupted, Diverged):
            self.monitored_barrier()
            raise
        self.monitored_barrier()

    @contextlib.contextmanager
    def translate_connection_errors(self, *, computing: bool = False) -> Iterator[None]:
        """Turn torch's errors about a lost process into whet's error.

        With `computing`, the block also computes: only errors whose message mentions the connection are turned.
        """
        try:
            yield
        except RuntimeError as error:
            if computing and not any(word in str(error) for word in ("gloo", "NCCL", "onnection", "imed out")):
                raise
            raise self._lost_rank_error() from None

    def _lost_rank_error(self) -> WhetError:
        """Return the error that the lost rank stored, or that it is gone."""
        with contextlib.suppress(Exception):
            if _store().check([_ERROR_KEY]):
                return _as_error(json.loads(_store().get(_ERROR_KEY)))
        silent = self._dead_ranks()
        named = " and ".join(f"rank {rank} (process {pid})" for rank, pid in silent.items())
        if named:
            message = f"{named[0].upper()}{named[1:]} {'is' if len(silent) == 1 else 'are'} gone or silent."
        else:
            message = f"Rank {self.rank} no longer reaches the others, of {self.world} processes."
        error = LostRank(message, _restart_hint())
        if self.rank == min(set(range(self.world)) - set(silent), default=0):
            error.rank = self.rank  # the lowest remaining rank reports it
        return error

    def _dead_ranks(self) -> dict[int, int]:
        """Return the processes of this machine that are gone or stopped, by rank. A process that was just killed is
        checked twice."""
        found: dict[int, int] = {}
        for wait in (0.0, 1.0):
            time.sleep(wait)
            for rank, (host, pid) in enumerate(self.places):
                if rank != self.rank and host == self.places[self.rank][0] and not _is_running(pid):
                    found[rank] = pid
            if found:
                break
        return found


def _is_running(pid: int) -> bool:
    """Return whether the process exists and is neither dead nor stopped."""
    import psutil  # type: ignore[import-untyped]

    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD, psutil.STATUS_STOPPED)
    except psutil.NoSuchProcess:
        return False


def _restart_hint() -> str:
    done, most = restarts()
    if done < most:
        return f"All are started again from the last whole checkpoint ({done + 1} of {most})."
    return "Run the same command again to go on from the last whole checkpoint."


def _as_list(error: WhetError) -> list[str]:
    return [type(error).__name__, error.message, error.hint]


def _as_error(told: Sequence[str]) -> WhetError:
    kind, message, hint = told
    error = _KINDS.get(kind, EnvironmentFault)(message, hint)
    error.copied = True
    return error


def _store() -> Any:
    """Return the store of torch's rendezvous; under torchrun it outlives the processes."""
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store()


def checksum(tensors: Sequence[Tensor]) -> int:
    """Return a checksum of the tensors' bits, computed on their device."""
    import torch

    total = 0
    for tensor in tensors:
        if tensor.numel():
            words = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}[tensor.element_size()]
            total += int(tensor.detach().contiguous().view(words).sum(dtype=torch.int64))
    return total % 2**63
