"""What `predict` takes: the trained columns of any table, or texts and pairs as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from tests.data_files import text
from whet.data.readers.given_texts import GivenTexts, given_texts
from whet.errors import UsageError

FIRST, SECOND = [text(n) for n in range(30)], [text(n) for n in range(30, 60)]
COLUMNS = {"Review": FIRST, "Reply": SECOND, "stars": list(range(30))}
TABLES: list[Callable[[dict[str, list[Any]]], Any]] = [
    pd.DataFrame,
    pl.DataFrame,
    pa.table,
    datasets.Dataset.from_dict,
    dict,
    lambda columns: {name: np.array(values) for name, values in columns.items()},
    lambda columns: {name: pd.Series(values) for name, values in columns.items()},
    lambda columns: [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)],
    lambda columns: datasets.DatasetDict({"test": datasets.Dataset.from_dict(columns)}),
]


@pytest.mark.parametrize("table", TABLES)
def test_the_trained_columns_of_a_table_are_taken_without_regard_to_case(table: Callable[..., Any]) -> None:
    source = table(COLUMNS)
    assert given_texts(source, trained={"text": "review", "pair": None}) == GivenTexts(FIRST, None)
    assert given_texts(source, trained={"text": "reply", "pair": "review"}) == GivenTexts(SECOND, FIRST)


@pytest.mark.parametrize(
    "column", [list, tuple, np.array, pd.Series, pl.Series, pa.array, iter, lambda v: pa.chunked_array([v])]
)
def test_any_column_holds_texts(column: Callable[..., Any]) -> None:
    assert given_texts(column(FIRST)) == GivenTexts(FIRST, None)
    assert given_texts(column(FIRST), column(SECOND)) == GivenTexts(FIRST, SECOND)


def test_a_column_of_a_dataset_holds_texts() -> None:
    assert given_texts(datasets.Dataset.from_dict(COLUMNS)["Review"]) == GivenTexts(FIRST, None)


@pytest.mark.parametrize("rows", [list(zip(FIRST, SECOND, strict=True)), np.array([FIRST, SECOND]).T])
def test_rows_of_two_are_pairs(rows: Any) -> None:
    assert given_texts(rows) == GivenTexts(FIRST, SECOND)


def test_two_texts_in_a_tuple_are_a_pair_for_a_model_of_pairs() -> None:
    assert given_texts(("a", "b"), trained={"text": "x", "pair": "y"}) == GivenTexts(["a"], ["b"], single=True)
    assert given_texts(("a", "b"), trained={"text": "x", "pair": None}) == GivenTexts(["a", "b"], None)


def test_a_table_without_the_trained_column_is_refused_and_its_columns_are_named() -> None:
    with pytest.raises(UsageError) as caught:
        given_texts(pd.DataFrame(COLUMNS), trained={"text": "body", "pair": None})
    assert str(caught.value) == (
        "data: the column 'body' is not there. Its columns are Review, Reply, stars; "
        "give the one that is meant: predict(data['NAME'])."
    )


def test_two_columns_that_may_be_the_text_are_refused() -> None:
    with pytest.raises(UsageError, match=r"may be the text: one, two\..*predict\(data\['NAME'\]\)"):
        given_texts({"one": FIRST, "two": SECOND})


def test_a_missing_text_in_a_table_is_named() -> None:
    with pytest.raises(UsageError, match="Text 1 is None, which is not a text"):
        given_texts({"text": ["a", None]})


def test_numbers_in_the_trained_column_are_refused() -> None:
    with pytest.raises(UsageError, match="'whole', not texts"):
        given_texts({"text": [1, 2]}, trained={"text": "text", "pair": None})
