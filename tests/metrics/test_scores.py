import math

import numpy as np
import pytest
import sklearn.metrics as reference
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from whet.errors import UsageError
from whet.metrics import scores

LABELS = [0, 0, 1, 1, 1, 0, 1, 0]
PREDICTIONS = [
    0,
    1,
    1,
    1,
    0,
    0,
    1,
    0,
]  # 3 true positives, 1 false positive, 1 false negative, 3 true negatives


def three_classes(seed=0, n=60):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 3, n), rng.integers(0, 3, n)


def columns(seed=0, n=40):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 2, (n, 4)), rng.normal(size=(n, 4)).round(1)


def test_binary_scores_by_hand():
    assert scores.accuracy(LABELS, PREDICTIONS) == 6 / 8
    assert scores.precision(LABELS, PREDICTIONS) == 3 / 4
    assert scores.recall(LABELS, PREDICTIONS) == 3 / 4
    assert scores.f1(LABELS, PREDICTIONS) == 0.75
    assert scores.matthews_correlation(LABELS, PREDICTIONS) == (3 * 3 - 1 * 1) / 16


def test_pos_label_chooses_the_class():
    assert scores.precision([0, 0, 1], [0, 1, 1], pos_label=0) == 1.0
    assert scores.f1(["no", "yes"], ["no", "yes"], pos_label="yes") == 1.0


@pytest.mark.parametrize("average", ["macro", "micro", "weighted"])
@pytest.mark.parametrize("name", ["precision", "recall", "f1"])
def test_averages_equal_scikit_learn(name, average):
    labels, predictions = three_classes()
    expected = getattr(reference, f"{name}_score")(labels, predictions, average=average)
    assert getattr(scores, name)(labels, predictions, average=average) == pytest.approx(expected)


@pytest.mark.parametrize("average", ["macro", "micro", "weighted"])
def test_multilabel_averages_equal_scikit_learn(average):
    labels, values = columns()
    predictions = (values > 0.3).astype(int)
    expected = reference.f1_score(labels, predictions, average=average)
    assert scores.f1(labels, predictions, average=average) == pytest.approx(expected)


def test_macro_f1_leaves_out_classes_that_nobody_used():
    assert scores.macro_f1([0, 2], [0, 2]) == 1.0
    assert scores.macro_f1([0, 2], [0, 1]) == pytest.approx(1 / 3)


def test_multilabel_accuracy_wants_every_column_right():
    assert scores.accuracy([[1, 0], [1, 1]], [[1, 0], [1, 0]]) == 0.5


def test_matthews_of_three_classes_equals_scikit_learn():
    labels, predictions = three_classes(3)
    expected = reference.matthews_corrcoef(labels, predictions)
    assert scores.matthews_correlation(labels, predictions) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["roc_auc", "average_precision"])
def test_rankings_with_ties_equal_scikit_learn(name):
    labels, values = columns(2)
    measure = getattr(reference, f"{name}_score")
    assert getattr(scores, name)(labels[:, 0], values[:, 0]) == pytest.approx(measure(labels[:, 0], values[:, 0]))
    assert getattr(scores, name)(labels, values) == pytest.approx(measure(labels, values, average="macro"))


def test_roc_auc_by_hand():
    assert scores.roc_auc([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8]) == 0.75
    assert scores.roc_auc([0, 1], [0.5, 0.5]) == 0.5


def test_average_precision_by_hand():
    assert scores.average_precision([1, 0, 1], [0.9, 0.8, 0.7]) == pytest.approx((1 + 2 / 3) / 2)


def test_rankings_that_are_not_defined_are_nan():
    assert math.isnan(scores.roc_auc([1, 1], [0.2, 0.3]))
    assert math.isnan(scores.average_precision([0, 0], [0.2, 0.3]))


def test_numbers_equal_the_reference_libraries():
    rng = np.random.default_rng(1)
    labels, predictions = rng.normal(size=50).round(1), rng.normal(size=50).round(1)
    assert scores.pearson(labels, predictions) == pytest.approx(stats.pearsonr(labels, predictions)[0])
    assert scores.spearman(labels, predictions) == pytest.approx(stats.spearmanr(labels, predictions)[0])
    assert scores.mse(labels, predictions) == pytest.approx(reference.mean_squared_error(labels, predictions))
    assert scores.mae(labels, predictions) == pytest.approx(reference.mean_absolute_error(labels, predictions))
    assert scores.r2(labels, predictions) == pytest.approx(reference.r2_score(labels, predictions))


def test_numbers_by_hand():
    assert scores.mse([1, 2, 3], [1, 2, 5]) == pytest.approx(4 / 3)
    assert scores.mae([1, 2, 3], [1, 2, 5]) == pytest.approx(2 / 3)
    assert scores.r2([1, 2, 3], [1, 2, 5]) == -1.0
    assert scores.spearman([1, 2, 3], [10, 100, 1000]) == pytest.approx(1.0)


def test_constant_predictions_have_defined_values():
    assert scores.pearson([1, 2, 3], [0.1, 0.1, 0.1]) == 0.0
    assert scores.spearman([1, 2, 3], [7, 7, 7]) == 0.0
    assert scores.matthews_correlation([0, 1], [1, 1]) == 0.0
    assert scores.f1([1, 1], [0, 0]) == 0.0
    assert scores.r2([2, 2], [2, 2]) == 1.0
    assert scores.r2([2, 2], [2, 3]) == 0.0


def test_pearson_neither_overflows_nor_vanishes():
    small = np.array([1.0, 2.0, 4.0])
    for scale in (1e200, 1e-200):
        assert scores.pearson(small, small * scale) == pytest.approx(1.0)


def test_log_loss_by_hand_and_with_a_certain_mistake():
    assert scores.log_loss([0, 1], [[0.5, 0.5], [0.75, 0.25]]) == pytest.approx(-(math.log(0.5) + math.log(0.25)) / 2)
    assert scores.log_loss([1], [0.8]) == pytest.approx(-math.log(0.8))
    assert math.isfinite(scores.log_loss([0], [[0.0, 1.0]]))
    with pytest.raises(UsageError, match="labels has 2 rows, but probabilities has 1"):
        scores.log_loss([0, 1], [[0.5, 0.5]])


def test_higher_is_better_knows_losses_and_errors():
    assert scores.higher_is_better("eval_accuracy")
    assert not any(scores.higher_is_better(name) for name in ("loss", "eval_loss", "mse", "test_mae", "squared_error"))
    assert all(scores.higher_is_better(name) for name in scores.MAIN_METRIC.values())


def test_binary_average_of_three_classes_is_refused_with_the_way_out():
    with pytest.raises(UsageError, match=r"there are 3: \[0, 1, 2\].*macro"):
        scores.f1([0, 1, 2], [0, 1, 2])


def test_a_positive_label_that_is_not_there_is_refused():
    with pytest.raises(UsageError, match="pos_label=1 is not one of the labels"):
        scores.f1(["no", "yes"], ["no", "no"])


def test_unequal_lengths_name_both():
    with pytest.raises(UsageError, match="labels has 3 rows, but predictions has 2"):
        scores.accuracy([0, 1, 1], [0, 1])


def test_an_unknown_metric_names_the_nearest():
    with pytest.raises(UsageError, match="'macro_f1'"):
        scores.metric_named("macrof1")


pairs = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40)


@given(pairs, st.randoms())
def test_label_scores_are_bounded_and_do_not_depend_on_order(rows, random):
    shuffled = random.sample(rows, len(rows))
    for name in ("accuracy", "macro_f1", "micro_f1", "weighted_f1", "matthews"):
        value = scores.METRICS[name](*zip(*rows, strict=True))
        assert (-1 if name == "matthews" else 0) <= value <= 1 + 1e-12
        assert scores.METRICS[name](*zip(*shuffled, strict=True)) == pytest.approx(value)


@given(pairs)
def test_micro_f1_of_single_labels_is_accuracy(rows):
    labels, predictions = zip(*rows, strict=True)
    assert scores.micro_f1(labels, predictions) == pytest.approx(scores.accuracy(labels, predictions))


@given(st.lists(st.tuples(st.booleans(), st.floats(-50, 50)), min_size=2, max_size=30))
def test_negated_scores_mirror_roc_auc(rows):
    labels, values = (np.array(part) for part in zip(*rows, strict=True))
    value = scores.roc_auc(labels, values)
    if math.isnan(value):
        assert len(set(labels.tolist())) == 1
    else:
        assert scores.roc_auc(labels, -values) == pytest.approx(1 - value)
