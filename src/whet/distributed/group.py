"""Which of several processes this one is, and what they tell each other.

Every process computes the same plan from the same data; what they exchange is the sum of gradients, the logits of an
evaluation, and small words: has anybody been told to stop, did anybody fail. One process alone exchanges nothing, and
every method here is then free.
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
"""How long a process waits for the others within training, where they are never far apart."""
SAVE_TIMEOUT = timedelta(minutes=30)
"""… where the main one may still be writing a checkpoint or computing metrics."""
WORK_TIMEOUT = timedelta(hours=6)
"""… where another may be reading or tokenizing all of the data."""

_ERROR_KEY = "whet-left"
_KINDS: dict[str, type[WhetError]] = {
    kind.__name__: kind for kind in (UsageError, DataError, ArtifactError, EnvironmentFault, Diverged, Interrupted)
}


class LostRank(EnvironmentFault):
    """Another process no longer answers: it was killed, or the link to it is cut."""


@dataclass(frozen=True)
class DistributedContext:
    """This process among `world` of them; the first is the main one, the only one that writes."""

    rank: int = 0
    world: int = 1
    control: Any = None
    """The group for words and numbers in main memory; gradients go through the default group."""
    places: Sequence[tuple[str, int]] = ()
    """Machine and process of each, by rank: where to look when one no longer answers."""

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    # Numbers

    def sum_in_place(self, tensors: Sequence[Tensor]) -> None:
        """Each tensor becomes the sum over all processes, to the bit the same everywhere."""
        if self.world == 1:
            return
        import torch.distributed as dist

        with self.translate_connection_errors():
            for tensor in tensors:
                dist.all_reduce(tensor)

    def gather_rows(self, part: Any, places: Any, count: int) -> Any:
        """Rows computed by all processes as one array: this one's are `part`, and belong at `places` of `count`."""
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
            dist.all_reduce(tensor, group=self.control)  # every place is zero in all processes but one
        return whole

    def broadcast_tensors(self, tensors: Iterable[Tensor]) -> None:
        """Each tensor gets the main process's bits, in place, where it is."""
        if self.world == 1:
            return
        import torch
        import torch.distributed as dist

        for tensor in tensors:
            if not tensor.numel():
                continue
            # As bytes, because backends differ in the kinds of numbers they carry.
            flat = tensor.detach().contiguous().reshape(-1)
            with self.translate_connection_errors():
                dist.broadcast(flat.view(torch.uint8), src=0)
            if not self.is_main:
                tensor.detach().copy_(flat.view_as(tensor))

    # Words

    def any_rank(self, flag: bool) -> bool:
        """Whether it is so for any process."""
        return self.any_rank_each([flag])[0]

    def barrier(self) -> None:
        """All of them are here: whatever failed for one of them before has failed for all."""
        self.any_rank(False)

    def any_rank_each(self, flags: Sequence[bool]) -> list[bool]:
        """For each of several things, whether it is so for any process."""
        if self.world == 1:
            return list(flags)
        import torch
        import torch.distributed as dist

        found = torch.tensor([int(flag) for flag in flags])
        with self.translate_connection_errors():
            dist.all_reduce(found, op=dist.ReduceOp.MAX, group=self.control)
        return [bool(each) for each in found.tolist()]

    def broadcast_object(self, value: Any) -> Any:
        """What the main process has here; it may take its time over it."""
        self.monitored_barrier()
        return self.gather(value)[0] if self.world > 1 else value

    def gather(self, value: Any) -> list[Any]:
        """What every process has here, by rank."""
        if self.world == 1:
            return [value]
        import torch.distributed as dist

        found: list[Any] = [None] * self.world
        with self.translate_connection_errors():
            dist.all_gather_object(found, value, group=self.control)
        return found

    def require_same(self, what: str, value: Any) -> None:
        """Refuse to go on where processes have drifted apart."""
        found = self.gather(value)
        for rank, other in enumerate(found):
            if other != found[0]:
                raise EnvironmentFault(
                    f"{what} of rank {rank} are not those of rank 0.",
                    "All processes must read the same files with the same versions, on like processors.",
                )

    def monitored_barrier(self, most: timedelta = SAVE_TIMEOUT) -> None:
        """Until every process is here, which may have work of its own to do."""
        if self.world == 1:
            return
        import torch.distributed as dist

        with self.translate_connection_errors():
            dist.monitored_barrier(self.control, timeout=most)

    # Errors

    @contextlib.contextmanager
    def raise_on_all_ranks(self) -> Iterator[None]:
        """What is done inside is done by all: an error of one becomes everybody's, and is told once."""
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
        """Whoever leaves with an error says so, for those who will wait for it in vain."""
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
        except Exception as error:  # of code that is not ours: a metric, a collator, a library
            reason = str(error).strip().splitlines()[0][:300] if str(error).strip() else ""
            named = f"{type(error).__name__}: {reason}" if reason else type(error).__name__
            self._store_error(EnvironmentFault(f"Rank {self.rank} stopped with {named}."))
            raise

    def _store_error(self, error: WhetError) -> None:
        """Where the others look when this process no longer answers."""
        if self.world > 1:
            with contextlib.suppress(Exception):
                _store().set(_ERROR_KEY, json.dumps(_as_list(error)))

    @contextlib.contextmanager
    def barrier_on_exit(self) -> Iterator[None]:
        """All end here at once, also where they agreed to stop: a launcher ends everybody when the first one leaves."""
        try:
            yield
        except (Interrupted, Diverged):
            self.monitored_barrier()
            raise
        self.monitored_barrier()

    @contextlib.contextmanager
    def translate_connection_errors(self, *, computing: bool = False) -> Iterator[None]:
        """What torch raises where another process is gone becomes what whet says about that.

        Where there is also `computing` inside, an error may have other reasons, and its words decide.
        """
        try:
            yield
        except RuntimeError as error:
            if computing and not any(word in str(error) for word in ("gloo", "NCCL", "onnection", "imed out")):
                raise
            raise self._lost_rank_error() from None

    def _lost_rank_error(self) -> WhetError:
        """What another one said when it left, or that it is gone."""
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
            error.rank = self.rank  # the first of those that are left says it
        return error

    def _dead_ranks(self) -> dict[int, int]:
        """Processes of this machine that are gone or stopped, by rank. One that was just killed is looked for twice."""
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
    """Whether there is such a process, and it is not a dead or a stopped one."""
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
    """Where torch's processes found each other: under torchrun it outlives each of them."""
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store()


def checksum(tensors: Sequence[Tensor]) -> int:
    """The same for the same bits; one pass where the tensors are."""
    import torch

    total = 0
    for tensor in tensors:
        if tensor.numel():
            words = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}[tensor.element_size()]
            total += int(tensor.detach().contiguous().view(words).sum(dtype=torch.int64))
    return total % 2**63
