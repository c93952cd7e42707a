"""Triton kernels for everything but matrix products. Each writes only what its backward pass needs.

Sums over tokens (gradients of biases and norms) are written as partial sums by a fixed grid, and one last kernel adds
them in a fixed order, so the bits are reproducible. Dropout masks are not stored: a mask is a function of the step's
seed, the position in the model and the element, and is drawn again in the backward pass.

Numbers that differ between layers are not specialised: Triton would compile a kernel again for 1 and for multiples of
16. Attention over short rows is in attention_kernels.py, the update in adamw_kernels.py.
"""

# No `from __future__` here: Triton reads the types of constants from annotations, and the code from this file.
import triton
import triton.language as tl

from whet.engine.fused.cuda.compile import Kernel

ROW_TILE = 32
COLUMN_TILE = 64


@triton.jit
def _mixed(x):
    """A bijection of 32 bits: each input bit changes about half of the output bits."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def kept(seed_at, key, element, rate):
    """Return whether dropout keeps an element, independently of its neighbours, other positions and other steps.

    Two rounds of mixing, each after a part of the seed, take four multiplications. Triton's own generator takes
    forty.
    """
    seed = tl.load(seed_at)
    mixed = _mixed(element.to(tl.uint32) ^ seed.to(tl.uint32))
    mixed = _mixed(mixed ^ ((seed >> 32) + key * 0x3C6EF35F).to(tl.uint32))
    return (mixed >> 8).to(tl.float32) * (1.0 / 16777216.0) >= rate


@Kernel
@triton.jit(do_not_specialize=["key"])
def norm_forward(
    x,
    bias,
    residual,
    gamma,
    beta,
    y,
    total,
    mean,
    rstd,
    seed_at,
    key,
    rate,
    epsilon,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    DROP: tl.constexpr,
):
    """y = norm(dropout(x + bias) + residual), one row per program."""
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    element = row * WIDTH + column
    value = tl.load(x + element, inside, 0.0).to(tl.float32) + tl.load(bias + column, inside, 0.0)
    if DROP:
        value = tl.where(kept(seed_at, key, element, rate), value * (1.0 / (1.0 - rate)), 0.0)
    value += tl.load(residual + element, inside, 0.0).to(tl.float32)
    # The backward pass reads the rounded sum, so the forward pass normalises the rounded sum too.
    value = value.to(total.dtype.element_ty).to(tl.float32)
    tl.store(total + element, value, inside)
    middle = tl.sum(tl.where(inside, value, 0.0), 0) / WIDTH
    centred = tl.where(inside, value - middle, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 0) / WIDTH + epsilon)
    normed = centred * scale * tl.load(gamma + column, inside, 0.0) + tl.load(beta + column, inside, 0.0)
    tl.store(y + element, normed, inside)
    tl.store(mean + row, middle)
    tl.store(rstd + row, scale)


@Kernel
@triton.jit(do_not_specialize=["key", "rows"])
def norm_backward(
    d_y,
    total,
    mean,
    rstd,
    gamma,
    d_x,
    d_total,
    partial,
    seed_at,
    key,
    rate,
    rows,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    DROP: tl.constexpr,
):
    """Gradients of x and of the residual; partial sums for bias, gamma and beta. Several rows at once hide the
    latency of each row's sums."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    column = tl.arange(0, BLOCK)
    wide = column < WIDTH
    weight = tl.load(gamma + column, wide, 0.0)[None, :]
    for_bias = tl.zeros((BLOCK,), tl.float32)
    for_gamma = tl.zeros((BLOCK,), tl.float32)
    for_beta = tl.zeros((BLOCK,), tl.float32)
    for begin in range(program * ROWS, rows, programs * ROWS):
        row = begin + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & wide[None, :]
        element = row[:, None] * WIDTH + column[None, :]
        gradient = tl.load(d_y + element, inside, 0.0).to(tl.float32)
        value = tl.load(total + element, inside, 0.0).to(tl.float32)
        middle, scale = tl.load(mean + row, row < rows, 0.0), tl.load(rstd + row, row < rows, 0.0)
        normed = tl.where(inside, (value - middle[:, None]) * scale[:, None], 0.0)
        result = through_norm(gradient * weight, normed, scale, WIDTH)
        tl.store(d_total + element, result, inside)
        if DROP:
            result = tl.where(kept(seed_at, key, element, rate), result * (1.0 / (1.0 - rate)), 0.0)
        tl.store(d_x + element, result, inside)
        for_bias += tl.sum(tl.where(inside, result, 0.0), 0)
        for_gamma += tl.sum(gradient * normed, 0)
        for_beta += tl.sum(gradient, 0)
    at = partial + program * WIDTH + column
    tl.store(at, for_bias, wide)
    tl.store(at + programs * WIDTH, for_gamma, wide)
    tl.store(at + 2 * programs * WIDTH, for_beta, wide)


@triton.jit
def through_norm(weighted, normed, scale, WIDTH: tl.constexpr):
    """The gradient of a norm's input, given the gradient of its output times gamma."""
    through = tl.sum(weighted * normed, 1) / WIDTH
    level = tl.sum(weighted, 1) / WIDTH
    return (weighted - normed * through[:, None] - level[:, None]) * scale[:, None]


@Kernel
@triton.jit
def embed_forward(
    ids,
    positions,
    types,
    word,
    place,
    kind,
    gamma,
    beta,
    y,
    total,
    mean,
    rstd,
    seed_at,
    rate,
    epsilon,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    DROP: tl.constexpr,
    TYPED: tl.constexpr,
):
    """y = dropout(norm(word + position + type)), one token per program, tables in float32."""
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    value = tl.load(word + tl.load(ids + row) * WIDTH + column, inside, 0.0)
    value += tl.load(place + tl.load(positions + row) * WIDTH + column, inside, 0.0)
    if TYPED:
        value += tl.load(kind + tl.load(types + row) * WIDTH + column, inside, 0.0)
    element = row * WIDTH + column
    tl.store(total + element, value, inside)
    middle = tl.sum(tl.where(inside, value, 0.0), 0) / WIDTH
    centred = tl.where(inside, value - middle, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 0) / WIDTH + epsilon)
    normed = centred * scale * tl.load(gamma + column, inside, 0.0) + tl.load(beta + column, inside, 0.0)
    if DROP:
        normed = tl.where(kept(seed_at, 0, element, rate), normed * (1.0 / (1.0 - rate)), 0.0)
    tl.store(y + element, normed, inside)
    tl.store(mean + row, middle)
    tl.store(rstd + row, scale)


@Kernel
@triton.jit(do_not_specialize=["rows"])
def embed_backward(
    d_y,
    total,
    mean,
    rstd,
    gamma,
    d_total,
    partial,
    seed_at,
    rate,
    rows,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    DROP: tl.constexpr,
):
    """Gradient of the summed embeddings; partial sums for gamma and beta."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    column = tl.arange(0, BLOCK)
    wide = column < WIDTH
    weight = tl.load(gamma + column, wide, 0.0)[None, :]
    for_gamma = tl.zeros((BLOCK,), tl.float32)
    for_beta = tl.zeros((BLOCK,), tl.float32)
    for begin in range(program * ROWS, rows, programs * ROWS):
        row = begin + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & wide[None, :]
        element = row[:, None] * WIDTH + column[None, :]
        gradient = tl.load(d_y + element, inside, 0.0).to(tl.float32)
        if DROP:
            gradient = tl.where(kept(seed_at, 0, element, rate), gradient * (1.0 / (1.0 - rate)), 0.0)
        value = tl.load(total + element, inside, 0.0)
        middle, scale = tl.load(mean + row, row < rows, 0.0), tl.load(rstd + row, row < rows, 0.0)
        normed = tl.where(inside, (value - middle[:, None]) * scale[:, None], 0.0)
        tl.store(d_total + element, through_norm(gradient * weight, normed, scale, WIDTH), inside)
        for_gamma += tl.sum(gradient * normed, 0)
        for_beta += tl.sum(gradient, 0)
    at = partial + program * WIDTH + column
    tl.store(at, for_gamma, wide)
    tl.store(at + programs * WIDTH, for_beta, wide)


@Kernel
@triton.jit
def sum_by_word(d_total, order, starts, ids, into, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr):
    """The gradient row of each distinct word, summed over its tokens, which start at starts[i] of `order`."""
    which = tl.program_id(0)
    begin, end = tl.load(starts + which), tl.load(starts + which + 1)
    if begin < end:
        column = tl.arange(0, BLOCK)
        inside = column < WIDTH
        total = tl.zeros((BLOCK,), tl.float32)
        for at in range(begin, end):
            total += tl.load(d_total + tl.load(order + at) * WIDTH + column, inside, 0.0)
        target = into + tl.load(ids + tl.load(order + begin)) * WIDTH + column
        if ADD:
            total += tl.load(target, inside, 0.0).to(tl.float32)
        tl.store(target, total, inside)


@Kernel
@triton.jit(do_not_specialize=["rows"])
def sum_by_position(
    d_total, offsets, into, rows, SHIFT: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr
):
    """The gradient row of each position, summed over the rows that are long enough."""
    place = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    total = tl.zeros((BLOCK,), tl.float32)
    for row in range(rows):
        at = tl.load(offsets + row) + place
        if at < tl.load(offsets + row + 1):
            total += tl.load(d_total + at * WIDTH + column, inside, 0.0)
    target = into + (place + SHIFT) * WIDTH + column
    if ADD:
        total += tl.load(target, inside, 0.0).to(tl.float32)
    tl.store(target, total, inside)


@Kernel
@triton.jit(do_not_specialize=["tokens"])
def sum_by_type(
    d_total, types, into, tokens, WIDTH: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr, ADD: tl.constexpr
):
    """The gradient row of each token type."""
    kind = tl.program_id(0)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = column < WIDTH
    total = tl.zeros((TILE,), tl.float32)
    for start in range(0, tokens, ROWS):
        row = start + tl.arange(0, ROWS)
        chosen = (row < tokens) & (tl.load(types + row, row < tokens, -1) == kind)
        values = tl.load(d_total + row[:, None] * WIDTH + column[None, :], chosen[:, None] & inside[None, :], 0.0)
        total += tl.sum(values, 0)
    target = into + kind * WIDTH + column
    if ADD:
        total += tl.load(target, inside, 0.0).to(tl.float32)
    tl.store(target, total, inside)


@triton.jit
def erf_gelu(x):
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))


@triton.jit
def erf_gelu_slope(x):
    density = tl.exp(-0.5 * x * x) * 0.3989422804014327
    return 0.5 * (1.0 + tl.erf(x * 0.7071067811865476)) + x * density


@triton.jit
def _tanh(x):
    return 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)


@Kernel
@triton.jit
def activate_forward(x, bias, y, elements, WIDTH: tl.constexpr, BLOCK: tl.constexpr, TANH: tl.constexpr):
    """y = gelu(x + bias)."""
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = element < elements
    value = tl.load(x + element, inside, 0.0).to(tl.float32) + tl.load(bias + element % WIDTH, inside, 0.0)
    if TANH:
        inner = 0.7978845608028654 * (value + 0.044715 * value * value * value)
        result = 0.5 * value * (1.0 + _tanh(inner))
    else:
        result = erf_gelu(value)
    tl.store(y + element, result, inside)


@Kernel
@triton.jit(do_not_specialize=["rows"])
def activate_backward(
    d_y,
    x,
    bias,
    d_x,
    partial,
    rows,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    TANH: tl.constexpr,
):
    """Gradient of x; partial sums for the bias."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = (row < rows)[:, None] & (column < WIDTH)[None, :]
    element = row[:, None] * WIDTH + column[None, :]
    value = tl.load(x + element, inside, 0.0).to(tl.float32) + tl.load(bias + column, column < WIDTH, 0.0)[None, :]
    if TANH:
        inner = 0.7978845608028654 * (value + 0.044715 * value * value * value)
        bent = _tanh(inner)
        slope = 0.7978845608028654 * (1.0 + 3.0 * 0.044715 * value * value)
        slope = 0.5 * (1.0 + bent) + 0.5 * value * (1.0 - bent * bent) * slope
    else:
        slope = erf_gelu_slope(value)
    result = tl.load(d_y + element, inside, 0.0).to(tl.float32) * slope
    tl.store(d_x + element, result, inside)
    tl.store(partial + tl.program_id(0) * WIDTH + column, tl.sum(tl.where(inside, result, 0.0), 0), column < WIDTH)


@Kernel
@triton.jit
def join_columns(
    first,
    second,
    third,
    joined,
    partial,
    rows,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Join two or three [rows, PART] tensors by columns, with partial column sums of the result."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    which = (tl.program_id(1) * TILE) // PART
    inside = (row < rows)[:, None] & (column < PART * PARTS)[None, :]
    element = row[:, None] * PART + (column - which * PART)[None, :]
    source = tl.where(which == 0, first, tl.where(which == 1, second, third))
    value = tl.load(source + element, inside, 0.0)
    tl.store(joined + row[:, None] * (PART * PARTS) + column[None, :], value, inside)
    sums = tl.sum(tl.where(inside, value.to(tl.float32), 0.0), 0)
    tl.store(partial + tl.program_id(0) * (PART * PARTS) + column, sums, column < PART * PARTS)


@Kernel
@triton.jit
def add_up(partials, jobs, into, TILE: tl.constexpr, DEEP: tl.constexpr, ADD: tl.constexpr):
    """Add every deferred sum; job = (start of its partial sums, their number, their width, the target)."""
    job = jobs + tl.program_id(0) * 4
    source, count, width, target = tl.load(job), tl.load(job + 1), tl.load(job + 2), tl.load(job + 3)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = column < width
    total = tl.zeros((TILE,), tl.float32)
    for begin in range(0, count, DEEP):
        index = begin + tl.arange(0, DEEP)
        some = (index < count)[:, None] & inside[None, :]
        total += tl.sum(tl.load(partials + source + index[:, None] * width + column[None, :], some, 0.0), 0)
    if ADD:
        total += tl.load(into + target + column, inside, 0.0)
    tl.store(into + target + column, total, inside)
