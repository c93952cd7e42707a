"""Attention over short packed rows on CUDA.

Flash attention is made for long rows: for rows of some fifty tokens its tiles of 128 are mostly empty, its backward
pass is four kernels, and what comes out must be put side by side again. Here it is one kernel each way, which writes
gradients where the next product reads them, with their column sums.
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
"""Widths of a head that a tile can have."""


class Saved(NamedTuple):
    """What the backward pass needs."""

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
    """Whether these kernels can do it, and are the faster ones."""
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
    """Every token's answer, or with `first`, where there is one query a row, each row's.

    `asked`: queries, keys and values; `drawn`: seed, key and rate.
    """
    queries, keys, values = asked
    rows, hidden = offsets.shape[0] - 1, shape.heads * shape.width
    context = torch.empty(queries.shape[0], hidden, dtype=queries.dtype, device=queries.device)
    logsum = torch.empty(queries.shape[0], shape.heads, device=queries.device)
    blocks = -(-longest // BLOCK)
    numbers = (*drawn, shape.width**-0.5, queries.stride(0), keys.stride(0), int(first))
    options = {"HEADS": shape.heads, "HEAD": shape.width, "BLOCK": BLOCK, "DROP": drawn[2] > 0}
    options |= {"num_stages": 1, "num_warps": WARPS}  # loops of one or two turns: nothing to fetch ahead
    kernels.attend[(rows * shape.heads, 1 if first else blocks)](
        queries, keys, values, context, logsum, offsets, *numbers, **options
    )
    grid = (rows * shape.heads, 2 * blocks)
    return context, Saved(queries, keys, values, context, logsum, offsets, grid, numbers, options)


def sums_of_short_attention(saved: Saved) -> int:
    """How many partial column sums the backward pass writes."""
    return saved.grid[0] // int(saved.options["HEADS"]) * (saved.grid[1] // 2)


def short_attention_backward(gradient: Tensor, saved: Saved, into: tuple[Tensor, ...], partial: Tensor) -> None:
    """Gradients into views like those the forward pass read; their column sums into `partial`, [sums, columns]."""
    hidden = gradient.shape[1]
    partials = [partial[:, start : start + hidden] for start in range(0, partial.shape[1], hidden)]
    kernels.attend_backward[saved.grid](
        *saved[:6], gradient, *into, partials[0], *partials[-2:], *saved.numbers, partial.stride(0), **saved.options
    )
