"""What is decided about a run before it is taken: here how short a batch must be to count as short."""

from __future__ import annotations

import numpy as np

from whet.data.tokens.batches import BatchOrder
from whet.engine.dispatch import short_batch_tokens

LENGTHS = np.random.default_rng(0).integers(5, 100, 4000).astype(np.int32)


def order(kind: str = "random", batch_size: int = 8) -> BatchOrder:
    return BatchOrder(rows=len(LENGTHS), batch_size=batch_size, seed=1, kind=kind, lengths=LENGTHS)  # type: ignore[arg-type]


def test_about_one_batch_of_twenty_is_shorter() -> None:
    least, drawn = short_batch_tokens(LENGTHS, order(), 8, 1), order()
    shorter = [LENGTHS[drawn.at(step)].sum() < least for step in range(500)]
    assert 0.02 < np.mean(shorter) < 0.08


def test_a_process_is_measured_by_its_own_part() -> None:
    assert short_batch_tokens(LENGTHS, order(batch_size=16), 16, 2) == short_batch_tokens(LENGTHS, order(), 8, 1)


def test_batches_of_like_lengths_are_all_of_their_own_size() -> None:
    assert short_batch_tokens(LENGTHS, order("bucketed"), 8, 1) == 0
