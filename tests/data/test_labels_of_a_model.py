"""Labels of new data for a trained model: by name, in the model's order, whatever order the data has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data_files import as_csv, text, write
from whet.config import DataConfig
from whet.data.examples import Examples, load_examples
from whet.errors import DataError
from whet.metrics.scores import score
from whet.task import Task

TOPICS = ("sport", "food", "money", "travel")
TASK = Task("multilabel", TOPICS)
TRUTH = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1], [0, 0, 0, 0]])


def read(source: Any, label: str | None = None, task: Task = TASK) -> Examples:
    return load_examples(source, DataConfig(label=label), labelled=False, task=task)


def table(names: tuple[str, ...] = TOPICS) -> dict[str, list[Any]]:
    columns = {name: TRUTH[:, TOPICS.index(name.casefold())].tolist() for name in names}
    return {"text": [text(n) for n in range(len(TRUTH))], **columns}


def labels(examples: Examples) -> list[Any]:
    return examples.rows["test"].column("label")


@pytest.mark.parametrize("named", ["sport,food,money,travel", "travel,sport,money,food", "Sport,FOOD,money,travel"])
def test_label_columns_are_matched_by_name_not_by_position(tmp_path: Path, named: str) -> None:
    columns = table(("food", "travel", "sport", "money"))
    path = write(tmp_path / "new.csv", as_csv(zip(*columns.values(), strict=True), header=list(columns)))
    assert labels(read(path, named)) == TRUTH.tolist()


def test_label_columns_of_the_model_are_found_without_being_named() -> None:
    assert labels(read(table(("Travel", "money", "food", "sport")))) == TRUTH.tolist()


def test_a_label_without_a_column_is_named() -> None:
    with pytest.raises(DataError, match=r"no column is named for the model's label 'travel'\. Use label='sport,food"):
        read(table(), "sport,food,money")
    with pytest.raises(DataError, match="the model's labels 'food', 'money', 'travel'"):
        read(table(), "sport")


def test_a_column_that_is_no_label_of_the_model_is_named() -> None:
    columns = {**table(), "weather": [0, 1, 0, 1]}
    with pytest.raises(
        DataError, match=r"the model has no label 'weather'\. Its labels are sport, food, money, travel"
    ):
        read(columns, "sport,food,money,weather")


def test_several_columns_for_a_model_with_one_answer_are_refused() -> None:
    with pytest.raises(DataError, match="4 label columns are named, and the model gives one answer per row"):
        read(table(), "sport,food,money,travel", Task("binary", ("no", "yes")))


@settings(max_examples=25)
@given(
    columns=st.permutations(TOPICS), rows=st.permutations(range(8)), named=st.permutations(TOPICS), seed=st.integers(0)
)
def test_reordering_columns_rows_and_labels_changes_no_score(
    columns: list[str], rows: list[int], named: list[str], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    truth, logits = rng.integers(0, 2, (8, 4)), rng.normal(size=(8, 4)).astype(np.float32)
    ordered = {name: truth[rows, TOPICS.index(name)].tolist() for name in columns}
    found = read({**ordered, "text": [text(row) for row in rows]}, ",".join(named))
    again = np.asarray(labels(found), np.float32)
    expected = score("multilabel", logits, truth.astype(np.float32))
    assert score("multilabel", logits[rows], again) == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize("empty", ["", None, []])
def test_an_empty_cell_of_a_multi_label_column_means_none_of_the_labels(empty: Any) -> None:
    cells = [["sport"], empty, ["money", "travel"]] if empty == [] else ["sport", empty, "money|travel"]
    found = read({"text": [text(n) for n in range(3)], "label": cells})
    assert labels(found) == [[1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 1]]


def test_a_split_in_which_no_cell_has_a_label_is_unlabelled() -> None:
    found = read({"text": [text(n) for n in range(3)], "label": ["", None, " "]}, "label")
    assert labels(found) == [None] * 3


def test_a_row_with_a_label_that_the_model_does_not_know_is_left_out_and_counted_once() -> None:
    cells = ["sport|chess|opera", "food", "money|travel", "chess"]
    found = read({"text": [text(n) for n in range(4)], "label": cells})
    assert labels(found) == [None, [0, 1, 0, 0], [0, 0, 1, 1], None]
    assert found.origin["unseen_rows"] == {"test": 2}
    assert found.origin["unseen_labels"] == {"test": {"chess": 2, "opera": 1}}


@pytest.mark.parametrize("cells", [["True", "FALSE"], [True, False], ["true", "false "]])
@pytest.mark.parametrize("known", [("false", "true"), ("False", "True")])
def test_booleans_are_read_however_they_are_written(cells: list[Any], known: tuple[str, str]) -> None:
    found = read({"text": [text(1), text(2)], "label": cells}, task=Task("binary", known))
    assert labels(found) == [1, 0]
