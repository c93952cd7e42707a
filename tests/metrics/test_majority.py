import pytest

from whet.errors import UsageError
from whet.metrics import majority


def test_the_training_majority_is_scored_on_the_evaluation_rows():
    found = majority("binary", [1, 1, 0], [0, 0, 1, 0])
    assert (found.label, found.metric, found.value) == (1, "accuracy", 0.25)
    assert found.scores["recall"] == 1.0


def test_a_tie_goes_to_the_lowest_class():
    assert majority("multiclass", [2, 0, 2, 0], [0]).label == 0


def test_label_names_are_kept():
    assert majority("binary", ["no", "no", "yes"], ["no", "no"]).label == "no"


def test_regression_answers_the_training_mean():
    found = majority("regression", [1.0, 3.0], [2.0, 4.0])
    assert (found.label, found.metric, found.value) == (2.0, "mse", 2.0)
    assert found.scores["pearson"] == 0.0


def test_multilabel_answers_the_columns_with_the_best_micro_f1():
    # Always the first column: 4 of 4 said are hits, 5 labels in all: F1 = 8/9. With the second too: 10/13.
    train = [[1, 0, 0], [1, 0, 0], [1, 1, 0], [1, 0, 0]]
    found = majority("multilabel", train, [[1, 0, 0], [0, 0, 1]])
    assert found.label == (1, 0, 0)
    assert (found.metric, found.value) == ("micro_f1", pytest.approx(0.5))


def test_no_training_labels_is_an_error():
    with pytest.raises(UsageError, match="labels_train is empty"):
        majority("binary", [], [1])


def test_several_labels_a_row_take_a_table():
    with pytest.raises(UsageError, match=r"labels_train has shape \(3,\), but multilabel takes \[rows, labels\]"):
        majority("multilabel", [1, 0, 1], [[1], [0]])


def test_no_labels_to_score_is_an_error():
    with pytest.raises(UsageError, match="labels_eval is empty"):
        majority("binary", [1, 0], [])
