"""Work for several real processes at once: forked from a server that has torch loaded, joined over gloo."""

from __future__ import annotations

import contextlib
import functools
import io
import multiprocessing
import os
import pickle
import socket
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WORLD = 2
# What a training imports sooner or later, which takes longer than the trainings of these tests.
LOADED = (
    *("accelerate", "datasets", "hypothesis", "pytest", "torch._dynamo", "torch.optim", "torch.distributed.fsdp"),
    *("transformers.models.bert.modeling_bert", "transformers.optimization", "transformers.data.data_collator"),
    *("sklearn.metrics", "whet.trainer.training", "whet.engine.fused.stepper"),
)
PATIENCE_SECONDS = 120
Work = Callable[..., Any]


@dataclass
class Told:
    """What one process gave back, what it raised in words, what it printed, and how it ended."""

    value: Any = None
    error: str = ""
    printed: str = ""
    exit_code: int | None = None


@functools.cache
def _server() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(LOADED))
    return context


def run_together(work: Work, folder: Path, *given: Any) -> list[Told]:
    """`work(folder, *given)` in two processes that a launcher might have started, by rank."""
    folder.mkdir(parents=True, exist_ok=True)
    port = _free_port()
    results = [folder / f"told-{rank}.pickle" for rank in range(WORLD)]
    processes = [
        _server().Process(target=_be_rank, args=(rank, port, result, work, folder, *given))
        for rank, result in enumerate(results)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(PATIENCE_SECONDS)
        if process.is_alive():
            process.kill()
            process.join()
    told = [pickle.loads(path.read_bytes()) if path.exists() else Told() for path in results]
    for result, each, process in zip(results, told, processes, strict=True):
        result.unlink(missing_ok=True)
        each.exit_code = process.exitcode
    return told


def values(work: Work, folder: Path, *given: Any) -> list[Any]:
    """What both processes gave back, where neither may fail."""
    told = run_together(work, folder, *given)
    failed = [each.error for each in told if each.error]
    assert not failed, failed
    assert [each.exit_code for each in told] == [0] * WORLD
    return [each.value for each in told]


def _be_rank(rank: int, port: int, result: Path, work: Work, folder: Path, *given: Any) -> None:
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": WORLD, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in places.items()})
    os.environ["OMP_NUM_THREADS"] = "1"
    warnings.simplefilter("error")
    printed, told = io.StringIO(), Told()
    with contextlib.redirect_stdout(printed):
        try:
            told.value = work(folder, *given)
        except BaseException as error:
            told.error = f"{type(error).__name__}: {error}"
    told.printed = printed.getvalue()
    result.write_bytes(pickle.dumps(told))


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
