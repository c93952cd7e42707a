"""Linear models on the same rows: TF-IDF of the texts, or features of the pretrained model.

Each function trains on some rows and returns logits of others in the model's own form, so that `scores` reads them
alike: log probabilities for one label per row, log odds for several, the numbers for regression.

Nothing is tuned on the rows. The regularization was chosen once, on four GLUE tasks with 128 and some thousand rows.
Feature vectors have a length of about 1, so that one value fits many widths.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from whet.errors import UsageError, nearest
from whet.metrics.scores import MAIN_METRIC
from whet.utils.arrays import Array

MAX_ROWS = 20_000
"""Largest number of training rows of a baseline: more take minutes and change little."""
MAX_CHARACTERS = 4_000
"""Largest part of a text, which is more than an encoder reads."""
ALL_CHARACTERS = 10_000_000
"""Largest part of all training texts: counting their words takes about ten seconds."""
MAX_TERMS = 100_000
MAX_WEIGHTS = 1_500_000
"""Largest number of terms times outputs."""

UNSEEN = float(np.log(1e-9))
"""Log probability of a class, or log odds of a label, without training rows."""

# In scripts without spaces each character counts as a word; signs such as ! and emoji are words too.
_NO_SPACES = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff"
_TERM = rf"[{_NO_SPACES}]|[^\W{_NO_SPACES}]+|[^\w\s]"

FitPredict = Callable[[Array, Array], Array]
"""(rows to train on, rows to predict) -> logits of the latter."""


def sample_rows(rows: int, most: int = MAX_ROWS, seed: int = 0) -> Array:
    """Return all row numbers, or a reproducible sample of them, in order."""
    if rows <= most:
        return np.arange(rows, dtype=np.int64)
    # numpy guarantees that the raw numbers of a bit generator never change.
    raw = np.random.Philox(key=[seed, 0xBA5E]).random_raw(rows)
    return np.sort(np.argsort(raw, kind="stable")[:most]).astype(np.int64)


def tfidf_rows(texts: Sequence[str], pairs: Sequence[str] | None = None, most: int = MAX_ROWS) -> Array:
    """Return the training rows that `tfidf_predictions` uses: fewer if the texts are long."""
    rows = sample_rows(len(texts), most)
    sizes = [min(len(text), MAX_CHARACTERS) for column in (texts, pairs or ()) for text in column]
    mean = sum(sizes) / max(1, len(texts))
    return rows if len(rows) * mean <= ALL_CHARACTERS else sample_rows(len(texts), int(ALL_CHARACTERS / mean))


def tfidf_predictions(
    kind: str,
    outputs: int,
    train_texts: Sequence[str],
    train_pairs: Sequence[str] | None,
    train_labels: Any,
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    *,
    most: int = MAX_ROWS,
) -> Array:
    """Return logits of the texts from a linear model on the words of the training texts (those of `tfidf_rows`).

    Single texts count words and pairs of neighbouring words. Text pairs count the words of each text, the shared and
    the unshared ones, and the similarity of the texts.
    """
    labels = _checked(kind, train_labels, len(train_texts))
    if (train_pairs is None) != (pairs is None):
        raise UsageError("Of training and evaluation texts only one has pairs.")
    rows = tfidf_rows(train_texts, train_pairs, most)
    first = [train_texts[row] for row in rows]
    second = None if train_pairs is None else [train_pairs[row] for row in rows]
    terms = _Terms(first, second, min(MAX_TERMS, MAX_WEIGHTS // max(1, outputs)))
    # Rows of pairs keep their greater length.
    strength = 3.0 if second is None else 1.0
    return _linear(kind, outputs, terms(first, second), labels[rows], terms(texts, pairs), strength)


def frozen_predictions(
    kind: str, outputs: int, train_features: Any, train_labels: Any, features: Any, *, most: int = MAX_ROWS
) -> Array:
    """Return logits of rows of features [rows, width] from a linear model on the training rows' features."""
    train, other = np.asarray(train_features, np.float64), np.asarray(features, np.float64)
    labels = _checked(kind, train_labels, len(train))
    if train.ndim != 2 or other.ndim != 2 or train.shape[1] != other.shape[1]:
        raise UsageError(f"The features have shapes {train.shape} and {other.shape}, but [rows, width] is expected.")
    rows = sample_rows(len(train), most)
    train = train[rows]
    mean, spread = train.mean(axis=0), train.std(axis=0)
    # A column that is constant up to rounding has no information.
    spread[spread <= 1e-6 * np.maximum(1.0, np.abs(mean))] = np.inf
    spread *= np.sqrt(train.shape[1])
    return _linear(kind, outputs, (train - mean) / spread, labels[rows], (other - mean) / spread, 1.0)


def pair_features(first: Any, second: Any) -> Array:
    """Return the features of a pair from those of its texts u and v: u, v, |u - v| and u · v by column, scaled to
    length 1."""
    u, v = (_unit(np.asarray(each, np.float32)) for each in (first, second))
    return np.concatenate([u, v, np.abs(u - v), u * v], axis=1)


def out_of_fold(fit_predict: FitPredict, folds: Any) -> Array:
    """Return logits of all rows, each from a model trained on the other folds; `folds` has one number per row."""
    numbers = np.asarray(folds)
    distinct = np.unique(numbers)
    if numbers.ndim != 1 or len(distinct) < 2:
        raise UsageError(f"{len(distinct)} folds in an array of shape {numbers.shape}: 2 or more a column are needed.")
    logits: Array | None = None
    for fold in distinct:
        held, others = np.flatnonzero(numbers == fold), np.flatnonzero(numbers != fold)
        part = np.asarray(fit_predict(others, held))
        if logits is None:
            logits = np.empty((len(numbers), *part.shape[1:]), dtype=part.dtype)
        logits[held] = part
    assert logits is not None
    return logits


# Features ------------------------------------------------------------------------------------------


class _Terms:
    """Maps texts to sparse rows; the vocabulary and its weights come from the training texts."""

    def __init__(self, texts: Sequence[str], pairs: Sequence[str] | None, most: int) -> None:
        from sklearn.feature_extraction.text import TfidfVectorizer

        self._words = TfidfVectorizer(
            token_pattern=_TERM,
            ngram_range=(1, 2 if pairs is None else 1),
            sublinear_tf=True,
            max_features=max(1, most),
            dtype=np.float64,
        )
        every = [*texts, *(pairs or ())]
        # scikit-learn refuses texts without a single word.
        self._words.fit(_cut(every) if any(map(str.strip, every)) else ["nothing"])

    def __call__(self, texts: Sequence[str], pairs: Sequence[str] | None) -> Any:
        from scipy import sparse

        u = self._words.transform(_cut(texts))
        if pairs is None:
            return u
        v = self._words.transform(_cut(pairs))
        shared = u.multiply(v).tocsr()
        alike = sparse.csr_matrix(shared.sum(axis=1))
        return sparse.hstack([u, v, abs(u - v), shared, alike], format="csr")


def _cut(texts: Sequence[str]) -> list[str]:
    return [text[:MAX_CHARACTERS] for text in texts]


def _unit(rows: Array) -> Array:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(norms > 0, norms, 1.0))


# Linear models -------------------------------------------------------------------------------------


def _linear(kind: str, outputs: int, train: Any, labels: Array, rows: Any, strength: float) -> Array:
    """Return logits [rows, outputs]; a higher `strength` means less regularization."""
    if kind == "regression":
        from sklearn.linear_model import Ridge

        return np.asarray(Ridge(alpha=1 / strength).fit(train, labels).predict(rows)).reshape(-1, 1)
    if kind == "multilabel":
        columns = [_log_odds(train, labels[:, column] > 0.5, rows, strength) for column in range(outputs)]
        return np.stack(columns, axis=1)
    return _log_probabilities(outputs, train, labels.astype(np.int64), rows, strength)


def _log_odds(train: Any, positive: Array, rows: Any, strength: float) -> Array:
    if positive.all() or not positive.any():
        return np.full(rows.shape[0], -UNSEEN if positive.all() else UNSEEN)
    return _decisions(train, positive.astype(np.int64), rows, strength)


def _log_probabilities(outputs: int, train: Any, labels: Array, rows: Any, strength: float) -> Array:
    seen = np.unique(labels)
    logits = np.full((rows.shape[0], outputs), UNSEEN)
    if len(seen) == 1:
        logits[:, seen] = 0.0
        return logits
    decisions = _decisions(train, labels, rows, strength)
    if len(seen) == 2:
        decisions = np.stack([np.zeros_like(decisions), decisions], axis=1)
    logits[:, seen] = decisions - np.logaddexp.reduce(decisions, axis=1, keepdims=True)
    return logits


def _decisions(train: Any, labels: Array, rows: Any, strength: float) -> Array:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    with warnings.catch_warnings():
        # A baseline close to its optimum is good enough.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = LogisticRegression(C=strength, tol=1e-3, max_iter=1000).fit(train, labels)
    return np.asarray(model.decision_function(rows))


def _checked(kind: str, labels: Any, rows: int) -> Array:
    if kind not in MAIN_METRIC:
        raise UsageError(f"There is no task {kind!r}.", nearest(kind, MAIN_METRIC))
    found = np.asarray(labels)
    if not rows or len(found) != rows:
        raise UsageError(f"A baseline was given {rows} training rows and {len(found)} labels.")
    return found
