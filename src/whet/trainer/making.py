"""Pieces that a Trainer is made of: its arguments, seeds, label names and trackers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from whet.errors import UsageError
from whet.trainer.arguments import TrainingArguments, from_stock
from whet.trainer.notices import notice

if TYPE_CHECKING:
    from whet.trainer.trainer import Trainer


def as_arguments(args: Any) -> TrainingArguments:
    """whet's own arguments, also from the stock library's."""
    if args is None:
        return TrainingArguments("tmp_trainer")
    if isinstance(args, TrainingArguments):
        return args
    if type(args).__module__.startswith("transformers."):
        return from_stock(args)
    raise UsageError(f"args is a {type(args).__name__}.", 'Pass whet.TrainingArguments("output_dir").')


def seed_everything(seed: int) -> None:
    """Every generator that code around the training may draw from."""
    import random

    import numpy as np

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def first_model(model: Any, model_init: Callable[..., Any] | None) -> Any:
    """The model that was given, or the one that model_init makes."""
    if model is None and model_init is None:
        raise UsageError("The Trainer was given no model.", "Pass model= or model_init=.")
    if model is not None and model_init is not None:
        raise UsageError("The Trainer was given both model and model_init.", "Pass one of them.")
    if isinstance(model, str):
        raise UsageError(
            f"model is {model!r}.", f"Load it: AutoModelForSequenceClassification.from_pretrained({model!r})."
        )
    return called(model_init) if model_init is not None else model


def called(model_init: Callable[..., Any]) -> Any:
    """A new model; a function that wants a trial of a search gets none."""
    taken = inspect.signature(model_init).parameters.values()
    wants_trial = any(each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD for each in taken)
    return model_init(None) if wants_trial else model_init()


def place_model(trainer: Trainer) -> None:
    """On the device, in float32: a half-precision checkpoint would otherwise be trained in half precision."""
    model = trainer.model
    kinds = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    if kinds & {torch.float16, torch.bfloat16}:
        notice(f"Trainer: the model's weights are {kinds.pop()}; they are trained as float32.")
        model.float()
    if trainer.hardware.slow:
        notice(f"Trainer: {trainer.hardware.slow}")
    model.to(trainer.hardware.device)
    trainer.share_weights()
    if trainer.args.gradient_checkpointing:
        model.gradient_checkpointing_enable()


def default_collator(processing_class: Any) -> Any:
    """The padding one where there is something that pads."""
    if processing_class is not None and hasattr(processing_class, "pad"):
        from transformers import DataCollatorWithPadding

        return DataCollatorWithPadding(processing_class)
    from transformers import default_data_collator

    return default_data_collator


def logits_of(outputs: Any) -> torch.Tensor:
    """The logits among a model's outputs."""
    return outputs["logits"] if isinstance(outputs, Mapping) else outputs[0]  # type: ignore[no-any-return]


def label_names(model: Any) -> list[str]:
    """The inputs of a model that are labels."""
    from transformers.utils import find_labels

    return list(find_labels(type(model))) or ["labels"]


def name_labels(model: Any, dataset: Any) -> None:
    """The data set's label names instead of LABEL_0, where it has them."""
    config = getattr(model, "config", None)
    for column in ("labels", "label"):
        names = getattr((getattr(dataset, "features", None) or {}).get(column), "names", None)
        generic = {f"LABEL_{index}" for index in range(len(names or ()))}
        if names and config is not None and set(getattr(config, "id2label", {}).values()) == generic:
            config.id2label = dict(enumerate(names))
            config.label2id = {name: index for index, name in enumerate(names)}


def tracker_callbacks(args: TrainingArguments) -> list[Any]:
    """What tells the trackers that report_to names; of several processes the main one does."""
    if not args.trackers:
        return []
    from whet.trainer.trackers import TrackerCallback, trackers_of

    trackers = trackers_of(args)  # refused everywhere where one is not installed
    return [TrackerCallback(trackers)] if args.process_index == 0 else []
