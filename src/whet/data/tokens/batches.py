"""Batches: the rows of a step, and the layout of their tokens.

The order of rows is a pure function of (seed, epoch, position). So a resumed run needs no state but its step, and
every process computes the same global batch and takes its `rank_slice` of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from whet.data.tokens.array_files import slice_indices
from whet.errors import UsageError

if TYPE_CHECKING:
    from whet.data.tokens.table import Tokens

Rows = NDArray[np.int64]

# Batches sorted by length together: enough to group similar lengths, few enough to stay shuffled.
POOL = 50
_ORDER, _BATCH_ORDER = 0, 1


@dataclass(frozen=True)
class BatchOrder:
    """The rows of every step over all processes; every row occurs once per epoch."""

    rows: int
    batch_size: int
    seed: int
    kind: Literal["random", "bucketed", "sequential"] = "random"
    lengths: NDArray[Any] | None = field(default=None, repr=False, compare=False)
    """Tokens of each row; only `bucketed` needs them."""
    drop_last: bool = False
    _epochs: dict[int, Rows] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.rows < 0 or self.batch_size < 1:
            raise UsageError(
                f"An order of {self.rows} rows in batches of {self.batch_size} is not possible.",
                "Rows must be 0 or more, the batch size 1 or more.",
            )
        if self.kind not in ("random", "bucketed", "sequential"):
            raise UsageError(f"order is {self.kind!r}.", "It must be one of random, bucketed, sequential.")
        if self.kind == "bucketed" and (self.lengths is None or len(self.lengths) != self.rows):
            raise UsageError("A bucketed order needs the length of every row.")

    @property
    def steps_per_epoch(self) -> int:
        whole, rest = divmod(self.rows, self.batch_size)
        return whole if self.drop_last or not rest else whole + 1

    def batch(self, epoch: int, index: int) -> Rows:
        """Return the row numbers of one step."""
        if epoch < 0 or not 0 <= index < self.steps_per_epoch:
            raise IndexError(f"no batch {index} in epoch {epoch}: an epoch has {self.steps_per_epoch}")
        start = index * self.batch_size
        stop = min(start + self.batch_size, self.rows)
        if self.kind == "sequential":
            return np.arange(start, stop, dtype=np.int64)
        return self._epoch(epoch)[start:stop]

    def at(self, step: int) -> Rows:
        """Return the row numbers of the step after `step` others, in any epoch."""
        if not self.steps_per_epoch:
            raise IndexError("an order without batches has no steps")
        return self.batch(*divmod(step, self.steps_per_epoch))

    def _epoch(self, epoch: int) -> Rows:
        order = self._epochs.get(epoch)
        if order is None:
            order = self._shuffled(epoch)
            order.flags.writeable = False  # batches are views of it
            # A loop needs one epoch at a time, and a look-ahead the next one.
            while len(self._epochs) >= 2:
                self._epochs.pop(next(iter(self._epochs)))
            self._epochs[epoch] = order
        return order

    def _shuffled(self, epoch: int) -> Rows:
        order = permutation(self.rows, self.seed, epoch, _ORDER)
        if self.kind == "bucketed":
            # Rows that do not fill a batch stay at the end, unsorted: dropping them favours no length.
            whole = self.rows // self.batch_size
            body = self._bucketed(order[: whole * self.batch_size])
            body = body.reshape(whole, self.batch_size)[permutation(whole, self.seed, epoch, _BATCH_ORDER)]
            order[: whole * self.batch_size] = body.reshape(-1)
        return order

    def _bucketed(self, order: Rows) -> Rows:
        assert self.lengths is not None
        pools = np.arange(len(order)) // (POOL * self.batch_size)
        return order[np.lexsort((self.lengths[order], pools))]


def permutation(count: int, seed: int, *stream: int) -> Rows:
    """Return a random order of `range(count)`, the same on every machine and with every version of numpy.

    numpy guarantees that the raw numbers of a bit generator never change, but not those of `shuffle`.
    """
    words = np.random.SeedSequence((seed % 2**64, *stream)).generate_state(2, np.uint64)
    raw = np.random.Philox(key=words).random_raw(count)
    return np.argsort(raw, kind="stable").astype(np.int64, copy=False)


def rank_slice(rows: Rows, rank: int, world: int) -> Rows:
    """Return this process's part of a global batch: contiguous, and at most one row longer than another's."""
    if not 0 <= rank < world:
        raise ValueError(f"rank {rank} of {world} processes")
    size, rest = divmod(len(rows), world)
    start = rank * size + min(rank, rest)
    return rows[start : start + size + (rank < rest)]


def pad(tokens: Tokens, rows: Rows, *, pad_id: int, multiple: int = 1, pad_type: int = 0) -> dict[str, NDArray[Any]]:
    """Return rows as one rectangle, padded on the right to the longest row or to a multiple above it."""
    where, lengths = _token_indices(tokens.offsets, rows)
    width = -(-int(lengths.max(initial=0)) // multiple) * multiple
    filled = np.arange(width) < lengths[:, None]

    def rectangle(values: NDArray[Any], filler: int) -> NDArray[np.int64]:
        out = np.full(filled.shape, filler, dtype=np.int64)
        out[filled] = values.take(where)
        return out

    batch: dict[str, NDArray[Any]] = {"input_ids": rectangle(tokens.ids, pad_id)}
    if tokens.types is not None:
        batch["token_type_ids"] = rectangle(tokens.types, pad_type)
    batch["attention_mask"] = filled.astype(np.int64)
    if tokens.labels is not None:
        batch["labels"] = tokens.labels[tokens.text_of(rows)]
    return batch


@dataclass(frozen=True)
class Packed:
    """Rows one after another without padding; row i is `input_ids[cu_seqlens[i]:cu_seqlens[i + 1]]`."""

    input_ids: NDArray[np.int64]
    position_ids: NDArray[np.int64]
    """Starts at 0 in every row; models that count from their padding id add that themselves."""
    token_type_ids: NDArray[np.int64] | None
    cu_seqlens: NDArray[np.int32]
    max_length: int
    labels: NDArray[Any] | None


def pack(tokens: Tokens, rows: Rows) -> Packed:
    """Return rows one after another, with their offsets."""
    where, lengths = _token_indices(tokens.offsets, rows)
    ends = np.zeros(len(rows) + 1, dtype=np.int32)
    np.cumsum(lengths, out=ends[1:])
    return Packed(
        input_ids=tokens.ids.take(where).astype(np.int64),
        position_ids=np.arange(len(where)) - np.repeat(ends[:-1], lengths),
        token_type_ids=None if tokens.types is None else tokens.types.take(where).astype(np.int64),
        cu_seqlens=ends,
        max_length=int(lengths.max(initial=0)),
        labels=None if tokens.labels is None else tokens.labels[tokens.text_of(rows)],
    )


def _token_indices(offsets: NDArray[np.int64], rows: Rows) -> tuple[Rows, Rows]:
    """The indices of these rows' tokens in the flat arrays, row after row, and the number of tokens per row."""
    starts = offsets[rows]
    lengths = offsets[rows + 1] - starts
    return slice_indices(starts, lengths), lengths
