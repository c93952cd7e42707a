"""Triton kernels of ModernBERT's layers: everything but matrix products and attention.

No two programs add to the same place: sums over tokens are written as partial sums, and torch adds them in a fixed
order.
"""

# No `from __future__` here: Triton reads the types of constants from annotations, and the code from this file.
import triton
import triton.language as tl

from whet.engine.fused.cuda.compile import Kernel
from whet.engine.fused.cuda.layer_kernels import erf_gelu, erf_gelu_slope, through_norm


@Kernel
@triton.jit
def residual_norm(
    x,
    ids,
    branch,
    gamma,
    total,
    y,
    wide,
    mean,
    rstd,
    epsilon,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    GATHER: tl.constexpr,
    ADD: tl.constexpr,
    WIDE: tl.constexpr,
):
    """y = norm(x + branch), one row per program; x is in float32, and `total` keeps the sum.

    With GATHER the row of x is the token's, from the embeddings. With WIDE the result is also written in float32.
    """
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    element = row * WIDTH + column
    if GATHER:
        value = tl.load(x + tl.load(ids + row) * WIDTH + column, inside, 0.0)
    else:
        value = tl.load(x + element, inside, 0.0)
    if ADD:
        value += tl.load(branch + element, inside, 0.0).to(tl.float32)
    tl.store(total + element, value, inside)
    middle = tl.sum(value, 0) / WIDTH
    centred = tl.where(inside, value - middle, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 0) / WIDTH + epsilon)
    normed = centred * scale * tl.load(gamma + column, inside, 0.0)
    tl.store(y + element, normed, inside)
    if WIDE:
        tl.store(wide + element, normed, inside)
    tl.store(mean + row, middle)
    tl.store(rstd + row, scale)


@Kernel
@triton.jit(do_not_specialize=["rows"])
def residual_norm_backward(
    d_y,
    d_residual,
    total,
    mean,
    rstd,
    gamma,
    d_total,
    d_branch,
    partial,
    rows,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    BEFORE: tl.constexpr,
    AFTER: tl.constexpr,
):
    """The gradient of the sum, in float32 and rounded for the branch's products; partial sums for gamma.

    The gradient of the residual stream joins after the norm (AFTER), which the stream goes around, or before it
    (BEFORE), where the norm's result is the stream itself, as for the embeddings.
    """
    program, programs = tl.program_id(0), tl.num_programs(0)
    column = tl.arange(0, BLOCK)
    thick = column < WIDTH
    weight = tl.load(gamma + column, thick, 0.0)[None, :]
    for_gamma = tl.zeros((BLOCK,), tl.float32)
    for begin in range(program * ROWS, rows, programs * ROWS):
        row = begin + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & thick[None, :]
        element = row[:, None] * WIDTH + column[None, :]
        gradient = tl.load(d_y + element, inside, 0.0).to(tl.float32)
        if BEFORE:
            gradient += tl.load(d_residual + element, inside, 0.0)
        value = tl.load(total + element, inside, 0.0)
        middle, scale = tl.load(mean + row, row < rows, 0.0), tl.load(rstd + row, row < rows, 0.0)
        normed = tl.where(inside, (value - middle[:, None]) * scale[:, None], 0.0)
        result = through_norm(gradient * weight, normed, scale, WIDTH)
        if AFTER:
            result += tl.load(d_residual + element, inside, 0.0)
        tl.store(d_total + element, result, inside)
        if not BEFORE:
            tl.store(d_branch + element, result, inside)
        for_gamma += tl.sum(gradient * normed, 0)
    tl.store(partial + program * WIDTH + column, for_gamma, thick)


@Kernel
@triton.jit(do_not_specialize=["elements"])
def gated(x, y, elements, INNER: tl.constexpr, BLOCK: tl.constexpr):
    """y = gelu(left half of x) · right half of x."""
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = element < elements
    at = x + element // INNER * (2 * INNER) + element % INNER
    value, gate = tl.load(at, inside, 0.0).to(tl.float32), tl.load(at + INNER, inside, 0.0).to(tl.float32)
    tl.store(y + element, erf_gelu(value) * gate, inside)


@Kernel
@triton.jit(do_not_specialize=["elements"])
def gated_backward(d_y, x, d_x, elements, INNER: tl.constexpr, BLOCK: tl.constexpr):
    """Gradients of both halves of x."""
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = element < elements
    start = element // INNER * (2 * INNER) + element % INNER
    value = tl.load(x + start, inside, 0.0).to(tl.float32)
    gate = tl.load(x + start + INNER, inside, 0.0).to(tl.float32)
    gradient = tl.load(d_y + element, inside, 0.0).to(tl.float32)
    tl.store(d_x + start, gradient * gate * erf_gelu_slope(value), inside)
    tl.store(d_x + start + INNER, gradient * erf_gelu(value), inside)


@Kernel
@triton.jit
def pool(x, offsets, y, WIDTH: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr, MEAN: tl.constexpr):
    """Each row's mean, or its first token; zeros for a row without tokens."""
    row = tl.program_id(0)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = column < WIDTH
    begin, end = tl.load(offsets + row), tl.load(offsets + row + 1)
    length = tl.maximum(end - begin, 1)
    if not MEAN:
        end, length = tl.minimum(end, begin + 1), 1
    total = tl.zeros((TILE,), tl.float32)
    for start in range(begin, end, ROWS):
        token = start + tl.arange(0, ROWS)
        some = (token < end)[:, None] & inside[None, :]
        total += tl.sum(tl.load(x + token[:, None] * WIDTH + column[None, :], some, 0.0), 0)
    tl.store(y + row * WIDTH + column, total / length, inside)


@Kernel
@triton.jit(do_not_specialize=["tokens"])
def pool_backward(
    d_y, offsets, d_x, tokens, WIDTH: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr, MEAN: tl.constexpr
):
    """The gradient of every token; zeros for those that were not read or belong to no row."""
    row, rows = tl.program_id(0), tl.num_programs(0) - 1
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = column < WIDTH
    begin = tl.load(offsets + row)
    end = tl.load(offsets + row + 1, row < rows, tokens)
    of_row = inside & (column * 0 + row < rows)
    gradient = tl.load(d_y + row * WIDTH + column, of_row, 0.0)
    if MEAN:
        gradient = gradient / (end - begin)
    for start in range(begin, end, ROWS):
        token = start + tl.arange(0, ROWS)
        share = tl.zeros((ROWS, TILE), tl.float32) + gradient[None, :]
        if not MEAN:
            share = tl.where((token == begin)[:, None], share, 0.0)
        some = (token < end)[:, None] & inside[None, :]
        tl.store(d_x + token[:, None] * WIDTH + column[None, :], share, some)
