"""Thin wrappers of library functions that fail for course code."""

from __future__ import annotations

import functools
from typing import Any

from whet.errors import EnvironmentFault


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


def __getattr__(name: str) -> Any:
    """`AutoTokenizer` is the library's own; tokenizers also take a column of a data set, as in the course."""
    if name != "AutoTokenizer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from transformers import AutoTokenizer

    accept_columns()
    return AutoTokenizer


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
