"""Compares the stock library and whet on this machine: the same rows, in alternating turns.

Each contender is a process that lives through all turns, so its peak memory is its own, and no turn pays for starting
another. A turn is a number of steps after a few that are not counted. The preparation of whet (capturing steps of new
shapes on a GPU) is reported separately.
"""

from __future__ import annotations

import multiprocessing
import signal
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from whet.config import Config
from whet.errors import EnvironmentFault
from whet.utils.signals import SIGNALS
from whet.utils.text import Echo

WARM_STEPS = 5


@dataclass(frozen=True)
class Contender:
    """A way to train: library and precision."""

    name: str
    stock: bool
    precision: str
    compiled: bool = False


TRAINERS = (
    Contender("stock float32", True, "float32"),
    Contender("stock bf16", True, "bf16"),
    Contender("whet", False, "auto"),
)
LOOPS = (
    Contender("loop float32", True, "float32"),
    Contender("loop bf16", True, "bf16"),
    Contender("whet", False, "auto"),
)
COMPILED = Contender("stock compiled", True, "bf16", compiled=True)
WHET_FLOAT32 = Contender("whet float32", False, "float32")


def bench_training(
    config: Config,
    *,
    steps: int,
    turns: int,
    echo: Echo,
    more: Sequence[Contender] = (),
    idle: Sequence[Worker] = (),
) -> dict[str, Any]:
    """Return milliseconds per step of each contender, the ratios, peak memory, and whether the losses agree.

    `more` are contenders besides the usual ones, and `idle` are processes for the contenders, if some are started
    already.
    """
    return _bench(config, _trainer, (*more, *TRAINERS), steps, turns, echo, idle)


def bench_loop(config: Config, *, steps: int, turns: int, echo: Echo, idle: Sequence[Worker] = ()) -> dict[str, Any]:
    """Return the same for a plain training loop and for `whet.TrainStep`."""
    return _bench(config, _loop, LOOPS, steps, turns, echo, idle)


def _bench(
    config: Config,
    work: Callable[..., None],
    contenders: Sequence[Contender],
    steps: int,
    turns: int,
    echo: Echo,
    idle: Sequence[Worker],
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="whet-bench-") as scratch:
        workers = _workers((who.name for who in contenders), idle)
        try:
            for who in contenders:
                workers[who.name].begin(scratch, work, config, who, scratch)
            times = _turns(workers, steps, turns, echo)
            memory = {name: worker.ask("memory") for name, worker in workers.items()}
            losses = {who.name: workers[who.name].ask("losses") for who in contenders if not who.compiled}
            path, why, preparing = (workers["whet"].ask(each) for each in ("path", "why", "preparing"))
        finally:
            for worker in workers.values():
                worker.close()
    medians = {name: statistics.median(values) for name, values in times.items()}
    rows = config.train.batch_size
    return {
        "job": {
            "model": config.model.model,
            "source": config.data.source,
            "batch_size": rows,
            "steps": steps,
            "path": path,
            "why": why,
        },
        "contenders": {
            name: {
                "ms_a_step": 1000 * medians[name],
                "all_ms": [1000 * value for value in times[name]],
                "rows_a_second": rows / medians[name],
                "peak_mb": memory[name],
                "ratio": medians[name] / medians["whet"],
            }
            for name in workers
        },
        "losses": _agreement(losses),
        "preparing_seconds": preparing,
    }


def bench_prediction(
    config: Config, *, rows: int, turns: int, echo: Echo, idle: Sequence[Worker] = ()
) -> dict[str, Any]:
    """Return rows per second of `transformers.pipeline` at its best batch size, and of whet."""
    with tempfile.TemporaryDirectory(prefix="whet-bench-") as scratch:
        folder = _saved_classifier(config, Path(scratch) / "model")
        texts = _texts(config, rows)
        workers = _workers(("stock pipeline", "whet"), idle)
        try:
            workers["stock pipeline"].begin(scratch, _pipeline, folder, texts, config.train.device)
            workers["whet"].begin(scratch, _predictor, folder, texts, config.train.device)
            times = _turns(workers, 0, turns, echo)
            memory = {name: worker.ask("memory") for name, worker in workers.items()}
            said = {name: worker.ask("labels") for name, worker in workers.items()}
            batch = workers["stock pipeline"].ask("batch")
            path, why = (workers["whet"].ask(each) for each in ("path", "why"))
        finally:
            for worker in workers.values():
                worker.close()
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {
        "job": {
            "model": config.model.model,
            "source": config.data.source,
            "rows": len(texts),
            "stock_batch": batch,
            "path": path,
            "why": why,
        },
        "contenders": {
            name: {
                "rows_a_second": len(texts) / medians[name],
                "peak_mb": memory[name],
                "ratio": medians[name] / medians["whet"],
            }
            for name in workers
        },
        "same_labels": float(np.mean([a == b for a, b in zip(*said.values(), strict=True)])),
    }


def _turns(workers: dict[str, Worker], steps: int, turns: int, echo: Echo) -> dict[str, list[float]]:
    for worker in workers.values():
        worker.wait()
    times: dict[str, list[float]] = {name: [] for name in workers}
    for turn in range(turns):
        for name, worker in workers.items():
            times[name].append(worker.ask("turn", steps))
            echo(f"turn {turn + 1} of {turns}: {name} {1000 * times[name][-1]:.2f} ms")
    return times


def _agreement(losses: dict[str, list[float]]) -> dict[str, Any]:
    """Return the largest relative difference of the first losses to the first contender, with the same rows and no
    dropout."""
    first = next(iter(losses))
    reference = np.asarray(losses[first])
    return {
        "steps": len(reference),
        first: reference.tolist(),
        **{
            name: {"losses": values, "largest_difference": float(np.max(np.abs(np.asarray(values) / reference - 1)))}
            for name, values in losses.items()
            if name != first
        },
    }


class Worker:
    """A process that loads the libraries, waits for its work, and then answers requests.

    One that takes longer than `patience` seconds for an answer is given up.
    """

    def __init__(self, patience: float | None = None) -> None:
        self._patience = patience
        self._is_loaded = False
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_wait_for_work, args=(theirs,), daemon=True)
        with _signals_blocked():  # permanent in the process: only the parent handles Ctrl-C
            self._process.start()
        theirs.close()

    def begin(self, scratch: str, work: Callable[..., None], *arguments: Any) -> None:
        """Give the process its work. Its temporary files go into a folder that the parent removes."""
        self.load()
        self._pipe.send((scratch, work, *arguments))

    def load(self) -> None:
        """Wait until the libraries are loaded."""
        if not self._is_loaded:
            self._answer()
            self._is_loaded = True

    def wait(self) -> None:
        """Wait until the process is ready. Separate from the start, so that all of them start at once."""
        self._answer()

    def ask(self, *question: Any) -> Any:
        self._pipe.send(question)
        return self._answer()

    def _answer(self) -> Any:
        try:
            if self._patience is not None and not self._pipe.poll(self._patience):
                raise EnvironmentFault(f"A contender did not answer for {self._patience:g} seconds.")
            kind, value = self._pipe.recv()
        except EOFError:
            raise EnvironmentFault("A contender died.", "Memory may be short: try a smaller --model.") from None
        if kind == "error":
            raise EnvironmentFault(f"A contender of the benchmark failed: {value}")
        return value

    def close(self) -> None:
        self._pipe.close()
        self._process.kill()  # it has nothing to save
        self._process.join()


@contextmanager
def _signals_blocked() -> Iterator[None]:
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _workers(names: Iterable[str], idle: Sequence[Worker]) -> dict[str, Worker]:
    """Return a process for each name: first those that are started already."""
    waiting = list(idle)
    return {name: waiting.pop(0) if waiting else Worker() for name in names}


def _wait_for_work(pipe: Any) -> None:
    try:
        import transformers.modeling_layers  # noqa: F401  # every contender needs it, and torch with it

        pipe.send(("ok", None))
        tempfile.tempdir, work, *arguments = pipe.recv()
    except EOFError:
        return  # there is no work
    work(pipe, *arguments)


def _serve(pipe: Any, make: Callable[[], dict[str, Callable[..., Any]]]) -> None:
    """Answer requests until the parent closes the connection; errors are answers too."""
    try:
        answers = make()
        pipe.send(("ok", None))
        while True:
            question, *arguments = pipe.recv()
            pipe.send(("ok", answers[question](*arguments)))
    except (EOFError, BrokenPipeError):
        return  # the parent is gone
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        pipe.send(("error", f"{type(error).__name__}: {error} ({Path(at.filename).name}, line {at.lineno})"))


def _trainer(pipe: Any, config: Config, who: Contender, scratch: str) -> None:
    from whet.tools.bench import contenders as bench_contenders

    make = bench_contenders.stock_trainer if who.stock else bench_contenders.whet_trainer
    _serve(pipe, lambda: make(config, who, scratch))


def _loop(pipe: Any, config: Config, who: Contender, scratch: str) -> None:
    from whet.tools.bench import loops as bench_loops

    _serve(pipe, lambda: bench_loops.loop(config, who))


def _pipeline(pipe: Any, folder: str, texts: list[Any], device: str) -> None:
    from whet.tools.bench import contenders as bench_contenders

    _serve(pipe, lambda: bench_contenders.stock_pipeline(folder, texts, device))


def _predictor(pipe: Any, folder: str, texts: list[Any], device: str) -> None:
    from whet.tools.bench import contenders as bench_contenders

    _serve(pipe, lambda: bench_contenders.whet_predictor(folder, texts, device))


def _saved_classifier(config: Config, folder: Path) -> str:
    """Return a classifier with a random head: only its speed matters here."""
    from whet.data.examples import load_examples
    from whet.models.decoders import pad_on_the_right
    from whet.models.pretrained import load_model, load_tokenizer, save_model

    task = load_examples(config.data.source, config.data).task
    loaded = load_model(config.model.model, task, config.model, seed=0)
    tokenizer = load_tokenizer(config.model.model, config.model)
    pad_on_the_right(loaded.model, tokenizer)
    save_model(loaded.model, tokenizer, folder)
    return str(folder)


def _texts(config: Config, rows: int) -> list[Any]:
    from whet.data.examples import load_examples

    split = load_examples(config.data.source, config.data).rows["train"]
    texts, pairs = split.column("text")[:rows], split.column("pair")[:rows]
    return list(zip(texts, pairs, strict=True)) if pairs else texts


def seconds(work: Callable[[], None]) -> float:
    """Return the duration of a call, by a monotonic clock."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
