"""A loaded model says what it is, and names what it cannot label."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import whet
from whet.errors import UsageError
from whet.predict import Predictor


@pytest.fixture(scope="module")
def predictor(tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    from whet.config import ModelConfig
    from whet.data.columns import Task
    from whet.engine.model import load_model, load_tokenizer, save_model

    folder = tmp_path_factory.mktemp("classifier")
    loaded = load_model(str(tiny_model_folder), Task("binary", ("bad", "good")), ModelConfig(), seed=0)
    save_model(loaded.model, load_tokenizer(str(tiny_model_folder), ModelConfig()), folder)
    return whet.load(folder, device="cpu")


def test_its_repr_says_folder_model_labels_and_device(predictor: Predictor) -> None:
    assert repr(predictor) == f"Predictor({str(predictor.path)!r}: bert, labels 'bad', 'good', on cpu)"


@pytest.mark.parametrize(
    ("texts", "pairs", "match"),
    [
        (None, None, "given None as texts. Give a text, or a list of texts"),
        (5, None, "given 5 as texts"),
        ({"text": ["a"]}, None, "given {'text': .* as texts"),
        (["a", "b"], "cd", "given 'cd' as pairs"),
        ([("a", "b"), ("c",)], None, r"Row 1 is \('c',\), not a \(text, pair\)"),
        (["a", None], None, "Text 1 is None, which is not a text"),
    ],
)
def test_what_is_not_a_text_is_named(predictor: Predictor, texts: Any, pairs: Any, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        predictor.predict(texts, pairs)


def test_any_column_of_texts_is_taken(predictor: Predictor) -> None:
    import numpy as np

    assert predictor.predict(np.array(["yes", "no"])) == predictor.predict(iter(["yes", "no"]))  # type: ignore[arg-type]
