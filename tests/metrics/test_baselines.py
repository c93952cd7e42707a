"""The model among its baselines: the same metric, the same rows, and a sentence that does not claim too much."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from whet.metrics import majority, paired
from whet.metrics.baselines import association, commonest_predictions, compare_baselines
from whet.metrics.scores import MAIN_METRIC, predicted


def answers(labels: Any, wrong: int) -> Any:
    """Logits that are wrong on the first rows."""
    said = np.where(np.arange(len(labels)) < wrong, 1 - labels, labels)
    return np.eye(2)[said]


LABELS = np.array([0, 1, 1] * 100)


def test_the_sentence_lists_all_best_first() -> None:
    found = compare_baselines(
        "binary",
        answers(LABELS, 30),
        LABELS,
        {"TF-IDF": answers(LABELS, 90), "frozen": answers(LABELS, 60)},
        train_labels=LABELS,
    )
    assert found.sentence.startswith(
        "accuracy on 300 rows: fine-tuned .900, frozen .800, TF-IDF .700, commonest .667; "
        "fine-tuned is better than all of them (p at most "
    )


def test_a_baseline_that_these_rows_cannot_tell_apart_is_named() -> None:
    found = compare_baselines("binary", answers(LABELS, 30), LABELS, {"frozen": answers(LABELS, 32)})
    assert found.sentence.endswith("; these rows cannot tell fine-tuned from frozen (p = 0.5).")


def test_a_baseline_that_is_better_is_named_and_not_those_that_are_equal() -> None:
    others = {"frozen": answers(LABELS, 30), "TF-IDF": answers(LABELS, 58)}
    found = compare_baselines("binary", answers(LABELS, 60), LABELS, others)
    assert "; fine-tuned is worse than frozen (p = " in found.sentence
    assert "from TF-IDF" not in found.sentence


def test_a_smaller_error_is_the_better_one() -> None:
    truth = np.random.default_rng(0).normal(size=200)
    noise = np.random.default_rng(1).normal(size=200)
    others = {"near": truth + 0.1 * noise, "far": truth + noise[::-1]}
    found = compare_baselines("regression", truth + 0.5 * noise, truth, others, metric="mse")
    assert [each.name for each in found.baselines] == ["near", "far"]
    assert "; fine-tuned is worse than near (p = " in found.sentence
    assert "far (" not in found.sentence


def test_the_test_is_the_paired_one() -> None:
    model, other = answers(LABELS, 30), answers(LABELS, 45)
    found = compare_baselines("binary", model, LABELS, {"frozen": other}).baselines[0]
    assert found.test == paired(LABELS, other.argmax(axis=1), model.argmax(axis=1))
    assert found.p_value == found.test.p_value
    assert found.value == found.scores["accuracy"] == 0.85


@pytest.mark.parametrize("metric", ["roc_auc", "f1"])
def test_the_metric_asked_for_decides(metric: str) -> None:
    found = compare_baselines("binary", answers(LABELS, 30), LABELS, {"frozen": answers(LABELS, 60)}, metric=metric)
    assert found.metric == found.baselines[0].test.metric == metric
    assert found.baselines[0].value == pytest.approx(found.baselines[0].scores[metric])


def test_a_loss_gives_way_to_the_main_metric() -> None:
    assert compare_baselines("binary", answers(LABELS, 9), LABELS, {}, metric="loss").metric == "accuracy"


def test_a_metric_that_these_rows_do_not_define_gives_way_too() -> None:
    ones = np.ones(20, int)
    found = compare_baselines("binary", answers(ones, 2), ones, {"frozen": answers(ones, 9)}, metric="roc_auc")
    assert found.metric == "accuracy"


def test_fewer_training_rows_are_said_and_all_of_them_are_not() -> None:
    others = {"frozen": answers(LABELS, 60), "TF-IDF": answers(LABELS, 90)}
    taken = {"frozen": 50, "TF-IDF": 300}
    found = compare_baselines("binary", answers(LABELS, 3), LABELS, others, train_labels=LABELS, trained_on=taken)
    assert found.sentence.endswith(" frozen was trained on 50 of 300 rows.")


@pytest.mark.parametrize("kind", sorted(MAIN_METRIC))
def test_the_commonest_answer_scores_what_majority_says(kind: str) -> None:
    rng = np.random.default_rng(0)
    labels: Any = {
        "binary": rng.integers(0, 2, 40),
        "multiclass": rng.integers(0, 3, 40),
        "multilabel": (rng.random((40, 3)) < [0.7, 0.2, 0.1]).astype(int),
        "regression": rng.normal(size=40),
    }[kind]
    width = {"binary": 2, "regression": 1}.get(kind, 3)
    logits = commonest_predictions(kind, width, labels, 40)
    found = compare_baselines(kind, logits, labels, {}, train_labels=labels).baselines[0]
    for name, value in majority(kind, labels, labels).scores.items():
        assert found.scores[name] == pytest.approx(value)
    assert found.p_value == 1.0
    assert predicted(kind, logits).shape == labels.shape


def test_a_standing_is_json() -> None:
    found = compare_baselines("binary", answers(LABELS, 30), LABELS, {"frozen": answers(LABELS, 60)})
    shown = json.loads(json.dumps(found.as_dict()))
    assert shown["sentence"] == found.sentence
    assert shown["baselines"][0]["value"] == 0.8
    assert shown["baselines"][0]["p_value"] == found.baselines[0].p_value


def test_numbers_from_1_on_keep_all_their_digits() -> None:
    truth = np.arange(20.0)
    assert "fine-tuned 100.000" in compare_baselines("regression", truth + 10, truth, {}, metric="mse").sentence
    assert "fine-tuned 1.000" in compare_baselines("binary", answers(LABELS, 0), LABELS, {}).sentence


def test_association_is_the_z_score_of_shuffled_labels() -> None:
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 3, 40)
    logits = rng.normal(size=(40, 3)) + np.eye(3)[labels]
    likely = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    own = [likely[np.arange(40), rng.permutation(labels)].sum() for _ in range(20_000)]
    expected = (likely[np.arange(40), labels].sum() - np.mean(own)) / np.std(own)
    assert expected > 2
    assert association("multiclass", logits, labels) == pytest.approx(expected, abs=0.1)


def test_association_sees_what_accuracy_does_not() -> None:
    """The commonest class on every row, and surer of it where it is right."""
    labels = np.array([0, 1, 1, 1] * 30)
    logits = np.stack([np.zeros(120), np.where(labels == 1, 1.2, 0.8)], axis=1)
    found = compare_baselines("binary", logits, labels, {}, train_labels=labels)
    assert found.value == found.baselines[0].value == 0.75
    assert found.association > 5
    assert found.baselines[0].association == 0.0


@pytest.mark.parametrize("kind", sorted(MAIN_METRIC))
def test_answers_that_know_the_labels_are_associated_with_them(kind: str) -> None:
    rng = np.random.default_rng(0)
    labels: Any = {
        "binary": rng.integers(0, 2, 40),
        "multiclass": rng.integers(0, 3, 40),
        "multilabel": (rng.random((40, 3)) < 0.5).astype(int),
        "regression": rng.normal(size=40),
    }[kind]
    known = {"multilabel": lambda: 2.0 * labels - 1, "regression": lambda: labels[:, None]}
    logits = known.get(kind, lambda: np.eye({"binary": 2}.get(kind, 3))[labels])()
    assert association(kind, logits, labels) > 5
    assert abs(association(kind, logits, rng.permutation(labels))) < 3


def test_scores_have_intervals_and_stand_against_the_commonest() -> None:
    others = {"good": answers(LABELS, 30), "poor": answers(LABELS, 140)}
    found = compare_baselines("binary", answers(LABELS, 10), LABELS, others, train_labels=LABELS)
    above = {each.name: each.above_commonest for each in found.baselines}
    assert above["good"] < 1e-6
    assert above["poor"] == above["commonest"] == 1.0
    assert found.interval is not None
    assert found.interval[0] < found.value < found.interval[1]
    assert compare_baselines("binary", answers(LABELS, 10), LABELS, others).baselines[0].above_commonest is None


def test_a_sample_of_the_rows_is_called_one() -> None:
    found = compare_baselines("binary", answers(LABELS, 30), LABELS, {}, of_rows=4000)
    assert found.sentence.startswith("accuracy on 300 of 4,000 rows: ")
