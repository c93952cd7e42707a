"""A model and a token table to logits in input order, and logits to an evaluation record's numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from whet.data.tokens import Tokens
from whet.engine.devices import Hardware
from whet.engine.feed import Network, Rows
from whet.engine.step import precision

Array = np.ndarray[Any, Any]
Interrupt = Callable[[], None]
"""Called between batches; raises to leave the evaluation early."""

WORST_ROWS = 10


def compute_logits(
    network: Network,
    tokens: Tokens,
    hardware: Hardware,
    *,
    batch_rows: int,
    rows: Rows | None = None,
    between: Interrupt = lambda: None,
) -> Array:
    """float32 logits of the rows (all of them, if not said), in input order.

    Inside, rows of like length are computed together.
    """
    chosen = np.arange(len(tokens), dtype=np.int64) if rows is None else rows
    if not len(chosen):
        return np.zeros((0, network.model.config.num_labels), dtype=np.float32)
    network.model.eval()
    parts, order = [], []
    # inference_mode would mark tensors that a later training step could not use; no_grad does not.
    with torch.no_grad(), precision(hardware):
        for places in _by_length(tokens.lengths[chosen], batch_rows):
            between()
            parts.append(network.logits(network.collate(tokens, chosen[places])).float())
            order.append(places)
    logits = torch.cat(parts).cpu().numpy()
    result = np.empty_like(logits)
    result[np.concatenate(order)] = logits
    return result


def _by_length(lengths: Array, batch_rows: int) -> Iterator[Rows]:
    """Longest first, so that memory is taken once and running out of it shows at once."""
    order = np.argsort(-lengths, kind="stable").astype(np.int64)
    for start in range(0, len(order), batch_rows):
        yield order[start : start + batch_rows]


def probe_rows(rows: int, wanted: int, seed: int) -> Rows:
    """The fixed sample of training rows that is measured beside the evaluation split."""
    if rows <= wanted:
        return np.arange(rows, dtype=np.int64)
    chosen = np.random.Generator(np.random.Philox(key=[seed, 0x9706E])).choice(rows, wanted, replace=False)
    return np.sort(chosen).astype(np.int64)


def confusion_matrix(labels: Array, predicted: Array, classes: int) -> list[list[int]]:
    """Counts by true label (row) and predicted label (column)."""
    table = np.bincount(labels * classes + predicted, minlength=classes * classes)
    return [[int(count) for count in row] for row in table.reshape(classes, classes)]


def most_wrong(probabilities: Array, labels: Array, most: int = WORST_ROWS) -> list[tuple[int, float]]:
    """Rows to which the model gives their own label the least probability, and that probability."""
    own = probabilities[np.arange(len(labels)), labels]
    wrong = np.flatnonzero(probabilities.argmax(axis=1) != labels)
    worst = wrong[np.argsort(own[wrong], kind="stable")][:most]
    return [(int(row), float(own[row])) for row in worst]
