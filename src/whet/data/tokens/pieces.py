"""Chooses the tokens that are read of a long text: its head, its head and tail, or all of it in windows.

A window is one row of the model, with the maximum length. The windows of a text are spread evenly from its first
token to its last. Neighbours share at least an eighth, so that a sentence at an edge is complete in one of them. Both
texts of a pair advance together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]
Long = Literal["head", "head-tail", "windows"]

OVERLAP_PART = 8
"""Consecutive windows share at least one part in this many."""


@dataclass(frozen=True)
class Pieces:
    """Rows made of texts: row r holds parts of text `owner[r]`."""

    owner: Counts
    parts: list[list[tuple[Counts, Counts]]]
    """For the first text, and the second one of a pair: the part of each row, as (start, count) in its text."""
    windows: Counts | None = None
    """Number of rows of each text; None if each has one."""


def choose_pieces(lengths: list[Counts], kept: list[Counts], long: Long, *, from_left: bool) -> Pieces:
    """Return the parts to read of texts with these lengths, for this room per row.

    With a tokenizer that cuts `from_left`, the head is the end of the text.
    """
    rows = np.arange(len(lengths[0]), dtype=np.int64)
    if long == "windows":
        return _windows(lengths, kept)
    if long == "head-tail":
        return Pieces(rows, [_head_and_tail(*each) for each in zip(lengths, kept, strict=True)])
    starts = [whole - keep if from_left else np.zeros_like(whole) for whole, keep in zip(lengths, kept, strict=True)]
    return Pieces(rows, [[each] for each in zip(starts, kept, strict=True)])


def _head_and_tail(whole: Counts, keep: Counts) -> list[tuple[Counts, Counts]]:
    """Return half of the room for each; a text that fits is all head."""
    tail = np.where(whole > keep, keep // 2, 0)
    return [(np.zeros_like(whole), keep - tail), (whole - tail, tail)]


def _windows(lengths: list[Counts], kept: list[Counts]) -> Pieces:
    count = np.ones(len(lengths[0]), np.int64)
    for whole, keep in zip(lengths, kept, strict=True):
        overlap = keep // OVERLAP_PART
        needed = -((overlap - whole) // np.maximum(keep - overlap, 1))  # rounded up
        count = np.maximum(count, np.where(whole > keep, needed, 1))
    owner = np.repeat(np.arange(len(count)), count)
    place = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
    last = np.maximum(count[owner] - 1, 1)
    parts = [[((whole - keep)[owner] * place // last, keep[owner])] for whole, keep in zip(lengths, kept, strict=True)]
    return Pieces(owner, parts, count)
