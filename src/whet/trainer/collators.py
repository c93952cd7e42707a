"""A collator of whet's own, interchangeable with the stock `DataCollatorWithPadding`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from whet.data.tokens.batches import pad
from whet.data.tokens.from_dataset import from_rows
from whet.errors import UsageError


@dataclass
class PaddingCollator:
    """Rows to a padded batch of tensors: to the longest row, or to a multiple above it."""

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
        tokens = from_rows(list(rows))
        batch = pad(
            tokens,
            np.arange(len(tokens)),
            pad_id=self.tokenizer.pad_token_id,
            multiple=self.pad_to_multiple_of or 1,
            pad_type=getattr(self.tokenizer, "pad_token_type_id", 0),
        )
        return {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in batch.items()}
