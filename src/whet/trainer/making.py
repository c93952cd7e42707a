"""Pieces that a Trainer is made of: its arguments, seeds, label names and trackers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from whet.errors import UsageError
from whet.trainer.arguments import TrainingArguments, from_stock


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
    """What tells the trackers that report_to names."""
    if not args.trackers:
        return []
    from whet.trainer.trackers import TrackerCallback, trackers_of

    return [TrackerCallback(trackers_of(args))]
