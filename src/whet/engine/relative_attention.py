"""Attention with relative positions, computed on a grid of rows without an index for every pair of tokens.

For each pair of tokens, DeBERTa adds products of their vectors with a vector of their distance, and MPNet adds a bias
of the distance alone. The distance is query minus key; for rows of length L, tables hold those from -L to L - 1.

The products of all tokens with a table are arrays [token, distance], and the scores of pairs are read from them along
diagonals. Keys stand in reverse order, so query q and the key at place k have the distance q + k + 1 - L, which is
entry q + k + 1 of the table. What a row of scores reads begins one entry further right than in the row above, so all
of it is a strided view: `pairs_of`. Writing through the same view is the backward pass, which is therefore
deterministic.

Nothing here waits for the device or copies from the host, so a CUDA graph can capture it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional


class PackedRows(Protocol):
    """What the grid needs of a packed batch: `whet.engine.packed.Layout` has it."""

    @property
    def slots(self) -> Tensor: ...
    @property
    def mask(self) -> Tensor: ...
    @property
    def first(self) -> Tensor: ...


@dataclass(frozen=True)
class Grid:
    """Where the tokens of a batch lie in the arrays [heads × rows × length, width] of attention."""

    heads: int
    rows: int
    length: int
    queries: Tensor
    """int64 [heads × rows × length]: the part (one head of one token) at each place, counted in [tokens × heads]; any
    index where the place is empty."""
    keys: Tensor
    """The same for keys and values, which stand in reverse order."""
    query_places: Tensor
    """int64 [tokens × heads]: the place of each part among the queries."""
    key_places: Tensor
    """The same among the keys."""
    masked: Tensor
    """bool [rows, 1, length]: True where the place of a key holds no token to read."""
    first: Tensor
    """int64 [rows]: the first token of each row."""

    @property
    def groups(self) -> int:
        return self.heads * self.rows


def grid_of_packed(packed: PackedRows, heads: int) -> Grid:
    """Return the grid of a packed batch."""
    return _grid(packed.slots, packed.mask.flatten(1), packed.first, heads)


def grid_of_mask(mask: Tensor, heads: int) -> Grid:
    """Return the grid of a padded batch; `mask` is bool [rows, length], True for tokens.

    Padding is computed like tokens, but no token attends to it.
    """
    rows, length = mask.shape
    slots = torch.arange(rows * length, device=mask.device)
    return _grid(slots, mask, slots[::length], heads)


def _grid(slots: Tensor, mask: Tensor, first: Tensor, heads: int) -> Grid:
    rows, length = mask.shape
    held = slots.new_zeros(rows * length)
    held = held.index_copy_(0, slots, torch.arange(len(slots), device=slots.device))
    head = torch.arange(heads, device=slots.device)
    reverse = slots // length * (2 * length) + (length - 1) - slots
    return Grid(
        heads=heads,
        rows=rows,
        length=length,
        queries=(held * heads + head[:, None]).flatten(),
        keys=(held.view(rows, length).flip(1).flatten() * heads + head[:, None]).flatten(),
        query_places=(slots[:, None] + head * (rows * length)).flatten(),
        key_places=(reverse[:, None] + head * (rows * length)).flatten(),
        masked=~mask.flip(1)[:, None],
        first=first,
    )


def pairs_of(distances: Tensor) -> Tensor:
    """Return the view [..., length, length] of contiguous scores [..., length, 2 × length]: element (i, j) is the
    score of the distance i + j + 1, counted from -length."""
    *outer, length, width = distances.shape
    offset = distances.storage_offset() + 1
    return distances.as_strided((*outer, length, length), (*distances.stride()[:-2], width + 1, 1), offset)


def distances_of(pairs: Tensor) -> Tensor:
    """Return scores [..., length, 2 × length] that are zero wherever `pairs_of` does not read them."""
    *outer, length, _ = pairs.shape
    distances = pairs.new_zeros(*outer, length, 2 * length)
    pairs_of(distances).copy_(pairs)
    return distances


class TableBias(torch.autograd.Function):
    """Scores [heads, 2 × length] of distances, as scores [heads, length, length] of pairs."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        heads, width = scores.shape
        return pairs_of(scores[:, None].expand(heads, width // 2, width).contiguous())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return distances_of(gradient).sum(1)


class Expand(torch.autograd.Function):
    """Repeat rows by an index. Gradients of equal rows are added up by a product, in a fixed order."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, index: Tensor, one_hot: Tensor) -> Tensor:
        ctx.save_for_backward(one_hot)
        return rows.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (one_hot,) = ctx.saved_tensors
        return one_hot.t().to(gradient.dtype) @ gradient, None, None


def kept_factor(rate: float) -> float:
    """Return by how much dropout scales up what it keeps."""
    return 1 / (1 - rate) if rate < 1 else 0.0


def drop_out(shares: Tensor, rate: float) -> tuple[Tensor, Tensor | None]:
    """Return the shares that are kept, not scaled up, and a mask of 0 and 1; None without dropout."""
    if not rate:
        return shares, None
    mask = torch.empty_like(shares).bernoulli_(1 - rate)
    return shares * mask, mask


class Attend(torch.autograd.Function):
    """Attention of all tokens of each row to each other.

    `query`, `key` and `value` are [tokens, heads × width]. `pos_key` and `pos_query` are the vectors of the distances
    from -length to length - 1, [2 × length, heads × width]; None leaves that term out. `bias` is added to the scores
    of all rows, [heads, length, length], after the scale. The result is [tokens, heads × width].
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        pos_key: Tensor | None,
        pos_query: Tensor | None,
        bias: Tensor | None,
        grid: Grid,
        scale: float,
        rate: float,
    ) -> Tensor:
        with torch.autocast(query.device.type, enabled=False):
            queries = _onto_grid(query, grid.queries, grid)
            keys, values = (_onto_grid(part, grid.keys, grid) for part in (key, value))
            scores = _position_scores(queries, keys, pos_key, pos_query, bias, grid)
            scores.baddbmm_(queries, keys.mT, beta=1.0 if bias is not None else scale, alpha=scale)
            shares = torch.softmax(scores, -1)  # in float32 within the kernel, whatever the type of the scores
            kept, dropped = drop_out(shares, rate)
            result = torch.bmm(kept, values)
            if dropped is not None:
                result *= kept_factor(rate)
        ctx.save_for_backward(queries, keys, values, pos_key, pos_query, shares, kept, dropped)
        ctx.grid, ctx.scale, ctx.rate, ctx.has_bias = grid, scale, rate, bias is not None
        return _off_grid(result, grid.query_places, grid)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        grid, scale = ctx.grid, ctx.scale
        queries, keys, values, pos_key, pos_query, shares, kept, dropped = ctx.saved_tensors
        with torch.autocast(gradient.device.type, enabled=False):
            d_result = _gradient_onto_grid(gradient, grid)
            if dropped is not None:
                d_result *= kept_factor(ctx.rate)
            d_values = torch.bmm(kept.mT, d_result)
            d_shares = torch.bmm(d_result, values.mT)
            if dropped is not None:
                d_shares *= dropped
            d_scores = torch.ops.aten._softmax_backward_data(d_shares, shares, -1, shares.dtype)
            d_queries, d_pos_key = _through(d_scores, queries, keys, pos_key, grid, scale)
            d_keys, d_pos_query = _through(d_scores.mT, keys, queries, pos_query, grid, scale)
            d_bias = (
                d_scores.view(grid.heads, grid.rows, grid.length, -1).sum(1, dtype=torch.float32)
                if ctx.has_bias
                else None
            )
        return (
            _off_grid(d_queries, grid.query_places, grid),
            _off_grid(d_keys, grid.key_places, grid),
            _off_grid(d_values, grid.key_places, grid),
            *(d_pos_key, d_pos_query, d_bias),
            *(None, None, None),
        )


class OntoGrid(torch.autograd.Function):
    """Keys or values of a batch on the grid, [heads × rows, length, width]; the backward pass is a gather, too."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, grid: Grid) -> Tensor:
        ctx.grid = grid
        return _onto_grid(tokens, grid.keys, grid)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _off_grid(gradient.contiguous(), ctx.grid.key_places, ctx.grid), None


def attend_from_first(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pos_key: Tensor | None,
    pos_query: Tensor | None,
    bias: Tensor | None,
    grid: Grid,
    scale: float,
    rate: float,
) -> Tensor:
    """Compute what `Attend` does for the first token of each row alone: `query` and the result have one row each."""
    shape = (grid.heads, grid.rows, grid.length, -1)
    keys, values = (OntoGrid.apply(part, grid) for part in (key, value))  # type: ignore[no-untyped-call]
    queries = query.view(grid.rows, grid.heads, -1).transpose(0, 1)
    scores = torch.bmm(keys, queries.reshape(grid.groups, -1, 1)).view(shape[:3])
    seen = slice(1, grid.length + 1)  # distances of the first token to every key: 1 - length to 0
    if pos_key is not None:
        scores = scores + torch.bmm(queries, _by_head(pos_key, grid)[:, seen].mT)
    if pos_query is not None:
        scores = scores + (keys.view(shape) * _by_head(pos_query, grid)[:, None, seen]).sum(-1)
    scores = scores.float() * scale
    if bias is not None:
        scores = scores + bias[:, :1]
    scores = scores.masked_fill(grid.masked.view(grid.rows, -1), lowest(scores.dtype))
    shares = functional.dropout(torch.softmax(scores, -1), rate)
    result = torch.bmm(shares.to(values.dtype).view(grid.groups, 1, -1), values).view(grid.heads, grid.rows, -1)
    return result.transpose(0, 1).reshape(grid.rows, -1)


def _onto_grid(tokens: Tensor, index: Tensor, grid: Grid) -> Tensor:
    """Return [heads × rows, length, width]. Empty places hold some token: they are masked, or nobody reads them."""
    width = tokens.shape[1] // grid.heads
    return tokens.reshape(-1, width).index_select(0, index).view(grid.groups, grid.length, width)


def _off_grid(parts: Tensor, places: Tensor, grid: Grid) -> Tensor:
    width = parts.shape[-1]
    return parts.view(-1, width).index_select(0, places).view(-1, grid.heads * width)


def _gradient_onto_grid(gradient: Tensor, grid: Grid) -> Tensor:
    """The inverse of `_off_grid`: places without a token get a gradient of zero."""
    width = gradient.shape[1] // grid.heads
    parts = gradient.new_zeros(grid.groups * grid.length, width)
    parts.index_copy_(0, grid.query_places, gradient.reshape(-1, width))
    return parts.view(grid.groups, grid.length, width)


def _position_scores(
    queries: Tensor, keys: Tensor, pos_key: Tensor | None, pos_query: Tensor | None, bias: Tensor | None, grid: Grid
) -> Tensor:
    """Return new scores [heads × rows, length, length] of the positions alone; masked ones are `lowest`."""
    shape = (grid.heads, grid.rows, grid.length, grid.length)
    terms = []
    if pos_key is not None:
        terms.append(pairs_of(_by_distance(queries, pos_key, grid)))
    if pos_query is not None:
        terms.append(pairs_of(_by_distance(keys, pos_query, grid)).mT)
    if bias is not None:
        terms.append(bias.to(queries.dtype)[:, None])
    if len(terms) == 2:
        scores = torch.add(*terms, out=queries.new_empty(shape)).masked_fill_(grid.masked, lowest(queries.dtype))
    else:
        term = terms[0] if terms else queries.new_zeros(())
        scores = torch.where(grid.masked, lowest(queries.dtype), term.expand(shape)).contiguous()
    return scores.view(grid.groups, grid.length, grid.length)


def lowest(kind: torch.dtype) -> float:
    """Return the score of what is not read: half of the lowest number, so that adding to it cannot give infinity."""
    return torch.finfo(kind).min / 2


def _by_distance(parts: Tensor, positions: Tensor, grid: Grid) -> Tensor:
    """Return the products [heads, rows, length, 2 × length] of each part with the vector of each distance."""
    flat = parts.view(grid.heads, grid.rows * grid.length, -1)
    return torch.bmm(flat, _by_head(positions, grid).mT).view(grid.heads, grid.rows, grid.length, -1)


def _by_head(positions: Tensor, grid: Grid) -> Tensor:
    return positions.view(len(positions), grid.heads, -1).transpose(0, 1)


def _through(
    d_scores: Tensor, parts: Tensor, others: Tensor, positions: Tensor | None, grid: Grid, scale: float
) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of `parts` and of `positions` (or None).

    A row of the scores is the products of one part with all `others`, plus its products with `positions`.
    """
    if positions is None:
        return torch.bmm(d_scores, others).mul_(scale), None
    distances = distances_of(d_scores).view(grid.heads, grid.rows * grid.length, -1)
    d_parts = torch.bmm(distances, _by_head(positions, grid)).view_as(parts)
    d_parts.baddbmm_(d_scores, others, beta=scale, alpha=scale)
    d_positions = torch.bmm(distances.mT, parts.view(grid.heads, grid.rows * grid.length, -1)).mul_(scale)
    return d_parts, d_positions.transpose(0, 1).reshape_as(positions)
