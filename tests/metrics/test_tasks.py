import math

import numpy as np
import pytest
import sklearn.metrics as reference
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from whet.errors import UsageError
from whet.metrics import MAIN_METRIC, TASK_METRICS, predicted, probabilities, score

WIDTH = {"binary": 2, "multiclass": 3, "multilabel": 3, "regression": 1}


def example(task, n=30, seed=0):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, WIDTH[task]))
    if task == "regression":
        return logits, rng.normal(size=n)
    if task == "multilabel":
        return logits, rng.integers(0, 2, (n, 3))
    return logits, rng.integers(0, WIDTH[task], n)


@pytest.mark.parametrize("task", MAIN_METRIC)
def test_every_task_gives_its_metrics_in_order(task):
    assert tuple(score(task, *example(task))) == TASK_METRICS[task]
    assert MAIN_METRIC[task] in TASK_METRICS[task]


def test_binary_scores_equal_scikit_learn():
    logits, labels = example("binary")
    said, found = logits.argmax(axis=1), score("binary", logits, labels)
    assert found["accuracy"] == pytest.approx(reference.accuracy_score(labels, said))
    assert found["f1"] == pytest.approx(reference.f1_score(labels, said))
    assert found["roc_auc"] == pytest.approx(reference.roc_auc_score(labels, logits[:, 1] - logits[:, 0]))
    assert found["matthews"] == pytest.approx(reference.matthews_corrcoef(labels, said))


def test_multilabel_scores_equal_scikit_learn():
    logits, labels = example("multilabel")
    said, found = logits >= 0, score("multilabel", logits, labels)
    assert found["micro_f1"] == pytest.approx(reference.f1_score(labels, said, average="micro"))
    assert found["exact_match"] == pytest.approx(reference.accuracy_score(labels, said))
    assert found["average_precision"] == pytest.approx(reference.average_precision_score(labels, logits))


def test_roc_auc_ranks_logits_that_saturate_as_probabilities():
    logits = np.array([[0.0, 40.0], [0.0, 60.0]])
    assert probabilities("binary", logits)[:, 1].tolist() == [1.0, 1.0]
    assert score("binary", logits, [0, 1])["roc_auc"] == 1.0


def test_one_class_leaves_roc_auc_out():
    found = score("binary", [[0.0, 1.0], [1.0, 0.0]], [1, 1])
    assert "roc_auc" not in found
    assert found["recall"] == 0.5


@pytest.mark.parametrize("task", MAIN_METRIC)
def test_a_model_that_diverged_still_has_its_main_metric(task):
    logits, labels = example(task)
    found = score(task, np.full_like(logits, np.nan), labels)
    assert math.isfinite(found[MAIN_METRIC[task]])
    assert not {"roc_auc", "average_precision", "mse", "mae", "r2"} & set(found)


def test_nan_never_wins():
    assert predicted("multiclass", [[math.nan, 0.1, 0.2]]).tolist() == [2]


def test_probability_of_one_half_counts_as_yes():
    assert predicted("multilabel", [[0.0, -0.1]]).tolist() == [[1, 0]]


def test_infinite_logits_are_certain():
    assert probabilities("binary", [[math.inf, 0.0]]).tolist() == [[1.0, 0.0]]
    assert probabilities("multilabel", [[-math.inf, math.inf]]).tolist() == [[0.0, 1.0]]


@given(arrays.arrays(np.float64, (5, 3), elements=st.floats(-1e6, 1e6)))
def test_probabilities_are_probabilities_and_agree_with_predictions(logits):
    soft = probabilities("multiclass", logits)
    assert np.allclose(soft.sum(axis=1), 1.0)
    assert (soft[np.arange(5), predicted("multiclass", logits)] == soft.max(axis=1)).all()
    assert ((probabilities("multilabel", logits) >= 0.5) == predicted("multilabel", logits)).all()


@given(st.permutations(range(30)))
def test_the_order_of_rows_does_not_matter(order):
    logits, labels = example("binary")
    assert score("binary", logits[order], labels[order]) == pytest.approx(score("binary", logits, labels))


def test_regression_takes_a_column_or_a_row_of_numbers():
    logits, labels = example("regression")
    assert score("regression", logits[:, 0], labels) == score("regression", logits, labels)


@pytest.mark.parametrize(
    ("task", "logits", "labels", "message"),
    [
        ("binary", [[0.0, 1.0]], [2], "labels holds 2, but class numbers from 0 to 1"),
        ("multiclass", [[0.0, 1.0, 2.0]], [-100], "labels holds -100"),
        ("binary", [[0.0]], [0], r"logits has shape \(1, 1\), but binary takes \[rows, 2\]"),
        ("multilabel", [[0.0, 1.0]], [[0, 3]], "labels holds .*3.*, but 0 or 1"),
        ("multilabel", [[0.0, 1.0]], [1], r"labels has shape \(1,\)"),
        ("regression", [[0.0]], [math.nan], "labels holds nan in row 0"),
        ("binary", [[0.0, 1.0]], [], "labels is empty"),
        ("binari", [[0.0, 1.0]], [0], "'binary'"),
    ],
)
def test_what_cannot_be_scored_is_refused_with_its_value(task, logits, labels, message):
    with pytest.raises(UsageError, match=message):
        score(task, logits, labels)
