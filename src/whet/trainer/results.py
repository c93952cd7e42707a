"""Small things that a Trainer gives out: metrics as files, batches to look at, plain modules saved."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from whet.data.tokens.batches import share
from whet.trainer.arguments import ORDERS
from whet.trainer.data import make_order, require_rows
from whet.trainer.predictions import Predicted
from whet.utils.text import neutral

if TYPE_CHECKING:
    from whet.trainer.trainer import Trainer


def preprocessed(found: Predicted, function: Callable[[Any, Any], Any]) -> Predicted:
    """Logits through the user's function, which expects tensors."""
    labels = None if found.labels is None else torch.as_tensor(found.labels)
    changed = function(torch.as_tensor(found.logits), labels)
    logits = tuple(map(np.asarray, changed)) if isinstance(changed, tuple) else np.asarray(changed)
    return dataclasses.replace(found, logits=logits)


def print_metrics(split: str, metrics: Mapping[str, Any]) -> None:
    """A small table."""
    print(f"***** {split} metrics *****")
    width = max((len(name) for name in metrics), default=0)
    for name in sorted(metrics):
        value = metrics[name]
        shown = f"{value:.4f}" if isinstance(value, float) else value
        print(neutral(f"  {name:<{width}} = {shown}"))


def save_metrics(folder: Path, split: str, metrics: Mapping[str, Any], combined: bool) -> None:
    """SPLIT_results.json, and all of them together in all_results.json."""
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / f"{split}_results.json", metrics)
    if combined:
        path = folder / "all_results.json"
        before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        _write(path, {**before, **metrics})


def _write(path: Path, metrics: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(dict(metrics), indent=4, sort_keys=True), encoding="utf-8")


def save_plain_module(model: torch.nn.Module, folder: Path) -> None:
    """The weights of a model that is not the library's."""
    from safetensors.torch import save_model

    save_model(model, str(folder / "model.safetensors"))


class _Batches(torch.utils.data.Sampler[list[int]]):
    def __init__(self, batches: list[list[int]]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


def train_loader(trainer: Trainer) -> torch.utils.data.DataLoader[Any]:
    """Batches of the first epoch, in whet's order; of several processes each has its own."""
    require_rows(trainer.train_dataset, "train_dataset")
    args, dataset = trainer.args, trainer.usable(trainer.train_dataset)
    tokens, _ = trainer.tokens(trainer.train_dataset)
    lengths = None if tokens is None else tokens.lengths
    kind = ORDERS[args.train_sampling_strategy] if lengths is not None else "random"
    order = make_order(dataclasses.replace(args, gradient_accumulation_steps=1), len(dataset), kind, lengths)
    ranks = trainer.ranks
    steps = (order.batch(0, index) for index in range(order.steps_per_epoch))
    batches = [rows.tolist() for step in steps if len(rows := share(step, ranks.rank, ranks.world))]
    return torch.utils.data.DataLoader(dataset, batch_sampler=_Batches(batches), collate_fn=trainer.collator())


def eval_loader(trainer: Trainer, dataset: Any) -> torch.utils.data.DataLoader[Any]:
    """Batches in input order; several processes have them in turn."""
    require_rows(dataset, "eval_dataset")
    size, ranks = trainer.args.per_device_eval_batch_size, trainer.ranks
    rows = list(range(len(dataset)))
    batches = [rows[start : start + size] for start in range(0, len(rows), size)][ranks.rank :: ranks.world]
    return torch.utils.data.DataLoader(
        trainer.usable(dataset), batch_sampler=_Batches(batches), collate_fn=trainer.collator()
    )
