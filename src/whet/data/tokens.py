"""Tokens of a split: flat arrays without padding, mapped from disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Truncation:
    """What the model's limit cost: rows and tokens cut, by side."""

    rows: int = 0
    """Rows that lost tokens."""
    tokens: int = 0
    """Tokens that were cut, of both texts."""
    first_rows: int = 0
    first_tokens: int = 0
    second_rows: int = 0
    second_tokens: int = 0


@dataclass(frozen=True)
class Tokens:
    """Rows one after another: row i is `ids[offsets[i]:offsets[i + 1]]`."""

    ids: NDArray[np.int32]
    offsets: NDArray[np.int64]
    types: NDArray[np.uint8] | None
    labels: NDArray[Any] | None
    """int64 [n], or float32 [n, k] (multilabel) or [n] (regression); None where any row is unlabelled."""
    ledger: Truncation
    fingerprint: str

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)

    def row(self, index: int) -> NDArray[np.int32]:
        return self.ids[self.offsets[index] : self.offsets[index + 1]]
