"""Which of the engine's paths trains this Trainer's model, and the reason where it is not the fastest."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from whet.data.tokens.table import Tokens
from whet.engine.dispatch import choose_path
from whet.engine.losses import Loss
from whet.engine.network import Batch, Feed, Network, TokenFeed
from whet.engine.packed import _keep_first_tokens
from whet.engine.stepper import Stepper
from whet.errors import DataError
from whet.task import Task
from whet.trainer.arguments import ORDERS
from whet.trainer.callbacks import overrides
from whet.trainer.data import Collator, DatasetFeed, batch_rows, make_order
from whet.trainer.predictions import labels_fit

if TYPE_CHECKING:
    from whet.trainer.trainer import Trainer

PADDING_COLLATORS = ("DataCollatorWithPadding", "PaddingCollator")
KINDS = {
    "regression": "regression",
    "single_label_classification": "binary",
    "multi_label_classification": "multilabel",
}


@dataclass
class Setup:
    """What trains: rows, the way to a loss, and the step; the optimizer comes once the number of steps is known."""

    feed: Feed
    network: Network
    task: Task | None
    tokens: Tokens | None
    make_stepper: Callable[[], Stepper]
    """Called once the trainer has its optimizer, which is torch's own here."""
    chosen: Stepper | None = None
    """The engine's own step, which needs no optimizer of the trainer's."""


def has_own_collator(trainer: Trainer) -> bool:
    """Whether a collator was given that does more than pad."""
    given = trainer.given_collator
    return given is not None and type(given).__name__ not in PADDING_COLLATORS


def why_own_batches(trainer: Trainer) -> str:
    """Empty when the engine may make the batches and the loss; else what in this Trainer speaks against it."""
    model, args = trainer.model, trainer.args
    if trainer.overrides("compute_loss"):
        return "compute_loss is overridden"
    if trainer.compute_loss_func is not None:
        return "compute_loss_func is given"
    if has_own_collator(trainer):
        return f"the collator is a {type(trainer.given_collator).__name__}"
    if not args.remove_unused_columns:
        return "remove_unused_columns is False"
    if trainer.label_names != ["labels"]:
        return f"label_names is {trainer.label_names}"
    kind = type(model)
    if not kind.__module__.startswith("transformers.") or not kind.__name__.endswith("ForSequenceClassification"):
        return f"the model is a {kind.__name__}"
    return ""


def task_of(config: Any, labels: Any) -> Task | None:
    """The task as the library's own models decide it: by problem_type, else by the labels."""
    outputs = getattr(config, "num_labels", None)
    if outputs is None:
        return None
    problem = getattr(config, "problem_type", None)
    if problem is None:
        whole = labels is None or (labels.ndim == 1 and labels.dtype.kind in "iu")
        problem = "regression" if outputs == 1 else f"{'single' if whole else 'multi'}_label_classification"
    kind = KINDS.get(problem)
    if kind is None or (kind == "regression" and outputs > 1):
        return None
    names = tuple(str(config.id2label[index]) for index in range(outputs))
    if kind == "binary" and outputs != 2:
        kind = "multiclass"
    return Task(kind, () if kind == "regression" else names)


def lay_out(trainer: Trainer) -> Setup:
    """Decide the path, and say why where it is not the fastest."""
    tokens, reason = trainer.tokens(trainer.train_dataset)
    task = None if tokens is None else task_of(trainer.model.config, tokens.labels)
    if tokens is not None and task is None:
        tokens, reason = None, "its loss is not one of the engine's"
    if tokens is not None and task is not None:
        check_labels(tokens, task)
        return _by_tokens(trainer, tokens, task)
    return _by_batches(trainer, reason)


def check_labels(tokens: Tokens, task: Task) -> None:
    """A label that the model has no output for is found here, not by an index error deep in a loss."""
    if tokens.labels is None:
        raise DataError(
            "train_dataset has rows without a label.",
            "Every row needs a number in the column 'label' or 'labels'.",
        )
    if labels_fit(tokens.labels, task):
        return
    if tokens.labels.ndim == 1 and tokens.labels.dtype.kind == "i":
        row = int(np.flatnonzero((tokens.labels < 0) | (tokens.labels >= task.outputs))[0])
        raise DataError(
            f"Row {row} of train_dataset has the label {tokens.labels[row]}, and the model has {task.outputs} outputs.",
            "Load the model with num_labels= the number of labels.",
        )
    raise DataError(
        f"The labels of train_dataset have shape {tokens.labels.shape}, and the model has {task.outputs} outputs.",
        "Load the model with num_labels= and problem_type= that fit the labels.",
    )


def _by_tokens(trainer: Trainer, tokens: Tokens, task: Task) -> Setup:
    args, model, hardware = trainer.args, trainer.model, trainer.hardware
    smoothing = 0.0 if task.kind in ("multilabel", "regression") else args.label_smoothing_factor
    loss = Loss(task, None, smoothing)
    if model.config.problem_type is None:  # the library's own loss would note it down, too
        model.config.problem_type = next(name for name, kind in KINDS.items() if kind == _plain_kind(task))
    order = make_order(args, len(tokens), ORDERS[args.train_sampling_strategy], tokens.lengths)
    # Gradients are summed piece by piece: all processes take the same path, also where one has a callback more.
    reason = next(filter(None, trainer.ranks.gather(_why_own_step(trainer))), "")
    if not reason:
        seen = [tokens, *trainer.evaluation_tokens()]
        # A process computes at most its micro-batch at once; the configuration counts the rows of all.
        own = dataclasses.replace(args.to_config().train, batch_size=args.per_device_train_batch_size)
        network, stepper = choose_path(model, loss, own, hardware, seen, trainer.ranks, order)
        return Setup(TokenFeed(tokens, order, network, loss), network, task, tokens, lambda: stepper, stepper)
    network = Network(model, hardware.device, packed=not (args.gradient_checkpointing or _hooked(model)))
    network.why = "; ".join(filter(None, (reason, network.why_padded)))

    def total(batch: Batch) -> torch.Tensor:
        assert batch.labels is not None
        return loss.total(network.logits(batch), batch.labels)

    return Setup(TokenFeed(tokens, order, network, loss), network, task, tokens, lambda: plain_stepper(trainer, total))


def _by_batches(trainer: Trainer, reason: str) -> Setup:
    args = trainer.args
    dataset = trainer.usable(trainer.train_dataset)
    order = make_order(args, len(dataset), ORDERS[args.train_sampling_strategy], _lengths(dataset, args))
    network = Network(trainer.model, trainer.hardware.device, packed=False)
    network.why = reason
    wants_items = trainer.compute_loss_func is not None or trainer.overrides("compute_loss")
    collate: Collator = trainer.collator()
    feed = DatasetFeed(dataset, order, collate, trainer.hardware.device, counts_items=wants_items)
    task = task_of(getattr(trainer.model, "config", None), None)

    def total(batch: Batch) -> torch.Tensor:
        inputs = dict(batch.inputs)
        rows = batch_rows(inputs)
        loss = trainer.call_compute_loss(trainer.model, inputs, items=feed.items)
        # The step divides by its number of rows: a mean counts for the rows it is of, and a loss that was
        # divided by the items of the whole step is to stay as it is.
        scaled: torch.Tensor = loss * (feed.rows if trainer.scales_its_loss() else rows)
        return scaled

    return Setup(feed, network, task, None, lambda: plain_stepper(trainer, total, varying=True))


def plain_stepper(trainer: Trainer, total: Callable[[Batch], torch.Tensor], *, varying: bool = False) -> Stepper:
    """The general step, with the trainer's own optimizer."""
    args, ranks = trainer.args, trainer.ranks
    return Stepper(
        model=trainer.model,
        loss_of=total,
        optimizer=trainer.optimizer,
        hardware=trainer.hardware,
        clip=args.max_grad_norm or 0.0,
        seed=args.seed,
        micro_rows=args.per_device_train_batch_size,
        rank=ranks.rank,
        synchronized=ranks.sum_in_place if ranks.world > 1 else None,
        varying=varying,
    )


def _why_own_step(trainer: Trainer) -> str:
    """Whether somebody needs torch's optimizer, its gradients or the library's own modules to be what runs."""
    if not trainer.default_optimizer:
        return "the optimizer is not the default one"
    if overrides(trainer.callback_handler.callbacks, "on_pre_optimizer_step", "on_optimizer_step"):
        return "a callback looks at the gradients"
    if trainer.args.gradient_checkpointing:
        return "gradient_checkpointing is True"
    return "the model has hooks" if _hooked(trainer.model) else ""


def _hooked(model: Any) -> bool:
    """Hooks that somebody else put on the model's modules would not be called by our arithmetic."""
    own = {_keep_first_tokens}
    return any(
        set(module._forward_hooks.values()) - own or module._forward_pre_hooks or module._backward_hooks
        for module in model.modules()
    )


def _plain_kind(task: Task) -> str:
    return "binary" if task.kind == "multiclass" else task.kind


def _lengths(dataset: Any, args: Any) -> Any:
    if args.train_sampling_strategy != "group_by_length":
        return None
    try:
        return np.array([len(row["input_ids"]) for row in dataset])
    except (KeyError, TypeError):
        raise DataError("group_by_length needs rows with 'input_ids'.") from None
