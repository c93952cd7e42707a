"""Python objects that `fit` takes: the same rows, the same examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from tests.data.readers.test_given_texts import TABLES
from tests.data_files import load, text
from whet.errors import DataError

TEXTS = [text(n) for n in range(40)]
LABELS = ["mild", "hot"] * 20
EXPECTED = load((TEXTS, LABELS)).fingerprint


@pytest.mark.parametrize("table", TABLES[:-1])
def test_every_table_gives_the_same_examples(table: Callable[..., Any]) -> None:
    assert load(table({"text": TEXTS, "label": LABELS})).fingerprint == EXPECTED


@pytest.mark.parametrize("column", [np.array, pd.Series, pl.Series, pa.array, tuple])
def test_every_column_gives_the_same_examples(column: Callable[..., Any]) -> None:
    assert load((column(TEXTS), column(LABELS))).fingerprint == EXPECTED
    assert load({"text": column(TEXTS), "label": column(LABELS)}).fingerprint == EXPECTED


def frame(categories: list[Any], values: list[Any]) -> pd.DataFrame:
    return pd.DataFrame({"text": TEXTS, "label": pd.Categorical(values, categories, ordered=True)})


def test_a_categorical_keeps_its_order_as_the_order_of_labels() -> None:
    table = frame(["mild", "medium", "hot", "unused"], ["hot", "mild", "medium", "mild"] * 10)
    examples = load(table)
    assert examples.task.labels == ("mild", "medium", "hot")
    assert {row["row"]: row["label"] for split in examples.splits.values() for row in split}[1] == 2


def test_a_categorical_of_numbers_keeps_its_order() -> None:
    assert load(frame([3, 1, 2], [1, 2, 3, 1] * 10)).task.labels == ("3", "1", "2")


def test_a_categorical_of_booleans_is_spelled_as_other_booleans() -> None:
    assert load(frame([True, False], [True, False] * 20)).task.labels == ("false", "true")


def test_a_categorical_may_hold_several_labels_a_cell() -> None:
    examples = load(frame(["b", "a|b", "a"], ["a", "a|b", "b", "a"] * 10), label_delimiter="|")
    assert examples.task.labels == ("a", "b")


def test_booleans_of_a_data_frame_are_spelled_as_in_its_csv(tmp_path: Any) -> None:
    table = pd.DataFrame({"text": TEXTS, "label": [True, False] * 20})
    table.to_csv(tmp_path / "a.csv", index=False)
    assert load(tmp_path / "a.csv").task.labels == load(table).task.labels == ("false", "true")


def test_arrays_in_cells_are_lists_of_labels() -> None:
    cells = [np.array(["a"]), np.array(["a", "b"]), None, np.array([], object)] * 10
    assert load(pd.DataFrame({"text": TEXTS, "label": cells})).task.labels == ("a", "b")


def test_a_text_in_the_place_of_a_column_is_named() -> None:
    with pytest.raises(DataError, match="the column 'label' is 'mild'"):
        load({"text": TEXTS, "label": "mild"})
