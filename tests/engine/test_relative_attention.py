"""Attention with relative positions: diagonals of distances are scores of pairs, forwards and backwards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from whet.engine.packed import make_layout
from whet.engine.relative_attention import (
    Attend,
    Expand,
    TableBias,
    attend_from_first,
    distances_of,
    drop_out,
    grid_of_mask,
    grid_of_packed,
    pairs_of,
)

HEADS, WIDTH, LENGTHS = 2, 2, (1, 3, 2)
GRID = grid_of_packed(make_layout(np.array([0, 1, 4, 6]), torch.device("cpu")), HEADS)


def random_inputs(*, with_bias: bool = False) -> list[Tensor | None]:
    """Query, key, value, and either both vectors of positions or a bias, in float64."""
    torch.manual_seed(0)
    tokens = [torch.randn(sum(LENGTHS), HEADS * WIDTH, dtype=torch.float64) for _ in range(3)]
    positions = [torch.randn(2 * GRID.length, HEADS * WIDTH, dtype=torch.float64) for _ in range(2)]
    bias = torch.randn(HEADS, GRID.length, GRID.length, dtype=torch.float64)
    inputs = [*tokens, None, None, bias] if with_bias else [*tokens, *positions, None]
    return [part if part is None else part.requires_grad_() for part in inputs]


def by_definition(inputs: list[Tensor | None], kept: Tensor | None = None) -> Tensor:
    """Each row alone and each head alone, with the sum over distances written out; `kept` are factors of dropout."""
    query, key, value, pos_key, pos_query, bias = inputs
    result, start = [], 0
    for row, length in enumerate(LENGTHS):
        of_heads = []
        for head in range(HEADS):
            part = slice(head * WIDTH, (head + 1) * WIDTH)
            q, k, v = (each[start : start + length, part] for each in (query, key, value))  # type: ignore[index]
            distance = torch.arange(length)[:, None] - torch.arange(length) + GRID.length
            if bias is None:
                c2p = (q[:, None] * pos_key[:, part][distance]).sum(-1)  # type: ignore[index]
                p2c = (k[None] * pos_query[:, part][distance]).sum(-1)  # type: ignore[index]
                scores = 0.5 * (q @ k.T + c2p + p2c)
            else:
                scores = 0.5 * (q @ k.T) + bias[head, :length].flip(1)[:, :length]
            shares = scores.softmax(-1)
            if kept is not None:
                factors = kept.view(HEADS, len(LENGTHS), GRID.length, -1)[head, row, :length]
                shares = shares * factors.flip(1)[:, :length]
            of_heads.append(shares @ v)
        result.append(torch.cat(of_heads, 1))
        start += length
    return torch.cat(result)


def attend(*inputs: Tensor | None, rate: float = 0.0) -> Tensor:
    return Attend.apply(*inputs, GRID, 0.5, rate)  # type: ignore[no-untyped-call,no-any-return]


@pytest.mark.parametrize("with_bias", [False, True], ids=["vectors", "bias"])
def test_attention_is_what_the_definition_says(with_bias: bool) -> None:
    inputs = random_inputs(with_bias=with_bias)
    torch.testing.assert_close(attend(*inputs), by_definition(inputs))


@pytest.mark.parametrize("with_bias", [False, True], ids=["vectors", "bias"])
@pytest.mark.parametrize("rate", [0.0, 0.4])
def test_gradients_are_those_of_finite_differences(rate: float, with_bias: bool) -> None:
    def seeded(*inputs: Tensor | None) -> Tensor:
        torch.manual_seed(3)
        return attend(*inputs, rate=rate)

    assert torch.autograd.gradcheck(seeded, random_inputs(with_bias=with_bias))


def test_dropout_scales_what_it_keeps() -> None:
    inputs = random_inputs()
    torch.manual_seed(3)
    _, mask = drop_out(torch.ones(GRID.groups, GRID.length, GRID.length, dtype=torch.float64), 0.4)
    assert mask is not None
    torch.manual_seed(3)
    torch.testing.assert_close(attend(*inputs, rate=0.4), by_definition(inputs, mask / 0.6))


def test_dropout_drops_at_its_rate() -> None:
    shares, mask = drop_out(torch.ones(100_000), 0.1)
    assert mask is not None
    assert float(shares.mean()) == pytest.approx(0.9, abs=0.005)
    assert drop_out(shares, 0.0)[1] is None


@pytest.mark.parametrize("with_bias", [False, True], ids=["vectors", "bias"])
def test_the_first_tokens_alone_get_the_same(with_bias: bool) -> None:
    inputs = random_inputs(with_bias=with_bias)
    query, *others = inputs
    first = attend_from_first(query[GRID.first], *others, GRID, 0.5, 0.0)  # type: ignore[index,arg-type]
    torch.testing.assert_close(first, attend(*inputs)[GRID.first], check_dtype=False, rtol=1e-5, atol=1e-6)


def test_a_padded_batch_is_a_grid_of_all_its_places() -> None:
    mask = torch.arange(GRID.length) < torch.tensor(LENGTHS)[:, None]
    inputs, grid = random_inputs(), grid_of_mask(mask, HEADS)
    padded = [torch.zeros(mask.numel(), HEADS * WIDTH, dtype=torch.float64) for _ in range(3)]
    for wide, part in zip(padded, inputs, strict=False):
        wide[mask.flatten()] = part.detach()  # type: ignore[union-attr]
    found = Attend.apply(*padded, *inputs[3:], grid, 0.5, 0.0)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(found[mask.flatten()], attend(*inputs))


@pytest.mark.parametrize("length", [1, 2, 5])
def test_pairs_and_distances_are_the_inverse_of_each_other(length: int) -> None:
    pairs = torch.randn(2, 3, length, length)
    torch.testing.assert_close(pairs_of(distances_of(pairs)), pairs)
    assert torch.count_nonzero(distances_of(pairs)) == pairs.numel()


@pytest.mark.parametrize("make", [TableBias.apply, lambda rows: Expand.apply(rows, *EXPANSION)])
def test_tables_have_the_gradients_of_finite_differences(make: Any) -> None:
    assert torch.autograd.gradcheck(make, torch.randn(2, 6, dtype=torch.float64, requires_grad=True))


EXPANSION = (torch.tensor([0, 0, 1, 0]), torch.tensor([[1.0, 0], [1, 0], [0, 1], [1, 0]], dtype=torch.float64))


def test_rows_without_any_token_are_numbers() -> None:
    mask = torch.tensor([[True, True], [False, False]])
    parts = [torch.randn(4, HEADS * WIDTH) for _ in range(3)]
    found = Attend.apply(*parts, None, None, None, grid_of_mask(mask, HEADS), 0.5, 0.0)  # type: ignore[no-untyped-call]
    assert found.isfinite().all()
