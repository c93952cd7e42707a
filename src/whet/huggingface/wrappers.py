"""Thin wrappers of library functions that fail for course code, and a collator of whet's own."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from whet.errors import EnvironmentFault, UsageError

if TYPE_CHECKING:
    import torch


def load_dataset(path: str, *args: Any, **kwargs: Any) -> Any:
    """`datasets.load_dataset`, with a clear error for a data set that cannot be loaded."""
    import datasets

    try:
        return datasets.load_dataset(path, *args, **kwargs)
    except (ConnectionError, FileNotFoundError, datasets.exceptions.DatasetNotFoundError) as error:
        reason = str(error).strip().splitlines()[0][:160] if str(error).strip() else type(error).__name__
        raise EnvironmentFault(
            f"The data set {path!r} is neither a folder here nor in the cache, and the hub did not give it: {reason}",
            "Load it once with a connection, put its files into a folder of that name here, or read your own: "
            'load_dataset("csv", data_files={"train": "train.csv"}).',
        ) from error


class AutoTokenizer:
    """`transformers.AutoTokenizer`, whose tokenizers also take a column of a data set, as in the course."""

    @staticmethod
    def from_pretrained(name: Any, *args: Any, **kwargs: Any) -> Any:
        from transformers import AutoTokenizer as Stock

        accept_columns()
        return Stock.from_pretrained(name, *args, **kwargs)

    @staticmethod
    def register(*args: Any, **kwargs: Any) -> None:
        from transformers import AutoTokenizer as Stock

        Stock.register(*args, **kwargs)


def accept_columns() -> None:
    """Let every tokenizer be called with a column; `datasets` returns one where it used to return a list.

    The method of the library's base class is wrapped, not the tokenizer: a subclass would change what is saved, how a
    data set's `map` recognises the same tokenizer, and what a worker process can load.
    """
    from transformers import PreTrainedTokenizerBase

    stock = PreTrainedTokenizerBase.__call__
    if getattr(stock, "_whet", False):
        return

    @functools.wraps(stock)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return stock(self, *map(as_list, args), **{name: as_list(value) for name, value in kwargs.items()})

    call._whet = True  # type: ignore[attr-defined]
    PreTrainedTokenizerBase.__call__ = call


def as_list(value: Any) -> Any:
    """Return a column of `datasets`, an array or a Series of texts as a list; other values unchanged."""
    kind = type(value)
    if kind.__name__ == "Column" and kind.__module__.partition(".")[0] == "datasets":
        return value[:]
    if kind.__module__.partition(".")[0] in ("numpy", "pandas") and hasattr(value, "tolist"):
        return value.tolist()
    return value


@dataclass
class PaddingCollator:
    """Collates rows to a padded batch of tensors: to the longest row, or to a multiple above it."""

    tokenizer: Any
    pad_to_multiple_of: int | None = None

    def __post_init__(self) -> None:
        if getattr(self.tokenizer, "padding_side", "right") != "right":
            raise UsageError("The tokenizer pads on the left.", "Use DataCollatorWithPadding for it.")

    def __call__(self, rows: Sequence[Mapping[str, Any]] | Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """`rows` as a list of dictionaries, or as one dictionary of columns."""
        if isinstance(rows, Mapping):
            count = len(next(iter(rows.values())))
            rows = [{name: column[place] for name, column in rows.items()} for place in range(count)]
        import numpy as np
        import torch

        from whet.data.tokens.batches import pad
        from whet.data.tokens.from_dataset import from_rows

        tokens = from_rows(list(rows))
        batch = pad(
            tokens,
            np.arange(len(tokens)),
            pad_id=self.tokenizer.pad_token_id,
            multiple=self.pad_to_multiple_of or 1,
            pad_type=getattr(self.tokenizer, "pad_token_type_id", 0),
        )
        return {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in batch.items()}
