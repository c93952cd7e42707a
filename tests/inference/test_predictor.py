"""A loaded model says what it is, and names what it cannot label."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import whet
from whet.errors import UsageError
from whet.inference.predictor import Prediction, Predictor


@pytest.fixture(scope="module")
def predictor(tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    from whet.config import ModelConfig
    from whet.models.pretrained import load_model, load_tokenizer, save_model
    from whet.task import Task

    folder = tmp_path_factory.mktemp("classifier")
    loaded = load_model(str(tiny_model_folder), Task("binary", ("bad", "good")), ModelConfig(), seed=0)
    save_model(loaded.model, load_tokenizer(str(tiny_model_folder), ModelConfig()), folder)
    return whet.load(folder, device="cpu")


def test_its_repr_says_folder_model_labels_and_device(predictor: Predictor) -> None:
    assert repr(predictor) == f"Predictor({str(predictor.path)!r}: bert, labels 'bad', 'good', on cpu)"


@pytest.mark.parametrize(
    ("texts", "pairs", "match"),
    [
        (None, None, "given None as texts. Give a text, a list of texts, or a table with them"),
        (5, None, "given 5 as texts"),
        ({"text": "a"}, None, "given {'text': .* as texts"),
        ({"text": ["a"]}, ["b"], "given a table and pairs"),
        ({"train": {"text": ["a"]}, "test": {"text": ["b"]}}, None, "given the splits train, test. Give one of them"),
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

    assert predictor.predict(np.array(["yes", "no"])) == predictor.predict(iter(["yes", "no"]))


def test_one_text_has_one_prediction_and_a_list_a_list(predictor: Predictor) -> None:
    one = predictor.predict("yes")
    assert isinstance(one, Prediction)
    assert [one.label] == [each.label for each in predictor.predict(["yes"])]
    assert predictor.predict([]) == []


def test_a_prediction_is_ready_for_json(predictor: Predictor) -> None:
    one = predictor.predict("yes")
    assert json.loads(json.dumps(one.to_dict())) == {
        "label": one.label, "probability": one.probability, "probabilities": one.probabilities
    }  # fmt: skip


def test_a_data_frame_has_as_many_predictions_as_rows(predictor: Predictor) -> None:
    import pandas as pd

    texts = [f"yes apple {number}" for number in range(30)]
    frame = pd.DataFrame({"day": range(30), "text": texts, "label": ["good", "bad"] * 15})
    assert predictor.predict(frame) == predictor.predict(texts)
