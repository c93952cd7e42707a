"""Triton kernels for the norm of the gradients and for AdamW."""

# No `from __future__` here: Triton reads the types of constants from annotations, and the code from this file.
import triton
import triton.language as tl

from whet.engine.fused.cuda.compile import Kernel


@Kernel
@triton.jit
def squares(gradient, start, end, partial, BLOCK: tl.constexpr):
    """Write partial sums of squares of a span for the global norm."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    total = tl.zeros((BLOCK,), tl.float32)
    for begin in range(start + program * BLOCK, end, programs * BLOCK):
        element = begin + tl.arange(0, BLOCK)
        value = tl.load(gradient + element, element < end, 0.0).to(tl.float32)
        total += value * value
    tl.store(partial + program, tl.sum(total, 0))


@Kernel
@triton.jit
def add_step(partial, loss, step_at, window_loss, window_norm, first_nonfinite_step, scale, clip, COUNT: tl.constexpr):
    """Compute the norm, the clipping factor, and whether this step may change the weights (scale 0 if not)."""
    norm = tl.sqrt(tl.sum(tl.load(partial + tl.arange(0, COUNT)).to(tl.float64), 0))
    value = tl.load(loss).to(tl.float64)
    bad = tl.load(first_nonfinite_step)
    infinity = float("inf")
    finite = (norm == norm) & (norm < infinity) & (value == value) & (value < infinity) & (value > -infinity)
    good = finite & (bad < 0)
    tl.store(first_nonfinite_step, tl.where(good | (bad >= 0), bad, tl.load(step_at)))
    tl.store(window_loss, tl.load(window_loss) + tl.where(good, value, float("nan")))
    tl.store(window_norm, norm)
    factor = tl.where(clip > 0, tl.minimum(1.0, clip / (norm + 1e-6)), 1.0)
    tl.store(scale, tl.where(good, factor, -1.0).to(tl.float32))


@triton.jit
def _updated(
    master, first, second, gradient, element, inside, decays, scale, rule_at, beta1, rest1, beta2, rest2, epsilon, decay
):
    """Apply AdamW to some elements: write moments and masters, return the new weights.

    `rule_at` holds the learning rate and the two bias corrections of this step. `rest` is 1 - β, computed in double
    precision on the host: in float32 it would lose four digits.
    """
    rate, correct1, correct2 = tl.load(rule_at), tl.load(rule_at + 1), tl.load(rule_at + 2)
    value = tl.load(gradient + element, inside, 0.0).to(tl.float32) * scale
    weight = tl.load(master + element, inside, 0.0)
    weight *= 1.0 - rate * tl.where(decays, decay, 0.0)
    moment1 = beta1 * tl.load(first + element, inside, 0.0) + rest1 * value
    moment2 = beta2 * tl.load(second + element, inside, 0.0) + rest2 * value * value
    weight -= rate * correct1 * moment1 / (tl.sqrt(moment2) * correct2 + epsilon)
    tl.store(first + element, moment1, inside)
    tl.store(second + element, moment2, inside)
    tl.store(master + element, weight, inside)
    return weight


@Kernel
@triton.jit
def adamw(
    master,
    first,
    second,
    gradient,
    compute,
    scale_at,
    rule_at,
    start,
    end,
    decays_until,
    computes_until,
    beta1,
    rest1,
    beta2,
    rest2,
    epsilon,
    decay,
    BLOCK: tl.constexpr,
    COPY: tl.constexpr,
):
    """Update a span with few programs, so that other work can run at the same time."""
    scale = tl.load(scale_at)
    if scale < 0:
        end = start
    for begin in range(start + tl.program_id(0) * BLOCK, end, tl.num_programs(0) * BLOCK):
        element = begin + tl.arange(0, BLOCK)
        inside = element < end
        weight = _updated(
            master, first, second, gradient, element, inside, element < decays_until,
            scale, rule_at, beta1, rest1, beta2, rest2, epsilon, decay,
        )  # fmt: skip
        if COPY:
            tl.store(compute + element, weight, inside & (element < computes_until))


@Kernel
@triton.jit
def adamw_words_of_batch(
    master,
    first,
    second,
    gradient,
    order,
    starts,
    ids,
    updated_at,
    turn_at,
    scale_at,
    rule_at,
    start,
    beta1,
    rest1,
    beta2,
    rest2,
    epsilon,
    decay,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Update the vocabulary rows of this batch, each once; `updated_at` stores the replay's number for each."""
    which = tl.program_id(0)
    begin, end = tl.load(starts + which), tl.load(starts + which + 1)
    scale = tl.load(scale_at)
    if (begin < end) & (scale >= 0):
        row = tl.load(ids + tl.load(order + begin))
        column = tl.arange(0, BLOCK)
        _updated(
            master, first, second, gradient, start + row * WIDTH + column, column < WIDTH, column < WIDTH,
            scale, rule_at, beta1, rest1, beta2, rest2, epsilon, decay,
        )  # fmt: skip
        tl.store(updated_at + row, tl.load(turn_at))


@Kernel
@triton.jit
def adamw_other_words(
    master,
    first,
    second,
    gradient,
    updated_at,
    turn_at,
    scale_at,
    rule_at,
    start,
    rows,
    beta1,
    rest1,
    beta2,
    rest2,
    epsilon,
    decay,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Update the rows that were not updated in this replay."""
    scale, turn = tl.load(scale_at), tl.load(turn_at)
    if scale < 0:
        rows = 0
    column = tl.arange(0, BLOCK)
    for begin in range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS):
        row = begin + tl.arange(0, ROWS)
        left = (row < rows) & (tl.load(updated_at + row, row < rows, turn) != turn)
        inside = left[:, None] & (column < WIDTH)[None, :]
        _updated(
            master, first, second, gradient, start + row[:, None] * WIDTH + column[None, :], inside, inside,
            scale, rule_at, beta1, rest1, beta2, rest2, epsilon, decay,
        )  # fmt: skip
