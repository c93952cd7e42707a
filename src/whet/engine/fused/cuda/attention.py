"""Attention over short packed rows on CUDA.

For rows of about fifty tokens, the tiles of 128 of flash attention are mostly empty, its backward pass is four
kernels, and its results must be joined. Here each direction is one kernel. It writes the gradients where the next
product reads them, with their column sums.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from whet.engine.fused.architectures import Shape
from whet.engine.fused.cuda import attention_kernels as kernels

BLOCK = 64
WARPS = 4
WIDTHS = (16, 32, 64, 128)
"""Head widths that a tile supports."""


class Saved(NamedTuple):
    """Values that the backward pass needs."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    context: Tensor
    logsum: Tensor
    offsets: Tensor
    grid: tuple[int, int]
    numbers: tuple[Any, ...]
    options: dict[str, Any]


def fits(shape: Shape, longest: int) -> bool:
    """Return whether these kernels support the sizes and are faster."""
    return longest <= kernels.LONGEST and shape.width in WIDTHS


def short_attention(
    asked: tuple[Tensor, ...],
    offsets: Tensor,
    longest: int,
    shape: Shape,
    drawn: tuple[Tensor, int, float],
    *,
    first: bool,
) -> tuple[Tensor, Saved]:
    """Return every token's answer, or with `first` (one query per row) each row's.

    `asked` holds queries, keys and values; `drawn` holds seed, key and dropout rate.
    """
    queries, keys, values = asked
    rows, hidden = offsets.shape[0] - 1, shape.heads * shape.width
    context = torch.empty(queries.shape[0], hidden, dtype=queries.dtype, device=queries.device)
    logsum = torch.empty(queries.shape[0], shape.heads, device=queries.device)
    blocks = -(-longest // BLOCK)
    numbers = (*drawn, shape.width**-0.5, queries.stride(0), keys.stride(0), int(first))
    options = {"HEADS": shape.heads, "HEAD": shape.width, "BLOCK": BLOCK, "DROP": drawn[2] > 0}
    # loops have one or two iterations, so there is nothing to prefetch
    options |= {"num_stages": 1, "num_warps": WARPS}
    kernels.attend[(rows * shape.heads, 1 if first else blocks)](
        queries, keys, values, context, logsum, offsets, *numbers, **options
    )
    grid = (rows * shape.heads, 2 * blocks)
    return context, Saved(queries, keys, values, context, logsum, offsets, grid, numbers, options)


def sums_of_short_attention(saved: Saved) -> int:
    """Return the number of partial column sums that the backward pass writes."""
    return saved.grid[0] // int(saved.options["HEADS"]) * (saved.grid[1] // 2)


def short_attention_backward(gradient: Tensor, saved: Saved, into: tuple[Tensor, ...], partial: Tensor) -> None:
    """Write gradients into views like those of the forward pass, and their column sums into `partial`, [sums,
    columns]."""
    hidden = gradient.shape[1]
    partials = [partial[:, start : start + hidden] for start in range(0, partial.shape[1], hidden)]
    kernels.attend_backward[saved.grid](
        *saved[:6], gradient, *into, partials[0], *partials[-2:], *saved.numbers, partial.stride(0), **saved.options
    )
