"""Triton kernels for attention over short packed rows: one forward, one backward.

Each program computes one block of one row and head. Programs share no sums, so the bits are reproducible.
"""

# No `from __future__` here: Triton reads the types of constants from annotations, and the code from this file.
import triton
import triton.language as tl

from whet.engine.fused.cuda.compile import Kernel
from whet.engine.fused.cuda.layer_kernels import kept

LONGEST = 128
"""The largest number of tokens per row."""


@triton.jit
def _span(offsets, row, first):
    """Return the start and number of a row's keys, and the same for its queries: one per row, or one per token."""
    begin = tl.load(offsets + row)
    length = tl.load(offsets + row + 1) - begin
    return begin, length, tl.where(first > 0, row, begin), tl.where(first > 0, 1, length)


@triton.jit
def _staying(seed_at, key, rate, query, head, place, HEADS: tl.constexpr):
    """Return which elements of a tile dropout keeps; `query` is a row's index in the batch, `place` the column."""
    # The number is LONGEST. Kernels must not read it by name: see tests/engine/fused/cuda/test_kernel_sources.py.
    return kept(seed_at, key, ((query * HEADS + head) * 128)[:, None] + place[None, :], rate)


@Kernel
@triton.jit(do_not_specialize=["key", "first"])
def attend(
    queries,
    keys,
    values,
    context,
    logsum,
    offsets,
    seed_at,
    key,
    rate,
    scale,
    query_stride,
    key_stride,
    first,
    HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    BLOCK: tl.constexpr,
    DROP: tl.constexpr,
):
    """Compute one block of queries of one row and head: dropout(softmax(q kᵀ)) v, and the logarithm of softmax's
    sums."""
    row, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    begin, length, asked, count = _span(offsets, row, first)
    mine = tl.program_id(1) * BLOCK
    if mine < count:
        at, depth = tl.arange(0, BLOCK), tl.arange(0, HEAD)
        column = head * HEAD + depth
        query = asked + mine + at
        there = mine + at < count
        q = tl.load(queries + query[:, None] * query_stride + column[None, :], there[:, None], 0.0)
        highest = tl.full((BLOCK,), float("-inf"), tl.float32)
        total = tl.zeros((BLOCK,), tl.float32)
        result = tl.zeros((BLOCK, HEAD), tl.float32)
        for start in range(0, length, BLOCK):
            place = start + at
            here = (begin + place)[:, None] * key_stride + column[None, :]
            k = tl.load(keys + here, (place < length)[:, None], 0.0)
            v = tl.load(values + here, (place < length)[:, None], 0.0)
            score = tl.dot(q, tl.trans(k)) * (scale * 1.4426950408889634)
            score = tl.where((place < length)[None, :], score, float("-inf"))
            higher = tl.maximum(highest, tl.max(score, 1))
            share = tl.exp2(score - higher[:, None])
            shrink = tl.exp2(highest - higher)
            total = total * shrink + tl.sum(share, 1)
            if DROP:
                stays = _staying(seed_at, key, rate, query, head, place, HEADS)
                share = tl.where(stays, share * (1.0 / (1.0 - rate)), 0.0)
            result = result * shrink[:, None] + tl.dot(share.to(v.dtype), v)
            highest = higher
        target = context + query[:, None] * (HEADS * HEAD) + column[None, :]
        tl.store(target, result / total[:, None], there[:, None])
        tl.store(logsum + query * HEADS + head, highest + tl.log2(total), there)


@triton.jit
def _slopes(
    q,
    k,
    v,
    gradient,
    logsum,
    delta,
    valid,
    scale,
    seed_at,
    key,
    rate,
    query,
    head,
    place,
    HEADS: tl.constexpr,
    DROP: tl.constexpr,
):
    """Return for one tile the attention weights after dropout and the gradient of the scores."""
    share = tl.exp2(tl.dot(q, tl.trans(k)) * (scale * 1.4426950408889634) - logsum[:, None])
    share = tl.where(valid, share, 0.0)
    met, through = share, tl.dot(gradient, tl.trans(v))
    if DROP:
        stays, larger = _staying(seed_at, key, rate, query, head, place, HEADS), 1.0 / (1.0 - rate)
        met, through = tl.where(stays, share * larger, 0.0), tl.where(stays, through * larger, 0.0)
    return met.to(q.dtype), (share * (through - delta[:, None]) * scale).to(q.dtype)


@triton.jit
def _asked(
    queries, context, d_context, logsum, query, there, head, column, stride, HEADS: tl.constexpr, HEAD: tl.constexpr
):
    """Load a block of queries with the gradients of their answers and the values that reverse softmax."""
    q = tl.load(queries + query[:, None] * stride + column[None, :], there[:, None], 0.0)
    element = query[:, None] * (HEADS * HEAD) + column[None, :]
    gradient = tl.load(d_context + element, there[:, None], 0.0)
    answer = tl.load(context + element, there[:, None], 0.0)
    delta = tl.sum(gradient.to(tl.float32) * answer.to(tl.float32), 1)
    return q, gradient, delta, tl.load(logsum + query * HEADS + head, there, 0.0)


@Kernel
@triton.jit(do_not_specialize=["key", "first"])
def attend_backward(
    queries,
    keys,
    values,
    context,
    logsum,
    offsets,
    d_context,
    d_queries,
    d_keys,
    d_values,
    partial_queries,
    partial_keys,
    partial_values,
    seed_at,
    key,
    rate,
    scale,
    query_stride,
    key_stride,
    first,
    partial_stride,
    HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    BLOCK: tl.constexpr,
    DROP: tl.constexpr,
):
    """Compute one block of one row and head: gradients of its keys and values, or of its queries.

    If a row is one block, one program computes everything. For longer rows half of the programs in the grid's second
    dimension compute queries, the others keys.
    """
    row, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    begin, length, asked, count = _span(offsets, row, first)
    blocks = tl.num_programs(1) // 2
    block, for_queries = tl.program_id(1) % blocks, tl.program_id(1) >= blocks
    mine = block * BLOCK
    at, depth = tl.arange(0, BLOCK), tl.arange(0, HEAD)
    column = head * HEAD + depth
    partial = (row * blocks + block) * partial_stride + column
    if for_queries:
        for_query = tl.zeros((BLOCK, HEAD), tl.float32)
        if (length > BLOCK) & (mine < count):
            query, there = asked + mine + at, mine + at < count
            q, gradient, delta, sums = _asked(
                queries, context, d_context, logsum, query, there, head, column, query_stride, HEADS, HEAD
            )
            for start in range(0, length, BLOCK):
                place = start + at
                here = (begin + place)[:, None] * key_stride + column[None, :]
                k = tl.load(keys + here, (place < length)[:, None], 0.0)
                v = tl.load(values + here, (place < length)[:, None], 0.0)
                valid = there[:, None] & (place < length)[None, :]
                met, slope = _slopes(
                    q, k, v, gradient, sums, delta, valid, scale,
                    seed_at, key, rate, query, head, place, HEADS, DROP,
                )  # fmt: skip
                for_query += tl.dot(slope, k)
            tl.store(d_queries + query[:, None] * query_stride + column[None, :], for_query, there[:, None])
        # If a row is one block, the keys' program writes it; with one query per row it is not needed.
        long_or_later = column * 0 + (length + block * BLOCK) * (1 - first) > BLOCK
        tl.store(partial_queries + partial, tl.sum(for_query, 0), long_or_later)
    else:
        for_key = tl.zeros((BLOCK, HEAD), tl.float32)
        for_value = tl.zeros((BLOCK, HEAD), tl.float32)
        if mine < length:
            place = mine + at
            here = (begin + place)[:, None] * key_stride + column[None, :]
            k = tl.load(keys + here, (place < length)[:, None], 0.0)
            v = tl.load(values + here, (place < length)[:, None], 0.0)
            for start in range(0, count, BLOCK):
                query, there = asked + start + at, start + at < count
                q, gradient, delta, sums = _asked(
                    queries, context, d_context, logsum, query, there, head, column, query_stride, HEADS, HEAD
                )
                valid = there[:, None] & (place < length)[None, :]
                met, slope = _slopes(
                    q, k, v, gradient, sums, delta, valid, scale,
                    seed_at, key, rate, query, head, place, HEADS, DROP,
                )  # fmt: skip
                for_value += tl.dot(tl.trans(met), gradient)
                for_key += tl.dot(tl.trans(slope), q)
                if length <= BLOCK:
                    alone = tl.dot(slope, k)
                    tl.store(d_queries + query[:, None] * query_stride + column[None, :], alone, there[:, None])
                    tl.store(partial_queries + partial, tl.sum(alone, 0), column * 0 + first < 1)
            tl.store(d_keys + here, for_key, (place < length)[:, None])
            tl.store(d_values + here, for_value, (place < length)[:, None])
        # Keys that do not exist have gradients of zero.
        tl.store(partial_keys + partial, tl.sum(for_key, 0))
        tl.store(partial_values + partial, tl.sum(for_value, 0))
