"""Rows of a data set as batches: columns that the model takes, the user's collator, the stock way of naming labels."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from whet.data.tokens.batches import Order
from whet.data.tokens.from_dataset import Unrepresentable, from_rows
from whet.data.tokens.table import Tokens
from whet.engine.network import Batch, Rows
from whet.errors import DataError, UsageError

Collate = Callable[[list[Any]], Mapping[str, Any]]
LABELS = ("label", "label_ids")


def signature(model: Any) -> list[str]:
    """Names that the model's forward takes."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return list(inspect.signature(inner.forward).parameters)


TOKENISE = "Tokenise first: dataset.map(tokenize_function, batched=True)."


def require_rows(dataset: Any, name: str, *, any_rows: bool = True) -> None:
    """A data set must have a length and rows by number, so that a run can be resumed anywhere.

    `any_rows=False` where no collator of the user's own knows what to do with rows that are not dictionaries.
    """
    if dataset is None:
        raise UsageError(f"The Trainer was given no {name}.", f"Pass {name}=.")
    if isinstance(dataset, str | bytes):
        raise UsageError(f"{name} is {dataset[:60]!r}, which is not a data set.", "Load it, then tokenise it.")
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise UsageError(
            f"{name} is a {type(dataset).__name__}, which has no length.",
            "Load it whole (streaming=False), or write your own loop with whet.TrainStep.",
        )
    if isinstance(dataset, Mapping) and not hasattr(dataset, "features"):
        raise UsageError(f"{name} is a dictionary of splits.", f'Pass one of them: {name}=datasets["train"].')
    if len(dataset) == 0:
        raise DataError(f"{name} has no rows.")
    if not any_rows and isinstance(dataset, list | tuple | np.ndarray):
        for place, row in enumerate(dataset):
            if not isinstance(row, Mapping) and not hasattr(row, "__dict__"):  # the stock collator takes objects, too
                raise DataError(
                    f"Row {place} of {name} is {repr(row)[:60]}, not a dictionary of model inputs.", TOKENISE
                )


def keep_columns(dataset: Any, columns: Sequence[str]) -> Any:
    """The data set without the columns that the model does not take."""
    names: list[str] = list(getattr(dataset, "column_names", None) or [])
    if isinstance(dataset, list) and isinstance(dataset[0], Mapping):
        names = list(dataset[0])
    unused = [name for name in names if name not in columns]
    if names and not set(names) - set(unused) - {"labels", *LABELS}:
        found = ", ".join(map(repr, names))
        raise DataError(f"None of the columns {found} is an input of the model.", TOKENISE)
    return dataset.remove_columns(unused) if hasattr(dataset, "remove_columns") else dataset


def rows_of(dataset: Any, rows: Sequence[int]) -> list[Any]:
    if hasattr(dataset, "__getitems__"):
        return list(dataset.__getitems__(list(rows)))
    return [dataset[row] for row in rows]


def as_tokens(dataset: Any, columns: Sequence[str]) -> tuple[Tokens | None, str]:
    """The rows as a token table, or the reason why they cannot be one."""
    if not hasattr(dataset, "with_format") and not isinstance(dataset, list):
        return None, f"the data set is a {type(dataset).__name__}"
    try:
        return from_rows(dataset, inputs=[name for name in columns if name not in LABELS]), ""
    except Unrepresentable as error:
        return None, str(error)


@dataclass(frozen=True)
class Collator:
    """Rows through the user's collator; where asked, only what the model takes reaches it."""

    collate: Collate
    columns: frozenset[str] | None

    def __call__(self, rows: list[Any]) -> dict[str, Any]:
        if self.columns is not None and rows and isinstance(rows[0], Mapping):
            rows = [{name: value for name, value in row.items() if name in self.columns} for row in rows]
        return dict(self.collate(rows))


def on_device(inputs: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """Tensors on the device, anything else as it is."""
    return {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in inputs.items()}


def count_items(inputs: Mapping[str, Any]) -> int | None:
    """Labels that count, as the stock Trainer counts them."""
    labels = inputs.get("labels")
    return None if not isinstance(labels, torch.Tensor) else int(labels.ne(-100).sum())


def batch_rows(inputs: Mapping[str, Any]) -> int:
    return next(len(value) for value in inputs.values() if isinstance(value, torch.Tensor) and value.dim())


@dataclass
class DatasetFeed:
    """Any data set through any collator, for a model or a loss that has to see the whole batch."""

    dataset: Any
    order: Order
    collate: Collator
    device: torch.device
    counts_items: bool = False
    """Whether the loss wants to know how many labels the whole step has."""
    rows: int = field(default=0, init=False)
    items: int | None = field(default=None, init=False)

    def batch(self, rows: Rows) -> Batch:
        inputs = self.collate(rows_of(self.dataset, rows.tolist()))
        return Batch(on_device(inputs, self.device), None)

    def weight(self, rows: Rows) -> float:
        self.rows = len(rows)
        if self.counts_items:
            self.items = count_items(self.collate(rows_of(self.dataset, rows.tolist())))
        return float(len(rows))

    def nothing_to_compare(self, rows: Rows) -> bool:
        return False  # the Trainer's loss is not contrastive


@dataclass(frozen=True)
class GroupedOrder(Order):
    """Steps of several batches each; a batch that is not full is left out, a group that is not full is not."""

    accumulate: int = 1

    @property
    def batches(self) -> int:
        """Full batches in an epoch."""
        return super().steps_per_epoch

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.batches // self.accumulate)

    def batch(self, epoch: int, index: int) -> Rows:
        first = index * self.accumulate
        last = min(first + self.accumulate, self.batches)
        return self._whole_epoch(epoch)[first * self.batch_size : last * self.batch_size]

    def _whole_epoch(self, epoch: int) -> Rows:
        if self.kind == "sequential":
            return np.arange(self.rows, dtype=np.int64)
        return self._epoch(epoch)


def make_order(args: Any, rows: int, kind: str, lengths: Any) -> Order:
    """The rows of every step; dropping the last batch drops a micro-batch, as the stock loader does."""
    settings: dict[str, Any] = {
        "rows": rows,
        "seed": args.seed if args.data_seed is None else args.data_seed,
        "kind": kind,
        "lengths": lengths,
        "drop_last": args.dataloader_drop_last,
    }
    size, accumulate = args.rows_together, args.gradient_accumulation_steps
    if args.dataloader_drop_last and accumulate > 1:
        order: Order = GroupedOrder(batch_size=size, accumulate=accumulate, **settings)
    else:
        order = Order(batch_size=size * accumulate, **settings)
    if not order.steps_per_epoch:
        raise DataError(
            f"train_dataset has {rows} rows, not one full batch of {size}, and dataloader_drop_last=True.",
            "Leave dataloader_drop_last out, or take a smaller batch.",
        )
    return order
