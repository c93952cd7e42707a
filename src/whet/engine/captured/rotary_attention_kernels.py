"""Triton kernels for attention with rotary embeddings over packed rows of any length: one forward, one backward.

Queries and keys are turned to their places in the row while they are loaded, and their gradients are turned back while
they are stored, so the turning has no kernel of its own. A local layer visits only the tiles inside of its window.

Tokens after the last row belong to nobody. Zeros are written for them, so that sums over all tokens are finite and
these tokens add nothing to any gradient. Programs share no sums, so the bits are reproducible.
"""

# No `from __future__` here: Triton reads the types of constants from annotations, and the code from this file.
import triton
import triton.language as tl

from whet.engine.fused.cuda.compile import Kernel


@triton.jit
def _turned(source, at, there, place, cosines, sines, HALF: tl.constexpr):
    """Load a tile of queries or keys as two halves of its columns, turned to their places."""
    half = tl.arange(0, HALF)
    first = tl.load(source + at[:, None] + half[None, :], there[:, None], 0.0)
    second = tl.load(source + at[:, None] + HALF + half[None, :], there[:, None], 0.0)
    angle = place[:, None] * HALF + half[None, :]
    cosine = tl.load(cosines + angle, there[:, None], 0.0)
    sine = tl.load(sines + angle, there[:, None], 0.0)
    one, other = first.to(tl.float32), second.to(tl.float32)
    return (one * cosine - other * sine).to(first.dtype), (other * cosine + one * sine).to(first.dtype)


@triton.jit
def _store_turned_back(target, at, there, place, cosines, sines, one, other, HALF: tl.constexpr):
    """Store the gradients of turned halves as those of the halves before they were turned."""
    half = tl.arange(0, HALF)
    angle = place[:, None] * HALF + half[None, :]
    cosine = tl.load(cosines + angle, there[:, None], 0.0)
    sine = tl.load(sines + angle, there[:, None], 0.0)
    tl.store(target + at[:, None] + half[None, :], one * cosine + other * sine, there[:, None])
    tl.store(target + at[:, None] + HALF + half[None, :], other * cosine - one * sine, there[:, None])


@triton.jit
def _tiles_in_reach(mine, length, BLOCK: tl.constexpr, WINDOW: tl.constexpr):
    """Return the first place, and the one after the last, that a block of places can see; WINDOW < 0 is the row."""
    low, high = mine * 0, length
    if WINDOW >= 0:
        low = tl.maximum(mine - WINDOW, 0) // BLOCK * BLOCK
        high = tl.minimum(length, mine + BLOCK + WINDOW)
    return low, high


@triton.jit
def _sees(asking, place, length, WINDOW: tl.constexpr):
    """Return which queries see which keys; a window counts from the query to both sides, and includes its ends."""
    seen = (asking < length)[:, None] & (place < length)[None, :]
    if WINDOW >= 0:
        apart = asking[:, None] - place[None, :]
        seen = seen & (apart <= WINDOW) & (apart >= -WINDOW)
    return seen


@triton.jit
def _clear(target, begin, end, step, column, STRIDE: tl.constexpr, BLOCK: tl.constexpr):
    """Write zeros for the tokens that belong to no row, at these columns."""
    for start in range(begin, end, step):
        token = start + tl.arange(0, BLOCK)
        element = token[:, None] * STRIDE + column[None, :]
        tl.store(target + element, tl.zeros_like(element).to(target.dtype.element_ty), (token < end)[:, None])


@Kernel
@triton.jit(do_not_specialize=["tokens"])
def attend_turned(
    qkv,
    cosines,
    sines,
    offsets,
    context,
    logsum,
    tokens,
    scale,
    HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    BLOCK: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Compute one block of queries of one row and head: softmax(q kᵀ) v, and the logarithm of softmax's sums.

    The programs after those of the last row clear the tokens that belong to no row.
    """
    row, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    rows = tl.num_programs(0) // HEADS - 1
    begin = tl.load(offsets + row)
    mine = tl.program_id(1) * BLOCK
    at = tl.arange(0, BLOCK)
    column = head * HEAD + tl.arange(0, HEAD)
    if row == rows:
        _clear(context, begin + mine, tokens, tl.num_programs(1) * BLOCK, column, HEADS * HEAD, BLOCK)
    else:
        length = tl.load(offsets + row + 1) - begin
        if mine < length:
            asking = mine + at
            there = asking < length
            own = (begin + asking) * (3 * HEADS * HEAD) + head * HEAD
            q1, q2 = _turned(qkv, own, there, asking, cosines, sines, HEAD // 2)
            highest = tl.full((BLOCK,), -1.0e30, tl.float32)
            total = tl.zeros((BLOCK,), tl.float32)
            result = tl.zeros((BLOCK, HEAD), tl.float32)
            low, high = _tiles_in_reach(mine, length, BLOCK, WINDOW)
            for start in range(low, high, BLOCK):
                place = start + at
                here = place < length
                key = (begin + place) * (3 * HEADS * HEAD) + (HEADS + head) * HEAD
                k1, k2 = _turned(qkv, key, here, place, cosines, sines, HEAD // 2)
                value = (begin + place)[:, None] * (3 * HEADS * HEAD) + 2 * HEADS * HEAD + column[None, :]
                v = tl.load(qkv + value, here[:, None], 0.0)
                score = tl.dot(q2, tl.trans(k2), tl.dot(q1, tl.trans(k1))) * (scale * 1.4426950408889634)
                seen = _sees(asking, place, length, WINDOW)
                higher = tl.maximum(highest, tl.max(tl.where(seen, score, -1.0e30), 1))
                # A query may see nothing of a tile; then `higher` is no score, and the difference means nothing.
                share = tl.where(seen, tl.exp2(score - higher[:, None]), 0.0)
                shrink = tl.exp2(highest - higher)
                total = total * shrink + tl.sum(share, 1)
                result = result * shrink[:, None] + tl.dot(share.to(v.dtype), v)
                highest = higher
            target = context + (begin + asking)[:, None] * (HEADS * HEAD) + column[None, :]
            tl.store(target, result / total[:, None], there[:, None])
            tl.store(logsum + (begin + asking) * HEADS + head, highest + tl.log2(total), there)


@triton.jit
def _slopes(q1, q2, k1, k2, v, gradient, sums, delta, seen, scale):
    """Return for one tile the attention weights and the gradient of the scores."""
    score = tl.dot(q2, tl.trans(k2), tl.dot(q1, tl.trans(k1))) * (scale * 1.4426950408889634)
    share = tl.where(seen, tl.exp2(score - sums[:, None]), 0.0)
    through = tl.dot(gradient, tl.trans(v))
    return share.to(v.dtype), (share * (through - delta[:, None]) * scale).to(v.dtype)


@triton.jit
def _answered(context, d_context, logsum, token, there, head, column, HEADS: tl.constexpr, HEAD: tl.constexpr):
    """Load the gradients of a block's answers and the values that reverse softmax."""
    element = token[:, None] * (HEADS * HEAD) + column[None, :]
    gradient = tl.load(d_context + element, there[:, None], 0.0)
    answer = tl.load(context + element, there[:, None], 0.0)
    delta = tl.sum(gradient.to(tl.float32) * answer.to(tl.float32), 1)
    return gradient, delta, tl.load(logsum + token * HEADS + head, there, 0.0)


@triton.jit
def _backward_of_queries(
    qkv,
    cosines,
    sines,
    context,
    logsum,
    d_context,
    d_qkv,
    begin,
    length,
    mine,
    head,
    scale,
    HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    BLOCK: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Gradients of one block of queries."""
    at = tl.arange(0, BLOCK)
    column = head * HEAD + tl.arange(0, HEAD)
    asking = mine + at
    there = asking < length
    own = (begin + asking) * (3 * HEADS * HEAD) + head * HEAD
    q1, q2 = _turned(qkv, own, there, asking, cosines, sines, HEAD // 2)
    gradient, delta, sums = _answered(context, d_context, logsum, begin + asking, there, head, column, HEADS, HEAD)
    one = tl.zeros((BLOCK, HEAD // 2), tl.float32)
    other = tl.zeros((BLOCK, HEAD // 2), tl.float32)
    low, high = _tiles_in_reach(mine, length, BLOCK, WINDOW)
    for start in range(low, high, BLOCK):
        place = start + at
        here = place < length
        key = (begin + place) * (3 * HEADS * HEAD) + (HEADS + head) * HEAD
        k1, k2 = _turned(qkv, key, here, place, cosines, sines, HEAD // 2)
        value = (begin + place)[:, None] * (3 * HEADS * HEAD) + 2 * HEADS * HEAD + column[None, :]
        v = tl.load(qkv + value, here[:, None], 0.0)
        seen = _sees(asking, place, length, WINDOW)
        _, slope = _slopes(q1, q2, k1, k2, v, gradient, sums, delta, seen, scale)
        one = tl.dot(slope, k1, one)
        other = tl.dot(slope, k2, other)
    _store_turned_back(d_qkv, own, there, asking, cosines, sines, one, other, HEAD // 2)


@triton.jit
def _backward_of_keys(
    qkv,
    cosines,
    sines,
    context,
    logsum,
    d_context,
    d_qkv,
    begin,
    length,
    mine,
    head,
    scale,
    HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    BLOCK: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Gradients of one block of keys and values; of the queries too, if the row is one block."""
    at = tl.arange(0, BLOCK)
    column = head * HEAD + tl.arange(0, HEAD)
    place = mine + at
    here = place < length
    key = (begin + place) * (3 * HEADS * HEAD) + (HEADS + head) * HEAD
    k1, k2 = _turned(qkv, key, here, place, cosines, sines, HEAD // 2)
    value = (begin + place)[:, None] * (3 * HEADS * HEAD) + 2 * HEADS * HEAD + column[None, :]
    v = tl.load(qkv + value, here[:, None], 0.0)
    one = tl.zeros((BLOCK, HEAD // 2), tl.float32)
    other = tl.zeros((BLOCK, HEAD // 2), tl.float32)
    for_value = tl.zeros((BLOCK, HEAD), tl.float32)
    low, high = _tiles_in_reach(mine, length, BLOCK, WINDOW)
    for start in range(low, high, BLOCK):
        asking = start + at
        there = asking < length
        own = (begin + asking) * (3 * HEADS * HEAD) + head * HEAD
        q1, q2 = _turned(qkv, own, there, asking, cosines, sines, HEAD // 2)
        gradient, delta, sums = _answered(context, d_context, logsum, begin + asking, there, head, column, HEADS, HEAD)
        seen = _sees(asking, place, length, WINDOW)
        share, slope = _slopes(q1, q2, k1, k2, v, gradient, sums, delta, seen, scale)
        for_value = tl.dot(tl.trans(share), gradient, for_value)
        one = tl.dot(tl.trans(slope), q1, one)
        other = tl.dot(tl.trans(slope), q2, other)
        if length <= BLOCK:
            left, right = tl.dot(slope, k1), tl.dot(slope, k2)
            _store_turned_back(d_qkv, own, there, asking, cosines, sines, left, right, HEAD // 2)
    _store_turned_back(d_qkv, key, here, place, cosines, sines, one, other, HEAD // 2)
    tl.store(d_qkv + value, for_value, here[:, None])


@Kernel
@triton.jit(do_not_specialize=["tokens"])
def attend_turned_backward(
    qkv,
    cosines,
    sines,
    offsets,
    context,
    logsum,
    d_context,
    d_qkv,
    tokens,
    scale,
    HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    BLOCK: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Gradients of queries, keys and values, side by side as the forward pass read them.

    If a row is one block, one program computes everything. For longer rows half of the programs in the grid's second
    dimension compute keys and values, the others queries. Those after the last row clear what belongs to no row.
    """
    row, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    rows = tl.num_programs(0) // HEADS - 1
    blocks = tl.num_programs(1) // 2
    begin = tl.load(offsets + row)
    mine = tl.program_id(1) % blocks * BLOCK
    for_queries = tl.program_id(1) >= blocks
    if row == rows:
        column = head * HEAD + tl.arange(0, HEAD)
        for part in range(3):
            aligned = part * HEADS * HEAD + column
            if not for_queries:
                _clear(d_qkv, begin + mine, tokens, blocks * BLOCK, aligned, 3 * HEADS * HEAD, BLOCK)
    else:
        length = tl.load(offsets + row + 1) - begin
        if mine < length:
            if for_queries:
                if length > BLOCK:
                    _backward_of_queries(
                        qkv, cosines, sines, context, logsum, d_context, d_qkv, begin, length, mine, head, scale,
                        HEADS, HEAD, BLOCK, WINDOW,
                    )  # fmt: skip
            else:
                _backward_of_keys(
                    qkv, cosines, sines, context, logsum, d_context, d_qkv, begin, length, mine, head, scale,
                    HEADS, HEAD, BLOCK, WINDOW,
                )  # fmt: skip
