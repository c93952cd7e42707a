"""Launches the kernels of ModernBERT's layers. Each function returns its result and what its backward pass needs."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from whet.engine.captured import modernbert_kernels as kernels
from whet.engine.captured import rotary_attention_kernels as attention_kernels
from whet.engine.packed import Layout

NORM_PROGRAMS = 224
NORM_ELEMENTS = 4096
"""Elements of the rows that a program of a norm's backward pass holds at once."""
ATTENTION_BLOCK = 64
GATE_BLOCK = 1024
POOL_TILE, POOL_ROWS = 64, 16
NO_WINDOW = -1


class Norm(NamedTuple):
    total: Tensor
    mean: Tensor
    rstd: Tensor
    gamma: Tensor


class Attention(NamedTuple):
    qkv: Tensor
    turns: tuple[Tensor, Tensor]
    context: Tensor
    logsum: Tensor
    offsets: Tensor
    grid: tuple[int, int]
    numbers: tuple[Any, ...]
    options: dict[str, Any]


def embed_and_norm(ids: Tensor, table: Tensor, gamma: Tensor, epsilon: float) -> tuple[Tensor, Tensor, Norm]:
    """Return the norm of the embeddings as the first residual, in float32, and rounded for the first product."""
    wide = torch.empty(ids.shape[0], table.shape[1], device=ids.device)
    y, saved = _norm(table, ids, None, wide, gamma, epsilon, torch.bfloat16)
    return wide, y, saved


def add_and_norm(
    residual: Tensor, branch: Tensor, gamma: Tensor, epsilon: float, result: torch.dtype = torch.bfloat16
) -> tuple[Tensor, Tensor, Norm]:
    """Return the sum of residual and branch, and its norm in the type of the result."""
    y, saved = _norm(residual, None, branch, None, gamma, epsilon, result)
    return saved.total, y, saved


def _norm(
    x: Tensor,
    ids: Tensor | None,
    branch: Tensor | None,
    wide: Tensor | None,
    gamma: Tensor,
    epsilon: float,
    result: torch.dtype,
) -> tuple[Tensor, Norm]:
    rows, width = (x if ids is None else ids).shape[0], x.shape[1]
    y = torch.empty(rows, width, dtype=result, device=x.device)
    total = torch.empty(rows, width, device=x.device)
    # Each starts at an aligned address, also for few rows; otherwise the kernels are compiled again.
    mean, rstd = torch.empty(2, -(-rows // 4) * 4, device=x.device)
    kernels.residual_norm[(rows,)](
        x, y if ids is None else ids, y if branch is None else branch, gamma,
        total, y, total if wide is None else wide, mean, rstd, epsilon,
        WIDTH=width, BLOCK=_block(width), GATHER=ids is not None, ADD=branch is not None, WIDE=wide is not None,
    )  # fmt: skip
    return y, Norm(total, mean, rstd, gamma)


def norm_programs(rows: int, width: int) -> int:
    """Return how many partial sums the backward pass of a norm writes."""
    return min(NORM_PROGRAMS, -(-rows // _norm_rows(width)))


def norm_backward(
    gradient: Tensor, residual: Tensor | None, saved: Norm, partial: Tensor, *, before: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the gradient of the sum in float32, and rounded as that of the branch.

    `residual` is the gradient that goes around the norm, or, with `before`, a second gradient of the norm's result.
    Nobody reads the rounded gradient then, and it is not written.
    """
    rows, width = saved.total.shape
    d_total = torch.empty_like(saved.total)
    d_branch = d_total if before else torch.empty(rows, width, dtype=torch.bfloat16, device=d_total.device)
    kernels.residual_norm_backward[(partial.shape[0],)](
        gradient, d_total if residual is None else residual, *saved, d_total, d_branch, partial, rows,
        WIDTH=width, BLOCK=_block(width), ROWS=_norm_rows(width),
        BEFORE=before, AFTER=residual is not None and not before,
    )  # fmt: skip
    return d_total, d_branch


def attention(
    qkv: Tensor, turns: tuple[Tensor, Tensor], layout: Layout, heads: int, window: int
) -> tuple[Tensor, Attention]:
    """Return each token's answer from its row. `turns` are the cosines and sines of each place in a row; a window
    counts the places to each side, and NO_WINDOW sees the whole row."""
    tokens, hidden = qkv.shape[0], qkv.shape[1] // 3
    context = torch.empty(tokens, hidden, dtype=qkv.dtype, device=qkv.device)
    logsum = torch.empty(tokens, heads, device=qkv.device)
    blocks = -(-layout.longest // ATTENTION_BLOCK)
    if window >= layout.longest - 1:
        window = NO_WINDOW
    numbers = (tokens, (hidden // heads) ** -0.5)
    options = {"HEADS": heads, "HEAD": hidden // heads, "BLOCK": ATTENTION_BLOCK, "WINDOW": window}
    # Loops of one or two iterations have nothing to prefetch.
    options |= {"num_warps": 4, "num_stages": 1 if blocks <= 2 else 2}
    grid = (layout.offsets.shape[0] * heads, blocks)  # one more than there are rows
    attention_kernels.attend_turned[grid](qkv, *turns, layout.offsets, context, logsum, *numbers, **options)
    return context, Attention(qkv, turns, context, logsum, layout.offsets, grid, numbers, options)


def attention_backward(gradient: Tensor, saved: Attention) -> Tensor:
    d_qkv = torch.empty_like(saved.qkv)
    programs, blocks = saved.grid
    attention_kernels.attend_turned_backward[(programs, 2 * blocks)](
        saved.qkv, *saved.turns, saved.offsets, saved.context, saved.logsum, gradient, d_qkv,
        *saved.numbers, **saved.options,
    )  # fmt: skip
    return d_qkv


def gate(x: Tensor) -> Tensor:
    """Return gelu(left half) · right half."""
    rows, inner = x.shape[0], x.shape[1] // 2
    y = torch.empty(rows, inner, dtype=x.dtype, device=x.device)
    kernels.gated[(-(-y.numel() // GATE_BLOCK),)](x, y, y.numel(), INNER=inner, BLOCK=GATE_BLOCK)
    return y


def gate_backward(gradient: Tensor, x: Tensor) -> Tensor:
    d_x = torch.empty_like(x)
    elements = gradient.numel()
    kernels.gated_backward[(-(-elements // GATE_BLOCK),)](
        gradient, x, d_x, elements, INNER=x.shape[1] // 2, BLOCK=GATE_BLOCK
    )
    return d_x


def pool(x: Tensor, layout: Layout, *, mean: bool) -> Tensor:
    """Return the mean of each row, or its first token."""
    rows, width = layout.offsets.shape[0] - 1, x.shape[1]
    y = torch.empty(rows, width, device=x.device)
    kernels.pool[(rows, -(-width // POOL_TILE))](
        x, layout.offsets, y, WIDTH=width, TILE=POOL_TILE, ROWS=POOL_ROWS, MEAN=mean
    )
    return y


def pool_backward(gradient: Tensor, tokens: int, layout: Layout, *, mean: bool) -> Tensor:
    rows, width = gradient.shape
    d_x = torch.empty(tokens, width, device=gradient.device)
    kernels.pool_backward[(rows + 1, -(-width // POOL_TILE))](
        gradient, layout.offsets, d_x, tokens, WIDTH=width, TILE=POOL_TILE, ROWS=POOL_ROWS, MEAN=mean
    )
    return d_x


def _block(width: int) -> int:
    return 1 << (width - 1).bit_length()


def _norm_rows(width: int) -> int:
    return max(1, min(4, NORM_ELEMENTS // _block(width)))
