import math

import numpy as np
import pytest
import sklearn.metrics as reference
from hypothesis import given, settings
from hypothesis import strategies as st

from whet.errors import UsageError
from whet.metrics import (
    expected_calibration_error,
    fit_temperature,
    negative_log_likelihood,
    predicted,
    probabilities,
    reliability,
)
from whet.metrics.calibration import divisor_in_words, usable_temperature


def honest(n=4000, seed=0, classes=3):
    """Logits, and labels drawn from the very probabilities that they state."""
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(n, classes))
    draws = rng.random(n)[:, None]
    return logits, (probabilities("multiclass", logits).cumsum(axis=1) < draws).sum(axis=1).clip(0, classes - 1)


def logit(chance):
    return [0.0, math.log(chance / (1 - chance))]


def test_bins_by_hand():
    logits, labels = [logit(0.85), logit(0.88), logit(0.05)], [1, 0, 0]
    low, high = reliability("binary", logits, labels)
    assert (low.low, low.high, low.n, low.accuracy) == (0.8, 0.9, 2, 0.5)
    assert (low.confidence, high.confidence) == pytest.approx((0.865, 0.95))
    assert (high.n, high.accuracy) == (1, 1.0)


def test_expected_calibration_error_by_hand():
    logits, labels = [logit(0.85), logit(0.88), logit(0.05)], [1, 0, 0]
    expected = (2 * abs(0.865 - 0.5) + abs(0.95 - 1.0)) / 3
    assert expected_calibration_error("binary", logits, labels) == pytest.approx(expected)


def test_several_labels_count_as_an_answer_each():
    bins = reliability("multilabel", [[2.0, -2.0], [2.0, 0.5]], [[1, 0], [1, 0]])
    assert [(each.n, each.accuracy) for each in bins] == [(1, 0.0), (3, 1.0)]
    assert [each.confidence for each in bins] == pytest.approx([1 / (1 + math.exp(-0.5)), 1 / (1 + math.exp(-2))])


@pytest.mark.parametrize(
    ("temperature", "words"),
    [
        (20.0, "20 or more"),
        (19.99, "20 or more"),
        (19.97, "19.97"),
        (0.05, "0.05 or less"),
        (0.0501, "0.05"),
        (1.5, "1.50"),
    ],
)
def test_a_temperature_at_its_bound_is_told_as_one(temperature, words):
    assert divisor_in_words(temperature) == words


def test_an_answer_on_the_edge_belongs_to_the_bin_below():
    assert reliability("binary", [[1.0, 1.0]], [0])[0].high == 0.5


def test_certain_answers_fall_into_the_last_bin():
    assert reliability("binary", [[0.0, 900.0]], [1])[0].high == 1.0


def test_loss_equals_scikit_learn():
    logits, labels = honest(100)
    expected = reference.log_loss(labels, probabilities("multiclass", logits), labels=[0, 1, 2])
    assert negative_log_likelihood("multiclass", logits, labels) == pytest.approx(expected)


def test_multilabel_loss_by_hand():
    found = negative_log_likelihood("multilabel", [[0.0, 800.0]], [[1, 1]])
    assert found == pytest.approx(math.log(2) / 2)


def test_honest_probabilities_ask_for_a_temperature_of_one():
    logits, labels = honest()
    assert fit_temperature("multiclass", logits, labels) == pytest.approx(1.0, abs=0.08)


def test_overconfidence_is_found_and_mended():
    logits, labels = honest()
    temperature = fit_temperature("multiclass", 3 * logits, labels)
    assert temperature == pytest.approx(3 * fit_temperature("multiclass", logits, labels), rel=1e-3)
    before = expected_calibration_error("multiclass", 3 * logits, labels)
    after = expected_calibration_error("multiclass", 3 * logits, labels, temperature=temperature)
    assert after < before / 3


def test_multilabel_temperature_is_found():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2000, 2))
    labels = (rng.random((2000, 2)) < probabilities("multilabel", logits)).astype(int)
    assert fit_temperature("multilabel", logits * 2, labels) == pytest.approx(2.0, abs=0.25)


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.floats(0.2, 5))
def test_the_fitted_temperature_never_makes_the_loss_worse(seed, scale):
    rng = np.random.default_rng(seed)
    logits, labels = scale * rng.normal(size=(30, 2)), rng.integers(0, 2, 30)
    temperature = fit_temperature("binary", logits, labels)
    fitted = negative_log_likelihood("binary", logits, labels, temperature=temperature)
    assert fitted <= negative_log_likelihood("binary", logits, labels) + 1e-9
    assert (predicted("binary", logits / temperature) == predicted("binary", logits)).all()


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.floats(0.2, 5), st.sampled_from(["multiclass", "multilabel"]))
def test_the_temperature_has_the_least_loss_of_all(seed, scale, task):
    rng = np.random.default_rng(seed)
    logits = scale * rng.normal(size=(30, 3))
    labels = rng.integers(0, 3, 30) if task == "multiclass" else rng.integers(0, 2, (30, 3))
    fitted = negative_log_likelihood(task, logits, labels, temperature=fit_temperature(task, logits, labels))
    others = np.geomspace(0.05, 20, 200)
    assert fitted <= min(negative_log_likelihood(task, logits, labels, temperature=each) for each in others) + 1e-7


def test_logits_that_say_nothing_ask_for_no_temperature():
    assert fit_temperature("multiclass", [[2.0, 2.0, 2.0]] * 4, [0, 1, 2, 0]) == 1.0


def test_logits_that_are_never_wrong_end_at_the_lowest_temperature():
    assert fit_temperature("binary", [[0.0, 1.0], [1.0, 0.0]], [1, 0]) == pytest.approx(0.05, rel=1e-3)


@pytest.mark.parametrize(
    ("logits", "labels", "words"),
    [
        ([[0.0, 1.0], [1.0, 0.0]], [1, 0], "0.05 or less"),
        ([[0.0, 1.0], [1.0, 0.0]], [0, 1], "20 or more"),
        ([[2.0, 2.0]], [1], "1.00"),
    ],
)
def test_a_bound_of_the_search_is_said_to_be_one(logits, labels, words):
    assert divisor_in_words(fit_temperature("binary", logits, labels)) == words


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: reliability("regression", [[1.0]], [1.0]), "no probabilities"),
        (lambda: reliability("binary", [[0.0, 1.0]], [1], bins=0), "bins=0"),
        (lambda: reliability("binary", [[0.0, 1.0]], [1], temperature=0.0), "temperature=0.0"),
        (lambda: fit_temperature("binary", [[0.0, math.nan]], [1]), r"logits holds \[0.0, nan\] in row 0"),
    ],
)
def test_what_cannot_be_calibrated_is_refused(call, message):
    with pytest.raises(UsageError, match=message):
        call()


def test_a_temperature_is_used_where_rows_can_tell_it():
    logits, labels = honest(400)
    assert usable_temperature("multiclass", 3 * logits, labels) == (
        fit_temperature("multiclass", 3 * logits, labels),
        "",
    )


@pytest.mark.parametrize(
    ("rows", "wrong", "why"),
    [
        (49, 20, "49 rows are too few"),
        (200, 4, "4 wrong answers are too few"),
        (200, 197, "3 right answers are too few"),
    ],
)
def test_a_temperature_is_not_guessed_from_rows_that_cannot_tell_it(rows, wrong, why):
    logits = np.tile([0.0, 2.0], (rows, 1))
    labels = (np.arange(rows) >= wrong).astype(int)
    found, said = usable_temperature("binary", logits, labels)
    assert found == 1.0
    assert why in said


def test_a_temperature_at_the_bound_of_the_search_is_not_used():
    logits, labels = np.tile([0.0, 2.0], (200, 1)), np.tile([0, 1], 100)
    found, said = usable_temperature("binary", logits, labels)
    assert (found, "ended at its bound" in said) == (1.0, True)
