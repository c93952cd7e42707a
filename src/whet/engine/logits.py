"""Computes the logits of a token table in input order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from whet.data.tokens.table import Tokens
from whet.engine.network import Network, Rows
from whet.engine.packed import GRID_GRAIN
from whet.utils.arrays import Array
from whet.utils.device import Hardware, precision
from whet.utils.memory import free_cached_memory, is_memory_error, no_room_for_one_row

Interrupt = Callable[[], None]
"""Called between batches; raises to stop the evaluation."""
Smaller = Callable[[int], None]
"""Called with the new number of rows per batch after running out of memory."""


def tokens_per_batch(device: torch.device) -> int:
    """Return a number of tokens that fills the device and still fits its caches and memory."""
    return {"cpu": 2048, "cuda": 16384}.get(device.type, 4096)


def compute_logits(
    network: Network,
    tokens: Tokens,
    hardware: Hardware,
    *,
    batch_rows: int,
    batch_tokens: int | None = None,
    rows: Rows | None = None,
    check_interrupt: Interrupt = lambda: None,
    on_smaller_batch: Smaller = lambda rows: None,
) -> Array:
    """Return float32 logits of the texts `rows` (all by default), in input order; the mean over a text's windows.

    Rows of similar length are batched together, with at most `batch_tokens` tokens if given. After running out of
    memory, batches have half as many rows from there on.
    """
    texts = np.arange(len(tokens), dtype=np.int64) if rows is None else rows
    if not len(texts):
        return np.zeros((0, network.model.config.num_labels), dtype=np.float32)
    chosen, lengths = tokens.rows_of(texts), tokens.row_lengths
    if network.model.training:  # checked first: setting the mode of every module takes as long as a small forward pass
        network.model.eval()
    # Longest first, so that memory is allocated once and running out of it shows at once.
    order = np.argsort(-lengths[chosen], kind="stable").astype(np.int64)
    parts: list[Tensor] = []
    done = 0
    # inference_mode would mark tensors that a later training step could not use; no_grad does not.
    with torch.no_grad(), precision(hardware):
        while done < len(order):
            check_interrupt()
            most = batch_rows
            if batch_tokens is not None:
                # The same number of rows for all lengths of one grid step, so that batches have few shapes.
                longest = int(lengths[chosen[order[done]]])
                most = min(batch_rows, max(1, batch_tokens // (-(-longest // GRID_GRAIN) * GRID_GRAIN)))
            places = order[done : done + most]
            try:
                parts.append(network.logits(network.collate(tokens, chosen[places])).float())
                done += len(places)
                continue
            except (torch.OutOfMemoryError, RuntimeError, MemoryError) as error:
                batch_rows = _half(error, len(places))
            # Outside the handler the error is freed, and with it the tensors of the failed batch.
            free_cached_memory(hardware.device)
            on_smaller_batch(batch_rows)
    logits = torch.cat(parts).cpu().numpy()
    result = np.empty_like(logits)
    result[order] = logits
    return result if tokens.texts is None else mean_of_windows(result, tokens.windows(texts))


def mean_of_windows(logits: Array, windows: Array) -> Array:
    """Return the mean logits of each text over its windows."""
    starts = np.cumsum(windows) - windows
    sums = np.add.reduceat(logits, starts, axis=0, dtype=np.float64)
    return (sums / windows[:, None]).astype(np.float32)


def _half(error: BaseException, rows: int) -> int:
    """Return half as many rows if that may help; otherwise raise, with a clear message for a memory error."""
    if not is_memory_error(error):
        raise error
    if rows <= 1:
        raise no_room_for_one_row(error) from None
    return (rows + 1) // 2
