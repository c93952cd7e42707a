"""Linear baselines: logits in the model's form, whatever the training rows lack."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whet.errors import UsageError
from whet.metrics import linear_models as linear
from whet.metrics.linear_models import (
    frozen_predictions,
    out_of_fold,
    pair_features,
    sample_rows,
    tfidf_predictions,
    tfidf_rows,
)
from whet.metrics.scores import predicted, probabilities, score

KINDS = ("binary", "multiclass", "multilabel", "regression")
OUTPUTS = {"binary": 2, "multiclass": 4, "multilabel": 3, "regression": 1}


def some_labels(kind: str, rows: int, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    if kind == "regression":
        return rng.normal(size=rows)
    if kind == "multilabel":
        return (rng.random((rows, 3)) < 0.5).astype(np.float32)
    return rng.integers(0, OUTPUTS[kind], rows)


@given(
    kind=st.sampled_from(KINDS),
    rows=st.integers(1, 12),
    seed=st.integers(0, 99),
    words=st.booleans(),
    two=st.booleans(),
)
@settings(max_examples=60)
def test_logits_have_the_tasks_shape_whatever_classes_the_rows_have(
    kind: str, rows: int, seed: int, words: bool, two: bool
) -> None:
    labels, outputs = some_labels(kind, rows, seed), OUTPUTS[kind]
    if words:
        texts = [f"word{number % 3} 好 !" if number % 4 else "" for number in range(rows)]
        pairs = texts[::-1] if two else None
        logits = tfidf_predictions(kind, outputs, texts, pairs, labels, ["word1", ""], ["", "!"] if two else None)
    else:
        features = np.random.default_rng(seed).normal(size=(rows, 5))
        logits = frozen_predictions(kind, outputs, features, labels, np.zeros((2, 5)))
    assert logits.shape == (2, outputs)
    assert np.isfinite(logits).all()
    assert np.isfinite(probabilities(kind, logits)).all()
    if kind in ("binary", "multiclass"):
        assert set(predicted(kind, logits)) <= set(labels)


@given(seen=st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True))
def test_a_class_keeps_its_column_when_others_are_missing(seen: list[int]) -> None:
    labels = np.repeat(sorted(seen), 8)
    features = np.eye(6)[labels]
    logits = frozen_predictions("multiclass", 6, features, labels, np.eye(6)[seen])
    assert predicted("multiclass", logits).tolist() == seen


def test_single_label_logits_are_log_probabilities() -> None:
    features = np.random.default_rng(0).normal(size=(40, 3))
    logits = frozen_predictions("multiclass", 4, features, some_labels("multiclass", 40), features)
    np.testing.assert_allclose(np.exp(logits).sum(axis=1), 1.0)


def test_logits_are_those_of_scikit_learn() -> None:
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(0)
    features, labels = rng.normal(3, 2, size=(60, 4)), some_labels("multiclass", 60)
    scaled = (features - features.mean(axis=0)) / features.std(axis=0) / 2
    expected = LogisticRegression(tol=1e-3).fit(scaled, labels).predict_log_proba(scaled)
    np.testing.assert_allclose(frozen_predictions("multiclass", 4, features, labels, features), expected, atol=1e-6)


def test_a_label_that_every_row_has_is_always_given() -> None:
    labels = np.array([[1, 0, 1], [1, 0, 0]] * 10)
    features = np.array([[1.0], [-1.0]] * 10)
    logits = frozen_predictions("multilabel", 3, features, labels, features[:2])
    assert predicted("multilabel", logits).tolist() == [[1, 0, 1], [1, 0, 0]]


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_the_scale_of_features_does_not_matter(scale: float) -> None:
    rng = np.random.default_rng(1)
    features, labels = rng.normal(size=(50, 8)), some_labels("binary", 50)
    plain = frozen_predictions("binary", 2, features, labels, features)
    np.testing.assert_allclose(
        frozen_predictions("binary", 2, features * scale + 7, labels, features * scale + 7), plain
    )


def test_a_constant_feature_is_left_out() -> None:
    features = np.concatenate([np.full((20, 1), 0.1), np.repeat([[0.0], [1.0]], 10, axis=0)], axis=1)
    labels = np.repeat([0, 1], 10)
    moved = features + np.array([5.0, 0.0])
    logits = frozen_predictions("binary", 2, features, labels, moved)
    assert score("binary", logits, labels)["accuracy"] == 1.0


def test_words_decide_single_texts() -> None:
    train = ["good film", "a good one", "bad film", "a bad one"] * 5
    logits = tfidf_predictions("binary", 2, train, None, [1, 1, 0, 0] * 5, ["bad", "good"])
    assert predicted("binary", logits).tolist() == [0, 1]


def test_neighbouring_words_count() -> None:
    train, labels = ["not good", "good not"] * 10, [0, 1] * 10
    logits = tfidf_predictions("binary", 2, train, None, labels, train[:2])
    assert predicted("binary", logits).tolist() == [0, 1]


def test_texts_without_spaces_share_characters() -> None:
    train = ["我喜欢这个", "他们喜欢它", "我讨厌那个", "他们讨厌它"] * 5
    logits = tfidf_predictions("binary", 2, train, None, [1, 1, 0, 0] * 5, ["大家讨厌", "大家喜欢"])
    assert predicted("binary", logits).tolist() == [0, 1]


def alike_or_not(rows: int, seed: int) -> tuple[list[str], list[str], Any]:
    """Pairs whose words say nothing by themselves: label 1 where the second text has the words of the first."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, rows)
    first = [rng.integers(0, 500, 6) for _ in range(rows)]
    second = [rng.permutation(f) if label else rng.integers(0, 500, 6) for f, label in zip(first, labels, strict=True)]
    return *([" ".join(f"w{word}" for word in row) for row in side] for side in (first, second)), labels  # type: ignore[return-value]


def test_pairs_are_told_by_what_their_texts_share() -> None:
    first, second, labels = alike_or_not(100, 0)
    other_first, other_second, truth = alike_or_not(100, 1)
    logits = tfidf_predictions("binary", 2, first, second, labels, other_first, other_second)
    assert score("binary", logits, truth)["accuracy"] > 0.95


def test_pair_features_are_both_texts_their_distance_and_product() -> None:
    found = pair_features([[3.0, 4.0], [0.0, 0.0]], [[0.0, 2.0], [1.0, 0.0]])
    expected = [[0.6, 0.8, 0, 1, 0.6, 0.2, 0, 0.8], [0, 0, 1, 0, 1, 0, 0, 0]]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_pairs_on_one_side_only_are_refused() -> None:
    with pytest.raises(UsageError, match="only one has pairs"):
        tfidf_predictions("binary", 2, ["a", "b"], ["c", "d"], [0, 1], ["a"], None)


def test_labels_of_other_rows_are_refused() -> None:
    with pytest.raises(UsageError, match="2 training rows and 3 labels"):
        frozen_predictions("binary", 2, np.zeros((2, 2)), [0, 1, 1], np.zeros((1, 2)))


def test_out_of_fold_rows_are_never_trained_on() -> None:
    folds = np.array([2, 0, 1, 2, 0, 1, 2])
    asked = []

    def fit_predict(train: Any, rows: Any) -> Any:
        asked.append((set(folds[train]), set(folds[rows])))
        return np.stack([rows, rows * 10], axis=1)

    logits = out_of_fold(fit_predict, folds)
    assert logits.tolist() == [[row, row * 10] for row in range(7)]
    assert asked == [({1, 2}, {0}), ({0, 2}, {1}), ({0, 1}, {2})]


def test_a_class_of_one_fold_only_breaks_nothing() -> None:
    features, labels = np.eye(3)[[0, 1, 0, 1, 2, 2]], np.array([0, 1, 0, 1, 2, 2])
    folds = np.array([0, 0, 1, 1, 2, 2])
    logits = out_of_fold(lambda a, b: frozen_predictions("multiclass", 3, features[a], labels[a], features[b]), folds)
    assert predicted("multiclass", logits)[:4].tolist() == [0, 1, 0, 1]


def test_one_fold_is_refused() -> None:
    with pytest.raises(UsageError, match="1 folds"):
        out_of_fold(lambda train, rows: rows, np.zeros(4))


def test_a_sample_is_in_order_the_same_every_time_and_not_the_first_rows() -> None:
    rows = sample_rows(1000, 100)
    assert len(set(rows)) == 100
    assert rows.tolist() == sorted(rows) == sample_rows(1000, 100).tolist() != list(range(100))
    assert sample_rows(5, 100).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("words", [False, True])
def test_a_cap_trains_on_the_sampled_rows_and_their_labels(words: bool) -> None:
    labels, rows = some_labels("binary", 100), sample_rows(100, 30)
    if words:
        texts = [f"w{number % 7} w{number % 11}" for number in range(100)]
        capped = tfidf_predictions("binary", 2, texts, None, labels, texts, most=30)
        alone = tfidf_predictions("binary", 2, [texts[row] for row in rows], None, labels[rows], texts)
    else:
        features = np.random.default_rng(0).normal(size=(100, 3))
        capped = frozen_predictions("binary", 2, features, labels, features, most=30)
        alone = frozen_predictions("binary", 2, features[rows], labels[rows], features)
    np.testing.assert_array_equal(capped, alone)


def test_of_long_texts_fewer_rows_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "ALL_CHARACTERS", 1000)
    assert len(tfidf_rows(["x" * 100] * 30)) == 10
    assert len(tfidf_rows(["x" * 100] * 30, ["y" * 100] * 30)) == 5
    assert len(tfidf_rows(["x"] * 30)) == 30


def test_the_model_of_single_texts_is_that_of_a_plain_pipeline() -> None:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(["aa", "bb", "cc", "dd", "ee"], 6)) for _ in range(90)]
    labels = np.array([text.count("aa") % 3 for text in texts])
    found = tfidf_predictions("multiclass", 3, texts[:60], None, labels[:60], texts[60:])
    plain = make_pipeline(TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), LogisticRegression(C=3.0, tol=1e-3))
    expected = plain.fit(texts[:60], labels[:60]).predict_proba(texts[60:])
    np.testing.assert_allclose(probabilities("multiclass", found), expected, atol=1e-6)


def test_a_pair_is_seen_as_its_words_those_that_differ_and_those_that_are_shared() -> None:
    first, second = ["aa bb", "cc"], ["bb cc cc", "cc"]
    rows = linear._Terms(first, second, 100)(first, second).toarray()
    u, v = rows[:, :3], rows[:, 3:6]
    assert (u > 0).tolist() == [[True, True, False], [False, False, True]]
    assert (v > 0).tolist() == [[False, True, True], [False, False, True]]
    np.testing.assert_allclose(rows[:, 6:9], np.abs(u - v))
    np.testing.assert_allclose(rows[:, 9:12], u * v)
    np.testing.assert_allclose(rows[:, 12], (u * v).sum(axis=1))
