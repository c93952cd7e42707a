"""Batches at a fixed place on the device: as one rectangle, or as rows one after another.

Both hold a fixed number of rows. A place without a row has a share of zero in the loss, so its gradient is exactly
zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from whet.data.tokens.batches import pack, pad
from whet.data.tokens.table import Tokens
from whet.engine.captured.static_inputs import StaticInputs
from whet.engine.network import Batch, Rows
from whet.engine.packed import Layout
from whet.models.families import position_shift

LENGTH_BUCKET = 16
TOKEN_BUCKET = 64
LARGE = 1024
"""For each multiple of this many tokens, buckets grow by TOKEN_BUCKET: shapes are few, and there is little filling."""
LONGEST_BUCKET = 128
RARE = 0.05
"""The shortest batches, about this share of all, are padded to one length, to save graphs."""

Shape = tuple[int, int, int]
"""Of a `Rectangle`: rows, length, 0. `InARow`: rows, tokens of all rows, longest row. Lengths are rounded up."""


class Format(Protocol):
    """How the tokens of a batch lie in memory."""

    def shape(self, tokens: Tokens, rows: Rows, places: int) -> Shape:
        """Return the shape that holds these rows."""

    def integers(self, tokens: Tokens, rows: Rows, shape: Shape) -> Any:
        """Return the tokens of these rows as one array; without rows, of missing rows only."""

    def inputs(self, integers: Tensor, shape: Shape) -> tuple[dict[str, Tensor], Layout | None]:
        """Return the same as tensors on the device, which are views of `integers`."""


class Rectangle:
    """Every row is padded to the same length: what every model of the library takes."""

    def __init__(self, config: Any, shortest: int = 0) -> None:
        """`shortest` is the length to which shorter batches are padded."""
        pad_id = getattr(config, "pad_token_id", None)
        self.pad_id, self.shortest = pad_id or 0, shortest
        self.widens = pad_id is not None
        """Without a padding token a decoder's head reads the last column, so rows must not become longer."""
        limit = getattr(config, "max_position_embeddings", None)
        self.limit = None if limit is None else limit - position_shift(config)

    def shape(self, tokens: Tokens, rows: Rows, places: int) -> Shape:
        longest = int(tokens.row_lengths[rows].max())
        if not self.widens:
            return max(places, len(rows)), longest, 0
        return max(places, len(rows)), padded_width(max(longest, self.shortest), longest, self.limit), 0

    def integers(self, tokens: Tokens, rows: Rows, shape: Shape) -> Any:
        batch = pad(tokens, rows, pad_id=self.pad_id)
        batch.pop("labels", None)
        integers = np.zeros((len(batch), *shape[:2]), dtype=np.int64)
        for block, (name, values) in zip(integers, batch.items(), strict=True):
            block[:] = self.pad_id if name == "input_ids" else 0
            block[: values.shape[0], : values.shape[1]] = values
            if name == "attention_mask":
                block[len(rows) :, 0] = 1  # attention over nothing is not a number
        return integers.ravel()

    def inputs(self, integers: Tensor, shape: Shape) -> tuple[dict[str, Tensor], Layout | None]:
        blocks = integers.view(-1, *shape[:2])
        types = ("token_type_ids",) if len(blocks) == 3 else ()
        return dict(zip(("input_ids", *types, "attention_mask"), blocks, strict=True)), None


class InARow:
    """Rows lie one after another. Tokens behind the last row belong to no row, and missing rows have no tokens."""

    def __init__(self, shortest: int = 0) -> None:
        """`shortest` is a number of tokens that few batches stay below."""
        self.shortest = shortest

    def shape(self, tokens: Tokens, rows: Rows, places: int) -> Shape:
        lengths = tokens.row_lengths[rows]
        longest = -(-int(lengths.max()) // LONGEST_BUCKET) * LONGEST_BUCKET
        return max(places, len(rows)), token_bucket(max(int(lengths.sum()), self.shortest)), longest

    def integers(self, tokens: Tokens, rows: Rows, shape: Shape) -> Any:
        places, room, _ = shape
        packed = pack(tokens, rows)
        ids = np.zeros(room, dtype=np.int64)
        ids[: len(packed.input_ids)] = packed.input_ids
        offsets = np.full(places + 1, len(packed.input_ids), dtype=np.int64)
        offsets[: len(rows) + 1] = packed.cu_seqlens
        return np.concatenate([ids, offsets])

    def inputs(self, integers: Tensor, shape: Shape) -> tuple[dict[str, Tensor], Layout | None]:
        places, room, longest = shape
        ids, offsets = torch.split(integers, [room, places + 1])
        nothing = integers[:0]
        return {"input_ids": ids}, Layout(offsets.int(), offsets[:-1], nothing, longest, nothing)


@dataclass
class StaticBatch:
    """A batch at a fixed place on the device."""

    form: Format
    shape: Shape
    buffer: StaticInputs
    labels: tuple[int, ...]
    """The shape of one row's labels."""
    integral: bool
    """Whether labels are classes."""

    @classmethod
    def like(cls, form: Format, shape: Shape, tokens: Tokens, device: torch.device) -> StaticBatch:
        """Return the place for batches of this shape, filled with missing rows."""
        assert tokens.labels is not None
        wide, nobody = tuple(tokens.labels.shape[1:]), np.zeros(0, dtype=np.int64)
        integers = form.integers(tokens, nobody, shape)
        integral = not wide and bool(np.issubdtype(tokens.labels.dtype, np.integer))
        reals = np.zeros(shape[0] * (1 + int(np.prod(wide))), dtype=np.float32)
        static = cls(form, shape, StaticInputs(len(integers), len(reals), device), wide, integral)
        static.buffer.fill(integers, reals)
        return static

    def fill(self, tokens: Tokens, rows: Rows, shares: Any) -> None:
        """Put these rows there, each with its share in the loss."""
        assert tokens.labels is not None
        places = self.shape[0]
        labels = np.zeros((places, *self.labels), dtype=np.float32)
        labels[: len(rows)] = tokens.labels[tokens.text_of(rows)]
        share = np.zeros(places, dtype=np.float32)
        share[: len(rows)] = shares
        self.buffer.fill(self.form.integers(tokens, rows, self.shape), np.concatenate([share, labels.ravel()]))

    def batch(self) -> Batch:
        """Return the tensors that a graph reads."""
        places = self.shape[0]
        inputs, layout = self.form.inputs(self.buffer.integers, self.shape)
        share, labels = self.buffer.reals[:places], self.buffer.reals[places:].view(places, *self.labels)
        return Batch(inputs, labels.long() if self.integral else labels, layout, share)


def padded_width(width: int, least: int, limit: int | None) -> int:
    """Return the width rounded up to one of few sizes; with a limit at most that, but never below `least`."""
    grain = max(LENGTH_BUCKET, 1 << max(0, (width - 1).bit_length() - 3))
    rounded = -(-width // grain) * grain
    return rounded if limit is None else max(least, min(rounded, limit))


def token_bucket(tokens: int) -> int:
    """Return the number of tokens rounded up to one of few sizes."""
    bucket = TOKEN_BUCKET * max(1, tokens // LARGE)
    return -(-tokens // bucket) * bucket


def shortest_row(lengths: Any, rows: int) -> int:
    """Return a length that the longest row of one random batch in twenty stays below."""
    return int(np.quantile(lengths, RARE ** (1 / rows))) if len(lengths) else 0
