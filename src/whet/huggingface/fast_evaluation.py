"""Evaluates with the engine in place of the library's loop, and shares code with training."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from transformers.trainer_utils import EvalLoopOutput, EvalPrediction, denumpify_detensorize

from whet.data.tokens.table import Tokens
from whet.engine.logits import compute_logits
from whet.engine.losses import Loss
from whet.engine.network import Network
from whet.huggingface.fast_path import table_of
from whet.task import task_of
from whet.utils.device import Hardware


def hardware_of(trainer: Any) -> Hardware:
    """Return the device and precision that the library has chosen."""
    bf16 = trainer.accelerator.mixed_precision == "bf16"
    device = trainer.args.device
    if device.type == "cpu":
        device = torch.device("cpu")  # each of several processes has its "cpu:0", to which torch would copy tensors
    return Hardware(device, "bf16" if bf16 else "float32", "from the TrainingArguments")


def loss_of(trainer: Any, tokens: Tokens) -> Loss:
    """Return the loss that the library's model computes for these labels, smoothed if the Trainer smooths it."""
    task = task_of(trainer.model.config, tokens.labels)
    assert task is not None
    smoother = trainer.label_smoother
    return Loss(task, None, 0.0 if smoother is None else smoother.epsilon)


@contextmanager
def own_randomness(device: torch.device) -> Iterator[None]:
    """Keep torch's generators unchanged: the engine seeds them at every step."""
    generators = [torch.default_generator]
    if device.type == "cuda":
        generators.append(torch.cuda.default_generators[device.index or 0])
    before = [generator.get_state() for generator in generators]
    try:
        yield
    finally:
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)


def draw_as_a_loader(loader: Any) -> None:
    """Draw the number that `iter()` of a DataLoader draws, so that torch's generator continues as in the library's
    loop. Workers that persist get theirs once."""
    if not getattr(loader, "_has_drawn", False):
        torch.empty((), dtype=torch.int64).random_()
        loader._has_drawn = loader.persistent_workers


def logits_of(
    trainer: Any, network: Network, tokens: Tokens, rows: Any, check_interrupt: Callable[[], None] = lambda: None
) -> Any:
    """Return the logits of these rows, in this order."""
    hardware, batch = hardware_of(trainer), trainer.args.eval_batch_size
    with own_randomness(hardware.device):
        return compute_logits(network, tokens, hardware, batch_rows=batch, rows=rows, check_interrupt=check_interrupt)


def evaluate(trainer: Any, loader: Any, prediction_loss_only: bool, prefix: str) -> EvalLoopOutput:
    """Run the library's `evaluation_loop` with the engine: rows of similar length together, results in the loader's
    order."""
    args, fast, handler = trainer.args, trainer._fast, trainer.callback_handler
    tokens, hardware = table_of(trainer, loader.dataset).tokens, hardware_of(trainer)
    network = fast.network if fast is not None else Network(trainer.model, hardware.device)
    if fast is not None:
        fast.take_back()
    if fast is None and not trainer.accelerator._models:
        started = time.time()
        trainer.accelerator.prepare_model(trainer.model, evaluation_mode=True)
        trainer.model_preparation_time = round(time.time() - started, 4)
    handler.eval_dataloader = loader  # a progress bar needs its length
    draw_as_a_loader(loader)
    told, most = 0, len(loader)

    def check_interrupt() -> None:
        nonlocal told
        if told < most:
            told += 1
            trainer.control = handler.on_prediction_step(args, trainer.state, trainer.control)

    # dataloader_drop_last also drops rows of an evaluation.
    rows = np.concatenate([np.asarray(batch, np.int64) for batch in loader.batch_sampler])
    logits = logits_of(trainer, network, tokens, rows, check_interrupt)
    while told < most:
        check_interrupt()
    labels = None if tokens.labels is None else tokens.labels[rows]
    metrics: dict[str, Any] = {}
    if trainer.compute_metrics is not None and labels is not None and not prediction_loss_only:
        metrics = trainer.compute_metrics(EvalPrediction(predictions=logits, label_ids=labels))
    metrics = denumpify_detensorize(metrics)
    if labels is not None:
        losses = loss_of(trainer, tokens).rows(torch.from_numpy(logits), torch.from_numpy(labels))
        metrics[f"{prefix}_loss"] = float(losses.double().mean())
    trainer._last_logits = (logits, labels)
    if hasattr(trainer, "model_preparation_time"):
        metrics[f"{prefix}_model_preparation_time"] = trainer.model_preparation_time
    for key in [key for key in metrics if not key.startswith(f"{prefix}_")]:
        metrics[f"{prefix}_{key}"] = metrics.pop(key)
    kept = (None, None) if prediction_loss_only else (logits, labels)
    return EvalLoopOutput(*kept, metrics=metrics, num_samples=len(tokens))
