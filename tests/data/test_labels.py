from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.data_files import load, text
from whet.errors import DataError


def task(labels: list[Any], **settings: Any) -> Any:
    return load(([text(number) for number in range(len(labels))], labels), **settings).task


@pytest.mark.parametrize("labels", [[0, 1], [0.0, 1.0], ["0.0", "1.0"], ["0", "1"]])
def test_zero_and_one_are_classes_however_they_are_written(labels: list[Any]) -> None:
    found = task(labels * 20)
    assert (found.kind, found.labels) == ("binary", ("0", "1"))


def test_zero_and_one_are_a_regression_when_asked() -> None:
    found = task([0.0, 1.0] * 20, task="regression")
    assert (found.kind, found.labels, found.outputs) == ("regression", (), 1)


def test_decimals_make_a_regression_and_it_is_said() -> None:
    examples = load(([text(n) for n in range(60)], [n / 7 for n in range(60)]))
    assert examples.task.kind == "regression"
    assert "regression (the labels have decimals)" in examples.messages[0]


def test_decimal_commas_are_refused() -> None:
    with pytest.raises(DataError, match="decimal comma"):
        task([f"{n},5" for n in range(20)])


def test_many_whole_numbers_are_doubtful() -> None:
    with pytest.raises(DataError, match="task='multiclass' or task='regression'"):
        task([n % 150 for n in range(600)])


@pytest.mark.parametrize(
    "labels, order",
    [
        (["yes", "no"], ("no", "yes")),
        (["toxic", "non-toxic"], ("non-toxic", "toxic")),
        (["equivalent", "not_equivalent"], ("not_equivalent", "equivalent")),
        (["10", "9", "2"], ("2", "9", "10")),
        (["b", "A", "c"], ("A", "b", "c")),
        ([True, False], ("false", "true")),
    ],
)
def test_order_of_labels(labels: list[Any], order: tuple[str, ...]) -> None:
    assert task(labels * 20).labels == order == task(labels[::-1] * 20).labels


@pytest.mark.parametrize("strange", ["NA", "null", "None", "001", "nan"])
def test_odd_names_stay_names(strange: str) -> None:
    assert strange in task([strange, "other"] * 20).labels


def test_lists_are_several_labels() -> None:
    examples = load({"text": [text(n) for n in range(30)], "label": [["a"], ["b", "a"], []] * 10})
    assert (examples.task.kind, examples.task.labels) == ("multilabel", ("a", "b"))
    by_row = {row["row"]: row["label"] for split in examples.splits.values() for row in split}
    assert [by_row[row] for row in (1, 2, 3)] == [[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]]


@pytest.mark.parametrize("cells", [["a|b", "a", "b|c", "c"], ["['a', 'b']", '["c"]', "[]", '["a"]']])
def test_several_labels_in_a_cell(cells: list[str]) -> None:
    assert task(cells * 10).labels == ("a", "b", "c")


def test_doubtful_cells_ask() -> None:
    with pytest.raises(DataError, match="task='multiclass', or label_delimiter"):
        task(["red|green", "blue"] * 10)
    assert task(["red|green", "blue"] * 10, task="multiclass").labels == ("blue", "red|green")
    assert task(["red|green", "blue"] * 10, label_delimiter="|").labels == ("blue", "green", "red")


def test_commas_are_ordinary_in_names() -> None:
    assert task(["arts, other", "sports"] * 10).labels == ("arts, other", "sports")


def test_one_column_a_label() -> None:
    table = {"text": [text(n) for n in range(40)], "toxic": [0, 1] * 20, "rude": [0, 0, 1, 1] * 10}
    examples = load(table, label="toxic,rude")
    assert examples.task.labels == ("toxic", "rude")
    assert np.asarray(examples.splits["train"]["label"]).shape[1] == 2


def test_binary_asked_for_three_labels() -> None:
    with pytest.raises(DataError, match="2 labels, and there are 3"):
        task(["a", "b", "c"] * 10, task="binary")


def test_minus_one_is_unlabelled_unless_it_is_called_a_class() -> None:
    with pytest.raises(DataError, match=r"label -1, which means unlabelled.*task='binary'"):
        task([-1, 1] * 20)
    assert task([-1, 1] * 20, task="binary").labels == ("-1", "1")


def test_ids_as_labels_are_refused() -> None:
    with pytest.raises(DataError, match="40 different values in 40 rows"):
        task([f"doc{n}" for n in range(40)])


def test_regression_names_the_row_that_is_no_number() -> None:
    with pytest.raises(DataError, match=r"data:7:label: the label 'high' is not a number"):
        task(["1.5"] * 6 + ["high"] + ["2.5"] * 20, task="regression")


@pytest.mark.parametrize("labels", [["True", "False"], ["TRUE", "FALSE"], [True, False], ["true", "True", "false"]])
def test_booleans_have_one_spelling(labels: list[Any]) -> None:
    assert task(labels * 20).labels == ("false", "true")


def test_true_beside_other_names_stays_as_it_is_written() -> None:
    assert task(["True", "False", "Maybe"] * 20).labels == ("False", "Maybe", "True")


@pytest.mark.parametrize("cells", [["a|b", "", "b", "a"], [["a"], None, ["b"], []]])
def test_an_empty_cell_means_none_of_the_labels_where_a_row_may_have_several(cells: list[Any]) -> None:
    examples = load(([text(n) for n in range(40)], cells * 10))
    by_row = {row["row"]: row["label"] for split in examples.splits.values() for row in split}
    assert by_row[2] == [0.0, 0.0]


def test_an_empty_cell_among_classes_is_refused_and_the_way_out_is_named() -> None:
    with pytest.raises(DataError, match=r"10 rows have no label.*none of the labels.*task='multilabel'"):
        task(["a", "b", "", "a"] * 10)
    assert task(["a", "b", "", "a"] * 10, task="multilabel").kind == "multilabel"


@pytest.mark.parametrize(
    "labels, graded", [([1, 2, 3, 4, 5], True), (["0", "1", "2"], True), ([0, 1], False), ([1, 2, 9], False)]
)
def test_grades_are_classes_and_the_other_way_is_said(labels: list[Any], graded: bool) -> None:
    examples = load(([text(number) for number in range(60)], (labels * 60)[:60]))
    assert ("classes; --task regression if their order matters" in examples.messages[0]) == graded
