import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from whet.errors import UsageError
from whet.metrics import METRICS, bootstrap, paired, score_intervals, smallest_visible, wilson
from whet.metrics.intervals import absent_classes


def labels_and_predictions(n=300, right=0.8, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, n)
    return labels, np.where(rng.random(n) < right, labels, 1 - labels)


def test_wilson_equals_scipy():
    expected = stats.binomtest(351, 408).proportion_ci(method="wilson")
    found = wilson(351, 408)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_holds_its_score_and_stays_in_bounds(case):
    found = wilson(*case)
    assert 0 <= found.low <= found.value <= found.high <= 1
    assert found.low < found.high


def test_bootstrap_of_accuracy_agrees_with_wilson():
    labels, predictions = labels_and_predictions(1000)
    exact = wilson(int((labels == predictions).sum()), 1000)
    found = bootstrap("accuracy", labels, predictions, resamples=4000)
    assert (found.low, found.high) == pytest.approx((exact.low, exact.high), abs=0.005)


@pytest.mark.parametrize("confidence", [0.95, 0.5])
def test_the_interval_is_the_middle_of_the_draws(confidence):
    rows = np.arange(400)
    found = bootstrap(lambda truth, said: said.mean(), rows % 2, rows, resamples=4000, confidence=confidence)
    spread = stats.norm.ppf(0.5 + confidence / 2) * rows.std() / 20
    assert (found.low, found.high) == pytest.approx((found.value - spread, found.value + spread), abs=0.06 * spread)
    assert found.confidence == confidence


@pytest.mark.parametrize("name", ["f1", "macro_f1", "weighted_f1", "matthews", "recall", "precision"])
def test_bootstrap_by_counts_agrees_with_bootstrap_by_rows(name):
    labels, predictions = labels_and_predictions()
    fast = bootstrap(name, labels, predictions, resamples=3000)
    plain = bootstrap(lambda truth, said: METRICS[name](truth, said), labels, predictions, resamples=1000)
    assert fast.value == plain.value
    assert (fast.low, fast.high) == pytest.approx((plain.low, plain.high), abs=0.02)


@pytest.mark.parametrize("name", ["roc_auc", "average_precision"])
def test_bootstrap_of_rankings_agrees_with_bootstrap_by_rows(name):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, (150, 2))
    scores = (labels + rng.normal(size=(150, 2))).round(1)
    fast = bootstrap(name, labels, scores, resamples=2000)
    plain = bootstrap(lambda truth, said: METRICS[name](truth, said), labels, scores, resamples=1000)
    assert (fast.low, fast.high) == pytest.approx((plain.low, plain.high), abs=0.02)


@pytest.mark.parametrize("name", ["pearson", "spearman"])
def test_correlations_of_all_resamples_at_once_are_those_of_one_after_another(name, monkeypatch):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 60) / 2  # with ties
    predictions = [(labels + rng.normal(size=60)).round(1), np.where(labels > 0, 1e200, -1e200)]
    measure, calls = METRICS[name], []
    plain = paired(labels, *predictions, lambda truth, said: measure(truth, said), resamples=50)
    monkeypatch.setitem(METRICS, name, lambda truth, said: calls.append(1) or measure(truth, said))
    found = paired(labels, *predictions, name, resamples=50)
    assert (found.low, found.high) == pytest.approx((plain.low, plain.high), abs=1e-12)
    assert len(calls) == 2  # the scores themselves; no resample was measured by itself


def test_a_resample_that_is_all_alike_has_no_correlation():
    labels, predictions = np.array([0.0, 1.0, 1.0]), np.array([0.0, np.inf, 2.0])
    for name in ("pearson", "spearman"):
        plain = bootstrap(lambda truth, said, name=name: METRICS[name](truth, said), labels, predictions, resamples=40)
        found = bootstrap(name, labels, predictions, resamples=40)
        assert (found.low, found.high) == pytest.approx((plain.low, plain.high), abs=1e-12)


def test_a_resample_that_loses_a_rare_class_scores_no_better_for_it():
    labels = np.array([0] * 50 + [1] * 50 + [2] * 2)
    predictions = np.where(labels == 2, 0, labels)  # the rare class is always missed
    found = bootstrap("macro_f1", labels, predictions)
    assert found.value == pytest.approx(found.high, abs=0.01)  # and never above two thirds
    assert found.high < 0.67


def test_a_class_that_is_only_predicted_counts_in_every_resample():
    labels = np.array([0] * 50 + [1] * 50)
    predictions = labels.copy()
    predictions[0] = 2
    assert bootstrap("macro_f1", labels, predictions).high <= 2 / 3


def test_classes_without_rows_are_named():
    assert absent_classes("multiclass", [0, 2, 2], 4) == [1, 3]
    assert absent_classes("multilabel", [[1, 0], [1, 0]], 2) == [1]
    assert absent_classes("regression", [0.5], 1) == []


def test_bootstrap_is_the_same_for_the_same_seed_only():
    labels, predictions = labels_and_predictions()
    assert bootstrap("f1", labels, predictions) == bootstrap("f1", labels, predictions)
    assert bootstrap("f1", labels, predictions) != bootstrap("f1", labels, predictions, seed=1)


def test_intervals_drawn_in_blocks_cover_all_resamples(monkeypatch):
    labels, predictions = labels_and_predictions(50)
    seen = []
    monkeypatch.setattr("whet.metrics.intervals._CELLS_AT_ONCE", 120)
    bootstrap(lambda truth, said: seen.append(1) or 0.5, labels, predictions, resamples=7)
    assert len(seen) == 1 + 7


def test_a_wider_confidence_is_a_wider_interval():
    labels, predictions = labels_and_predictions()
    narrow, wide = (bootstrap("f1", labels, predictions, confidence=c) for c in (0.8, 0.99))
    assert wide.low < narrow.low < narrow.value < narrow.high < wide.high


def test_bootstrap_of_a_score_that_is_not_defined_says_so():
    with pytest.raises(UsageError, match="roc_auc of these 2 rows is nan"):
        bootstrap("roc_auc", [1, 1], [0.2, 0.3])


def test_intervals_of_a_task_hold_their_scores():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, (80, 3))
    found = score_intervals("multilabel", labels * 2 - 1 + rng.normal(size=(80, 3)), labels, resamples=200)
    assert list(found) == ["micro_f1", "macro_f1", "exact_match", "average_precision"]
    assert all(each.low < each.value < each.high for each in found.values())


def test_mcnemar_by_hand():
    # a alone is right once, b alone five times: 2 · (1 + 6) / 2^6.
    labels = np.ones(20, dtype=int)
    a, b = labels.copy(), labels.copy()
    a[:5], b[5] = 0, 0
    found = paired(labels, a, b)
    assert (found.test, found.n) == ("mcnemar", 20)
    assert found.difference == pytest.approx(4 / 20)
    assert found.p_value == pytest.approx(2 * 7 / 64)
    assert found.low < 0 < found.difference < found.high
    assert not found.visible


def test_a_clear_difference_is_visible_by_either_test():
    labels, good = labels_and_predictions(400, 0.95)
    _, bad = labels_and_predictions(400, 0.6, seed=0)
    for metric in ("accuracy", "f1"):
        found = paired(labels, bad, good, metric)
        assert found.visible
        assert 0 < found.low < found.difference < found.high


def test_the_smallest_p_value_is_as_small_as_the_resamples_can_show():
    labels, good = labels_and_predictions(400, 0.95)
    assert paired(labels, 1 - good, good, "f1", resamples=99).p_value == pytest.approx(2 / 100)


def test_a_class_missing_from_a_resample_does_not_lower_its_macro_f1():
    # Class 2 has one row: a third of the resamples lack it, and the rest of their rows are right.
    assert bootstrap("macro_f1", [0, 1, 2], [0, 1, 2]).low == 1.0


def test_paired_bootstrap_of_rankings_uses_the_same_rows_for_both():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 100)
    scores = labels + rng.normal(size=100)
    found = paired(labels, scores, 2 * scores + 1, "roc_auc", resamples=50)
    assert (found.low, found.high, found.test) == (0.0, 0.0, "bootstrap")


@settings(max_examples=20)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=30),
    st.sampled_from(["accuracy", "macro_f1", "matthews"]),
)
def test_a_model_does_not_differ_from_itself(rows, metric):
    labels, predictions = zip(*rows, strict=True)
    found = paired(labels, predictions, predictions, metric, resamples=20)
    assert (found.difference, found.p_value) == (0.0, 1.0)
    assert found.low <= 0 <= found.high


def test_swapping_the_models_turns_the_difference_round():
    labels, a = labels_and_predictions(200, 0.9)
    _, b = labels_and_predictions(200, 0.7, seed=0)
    one, two = paired(labels, a, b), paired(labels, b, a)
    assert (one.difference, one.low, one.p_value) == pytest.approx((-two.difference, -two.high, two.p_value))


def test_multilabel_accuracy_is_paired_by_whole_rows():
    labels = np.array([[1, 0], [0, 1], [1, 1]])
    found = paired(labels, labels, 1 - labels, "exact_match")
    assert (found.a, found.b, found.difference) == (1.0, 0.0, -1.0)


def test_paired_names_the_array_that_is_too_short():
    with pytest.raises(UsageError, match="labels has 2 rows, but b has 1"):
        paired([0, 1], [0, 1], [0])


def test_smallest_visible_is_where_mcnemar_turns():
    # 1,000 rows, 200 on which just one model is right: the formula's 2.8 points are 28 rows of 200.
    points = smallest_visible(1000, 0.8, disagreement=0.2)
    assert points == pytest.approx(2.772, abs=0.01)
    labels = np.ones(1000, dtype=int)

    def p_value(gap):
        a, b = labels.copy(), labels.copy()
        b[: (200 - gap) // 2], a[(200 - gap) // 2 : 200] = 0, 0
        return paired(labels, a, b).p_value

    assert p_value(gap=34) < 0.05 < p_value(gap=22)


def test_smallest_visible_shrinks_with_rows_and_never_reaches_zero():
    assert smallest_visible(408, 0.86) > smallest_visible(4080, 0.86) > 0
    assert smallest_visible(10, 1.0) > 1
    assert smallest_visible(408, 0.86, disagreement=0.05) < smallest_visible(408, 0.86)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: wilson(3, 2), "3 right of 2 rows"),
        (lambda: smallest_visible(0, 0.5), "0 rows"),
        (lambda: smallest_visible(10, 86.0), "accuracy 86.0"),
        (lambda: wilson(1, 2, confidence=95), "confidence=95"),
        (lambda: bootstrap("f1", [1], [1], resamples=0), "resamples=0"),
        (lambda: paired([1], [1], [1], "acuracy"), "'accuracy'"),
    ],
)
def test_wrong_arguments_are_refused_with_their_value(call, message):
    with pytest.raises(UsageError, match=message):
        call()
