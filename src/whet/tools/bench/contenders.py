"""The contenders of `whet bench`: each returns named functions that its process answers with."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from whet.config import Config, make_config
from whet.tools.bench.benchmark import WARM_STEPS, Contender, seconds

Answers = dict[str, Callable[..., Any]]
CHECK_STEPS = 10
COMPILING_STEPS = 40
"""Uncounted first steps, in which each length is compiled."""
PIPELINE_BATCHES = (8, 16, 32, 64, 128)


def whet_trainer(config: Config, who: Contender, scratch: str) -> Answers:
    """whet's engine, as `whet train` builds it."""
    from whet.utils.device import synchronize
    from whet.utils.memory import peak_memory_mb

    job = make_bench_job(config, who.precision)
    done, preparing = 0, 0.0

    def steps(count: int, job: Any = job) -> None:
        nonlocal done
        for _ in range(count):
            rows = job.feed.order.at(done)
            job.stepper(done, job.feed, rows, rows, job.rate(min(done, job.plan.total_steps)))
            done += 1
        synchronize(job.hardware.device)

    def prepare(count: int) -> None:
        for step in range(done, done + count):
            job.stepper.prepare(job.feed, job.feed.order.at(step))

    def turn(count: int) -> float:
        nonlocal preparing
        preparing += seconds(lambda: prepare(WARM_STEPS + count))
        steps(WARM_STEPS)
        return seconds(lambda: steps(count)) / count

    def losses() -> list[float]:
        quiet = make_bench_job(config, who.precision, dropout=False)
        found = []
        for step in range(CHECK_STEPS):
            rows = quiet.feed.order.at(step)
            quiet.stepper(step, quiet.feed, rows, rows, quiet.config_rate(step))
            found.append(float(quiet.stepper.window.loss))
            quiet.stepper.window.clear()
        return found

    return {
        "turn": turn,
        "memory": lambda: peak_memory_mb(job.hardware.device),
        "losses": losses,
        "path": lambda: job.network.path,
        "why": lambda: job.network.why,
        "preparing": lambda: preparing,
    }


def stock_trainer(config: Config, who: Contender, scratch: str) -> Answers:
    """transformers.Trainer with its defaults, on the same rows."""
    import torch

    from whet.models.pretrained import quiet
    from whet.utils.device import synchronize
    from whet.utils.memory import peak_memory_mb

    job = make_bench_job(config, "float32", engine=False)
    device = job.hardware.device
    # Compiled code belongs to one model: a new one in the next turn would be compiled again.
    kept = job.model() if who.compiled else None
    if who.compiled:
        warnings.simplefilter("ignore")  # the compiler's advice for developers

    def turn(count: int) -> float:
        warm = COMPILING_STEPS if who.compiled else WARM_STEPS
        clock = _clock(warm, count, lambda: synchronize(device))
        with quiet():
            _stock(job, who, scratch, warm + count, model=kept, callbacks=[clock]).train()
        return float(clock.seconds / count)

    def losses() -> list[float]:
        plain = make_bench_job(config, "float32", engine=False, dropout=False)
        trainer = _stock(plain, who, scratch, CHECK_STEPS, rate=config.train.learning_rate, log=1)
        trainer._get_train_sampler = lambda *a, **k: _same_order(plain)
        trainer.train()
        return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

    torch.manual_seed(0)
    return {"turn": turn, "memory": lambda: peak_memory_mb(device), "losses": losses}


def stock_pipeline(folder: str, texts: list[Any], device: str) -> Answers:
    """transformers.pipeline at its best batch size, found on a part of the rows."""
    from transformers import pipeline

    from whet.models.pretrained import quiet
    from whet.utils.device import choose_hardware
    from whet.utils.memory import peak_memory_mb

    where = choose_hardware(device, "float32").device
    with quiet():
        classify = pipeline("text-classification", folder, device=where)
    inputs = [{"text": row[0], "text_pair": row[1]} if isinstance(row, tuple) else row for row in texts]
    part = _warm_part(inputs)
    options = {"truncation": True}
    classify(part[:16], batch_size=8, **options)
    best = min(PIPELINE_BATCHES, key=lambda size: seconds(lambda: classify(part, batch_size=size, **options)))
    answers: list[Any] = []

    def turn(count: int) -> float:
        return seconds(lambda: answers.__setitem__(slice(None), classify(inputs, batch_size=best, **options)))

    return {
        "turn": turn,
        "memory": lambda: peak_memory_mb(where),
        "labels": lambda: [answer["label"] for answer in answers],
        "batch": lambda: best,
    }


def whet_predictor(folder: str, texts: list[Any], device: str) -> Answers:
    from whet.inference.predictor import Predictor
    from whet.utils.memory import peak_memory_mb

    predictor = Predictor(folder, device=device)
    for _ in PIPELINE_BATCHES:  # as often as the pipeline has had its part of the rows
        predictor.predict(_warm_part(texts))
    answers: list[Any] = []

    def turn(count: int) -> float:
        return seconds(lambda: answers.__setitem__(slice(None), predictor.predict(texts)))

    return {
        "turn": turn,
        "memory": lambda: peak_memory_mb(predictor.hardware.device),
        "path": lambda: predictor.network.path,
        "why": lambda: predictor.network.why,
        "labels": lambda: [answer.label for answer in answers],
    }


def _warm_part(rows: list[Any]) -> list[Any]:
    return rows[: max(1, len(rows) // 8)]


def make_bench_job(config: Config, precision: str, *, engine: bool = True, dropout: bool = True) -> Any:
    """Build a job up to the first step; without dropout to compare losses."""
    from whet.training.setup import make_job, make_tokens, read_examples

    settings = {**config.flat(), "precision": precision}
    chosen = make_config({name: value for name, value in settings.items() if value is not None})
    examples, report = read_examples(chosen.data.source, chosen, lambda line: None)
    prepared = make_tokens(chosen, examples, report, lambda line: None)
    if not engine:
        return _StockJob(prepared, dropout)
    job = make_job(prepared, lambda line: None, dropout=dropout)
    job.config_rate = lambda step: chosen.train.learning_rate * (1 - step / CHECK_STEPS)  # type: ignore[attr-defined]
    return job


class _StockJob:
    """The same rows as a datasets.Dataset, and the same model loaded by the library."""

    def __init__(self, prepared: Any, dropout: bool) -> None:
        from whet.utils.device import choose_hardware

        self.prepared, self.dropout = prepared, dropout
        self.hardware = choose_hardware(prepared.config.train.device, "float32")
        self.tokens = prepared.tokens["train"]

    def model(self) -> Any:
        from whet.models.decoders import pad_on_the_right
        from whet.models.pretrained import load_model, without_dropout

        config = self.prepared.config
        task, seed = self.prepared.examples.task, config.train.seed
        model = load_model(config.model.model, task, config.model, seed=seed, lora=config.lora).model
        pad_on_the_right(model, self.prepared.tokenizer)
        return model if self.dropout else without_dropout(model)

    def dataset(self, rows: int) -> Any:
        import datasets

        table = self.tokens
        chosen = range(min(rows, len(table)))
        columns: dict[str, Any] = {"input_ids": [table.row(index).tolist() for index in chosen]}
        if table.types is not None:
            columns["token_type_ids"] = [
                table.types[table.offsets[index] : table.offsets[index + 1]].tolist() for index in chosen
            ]
        columns["attention_mask"] = [[1] * len(row) for row in columns["input_ids"]]
        columns["labels"] = [table.labels[index] for index in chosen]
        return datasets.Dataset.from_dict(columns)


def _stock(
    job: Any,
    who: Contender,
    scratch: str,
    steps: int,
    *,
    model: Any = None,
    callbacks: Any = (),
    rate: Any = None,
    log: int = 500,
) -> Any:
    from transformers import DataCollatorWithPadding, Trainer, TrainingArguments

    settings = job.prepared.config.train
    arguments = TrainingArguments(
        scratch,
        max_steps=steps,
        per_device_train_batch_size=settings.batch_size,
        learning_rate=rate or settings.learning_rate,
        bf16=who.precision == "bf16",
        torch_compile=who.compiled,
        tf32=(who.compiled and job.hardware.device.type == "cuda") or None,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        logging_steps=log,
        use_cpu=job.hardware.device.type == "cpu",
    )
    trainer = Trainer(
        model or job.model(),
        arguments,
        train_dataset=job.dataset(len(job.tokens)),
        data_collator=DataCollatorWithPadding(job.prepared.tokenizer),
        callbacks=list(callbacks),
    )
    from transformers.trainer_callback import PrinterCallback

    trainer.remove_callback(PrinterCallback)
    return trainer


def _same_order(job: Any) -> Any:
    """Use the rows of whet's first steps, in whet's order."""
    from whet.data.tokens.batches import BatchOrder

    train = job.prepared.config.train
    order = BatchOrder(rows=len(job.tokens), batch_size=train.batch_size, seed=train.seed, lengths=job.tokens.lengths)
    return np.concatenate([order.at(step) for step in range(CHECK_STEPS)]).tolist()


def _clock(warm: int, count: int, wait: Callable[[], None]) -> Any:
    """Return a callback that times the steps after the warm-up."""
    from transformers import TrainerCallback

    class Clock(TrainerCallback):  # type: ignore[misc,unused-ignore]
        seconds = 0.0
        _started = 0.0

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == warm:
                wait()
                self._started = time.perf_counter()
            elif state.global_step == warm + count:
                wait()
                self.seconds = time.perf_counter() - self._started

    return Clock()
