"""Batches of a captured step: few shapes, and rows that are missing count for nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.conftest import random_tokens, small_model
from whet.engine.captured.batches import (
    Format,
    InARow,
    Rectangle,
    StaticBatch,
    padded_width,
    shortest_row,
    token_bucket,
)

CPU = torch.device("cpu")


def test_widths_have_few_sizes() -> None:
    assert [padded_width(n, n, None) for n in (1, 16, 17, 128, 129, 500, 1025)] == [16, 16, 32, 128, 160, 512, 1280]


def test_a_width_keeps_to_the_models_limit() -> None:
    assert [padded_width(n, n, 66) for n in (60, 65, 70)] == [64, 66, 70]


def test_numbers_of_tokens_have_few_sizes() -> None:
    assert [token_bucket(n) for n in (1, 64, 65, 1000, 2049)] == [64, 64, 128, 1024, 2176]


def test_one_batch_in_twenty_is_shorter_than_the_shortest_row() -> None:
    lengths = np.arange(1, 1001)
    longest = np.random.default_rng(0).choice(lengths, (4000, 8)).max(axis=1)
    assert (longest < shortest_row(lengths, 8)).mean() == pytest.approx(0.05, abs=0.01)


@pytest.mark.parametrize("form", [Rectangle(small_model().config, 40), InARow(150)])
def test_missing_rows_have_no_share(form: Format) -> None:
    tokens, rows = random_tokens(20), np.array([3, 5, 7])
    shape = form.shape(tokens, rows, 8)
    static = StaticBatch.like(form, shape, tokens, CPU)
    static.fill(tokens, rows, 1 / 3)
    batch = static.batch()
    assert batch.share is not None
    assert batch.labels is not None
    assert batch.share.tolist() == pytest.approx([1 / 3] * 3 + [0.0] * 5)
    assert batch.labels[:3].tolist() == tokens.labels[rows].tolist()


def test_a_missing_row_attends_to_one_token() -> None:
    """Attention over nothing is not a number, and zero times that is none either."""
    tokens, form = random_tokens(20), Rectangle(small_model().config)
    static = StaticBatch.like(form, form.shape(tokens, np.array([3]), 4), tokens, CPU)
    assert static.batch().inputs["attention_mask"].sum(dim=1).tolist() == [1, 1, 1, 1]
    static.fill(tokens, np.array([3]), 1.0)
    assert static.batch().inputs["attention_mask"].sum(dim=1).tolist() == [int(tokens.row_lengths[3]), 1, 1, 1]


def test_rows_in_a_row_are_those_of_the_table() -> None:
    tokens, rows = random_tokens(20), np.array([4, 2])
    form = InARow()
    static = StaticBatch.like(form, form.shape(tokens, rows, 4), tokens, CPU)
    static.fill(tokens, rows, 1.0)
    batch = static.batch()
    assert batch.layout is not None
    first, second, *rest = batch.layout.offsets[1:].tolist()
    assert batch.inputs["input_ids"][:first].tolist() == tokens.row(4).tolist()
    assert batch.inputs["input_ids"][first:second].tolist() == tokens.row(2).tolist()
    assert rest == [second, second]


def test_rows_do_not_become_longer_without_a_padding_token() -> None:
    config = small_model().config
    config.pad_token_id = None
    tokens = random_tokens(20)
    assert Rectangle(config, 40).shape(tokens, np.array([3]), 1) == (1, int(tokens.row_lengths[3]), 0)
