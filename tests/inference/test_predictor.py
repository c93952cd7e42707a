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


def tables() -> list[Any]:
    import datasets
    import pandas as pd
    import polars
    import pyarrow

    columns: dict[str, list[Any]] = {"day": [1, 2], "text": ["yes apple", "no brick"], "label": ["good", "bad"]}
    frame = pd.DataFrame(columns, index=[7, 9])
    rows = [{name: columns[name][row] for name in columns} for row in range(2)]
    arrow = pyarrow.table(columns)
    return [frame, datasets.Dataset.from_dict(columns), arrow, polars.DataFrame(columns), columns, rows]


@pytest.mark.parametrize("table", tables(), ids=lambda table: type(table).__module__)
def test_a_table_comes_back_as_one_of_its_kind(predictor: Predictor, table: Any) -> None:
    import pandas as pd

    answers, found = predictor.predict(table), predictor.predict_table(table)
    assert type(found) is type(table)
    method = next((name for name in ("to_pydict", "to_dict") if hasattr(found, name)), None)
    frame = pd.DataFrame(getattr(found, method)() if method else found)
    assert list(frame.columns) == ["day", "text", "label", "predicted", "probability", "p(bad)", "p(good)"]
    assert list(frame["predicted"]) == [each.label for each in answers]
    assert list(frame["label"]) == ["good", "bad"]


def test_a_table_keeps_its_index_and_is_not_changed(predictor: Predictor) -> None:
    frame = tables()[0]
    assert list(predictor.predict_table(frame).index) == [7, 9]
    assert list(frame.columns) == ["day", "text", "label"]


def test_what_is_no_table_has_no_table_of_answers(predictor: Predictor) -> None:
    with pytest.raises(UsageError, match="predict_table was given str"):
        predictor.predict_table("a text")


def test_a_predictor_is_pickled_as_its_path_and_answers_the_same(predictor: Predictor) -> None:
    import pickle

    pickled = pickle.dumps(predictor)
    assert len(pickled) < 1000
    assert pickle.loads(pickled).predict("yes apple") == predictor.predict("yes apple")
    assert pickle.loads(pickled).hardware == predictor.hardware


def test_a_predictor_goes_into_a_spawned_process(predictor: Predictor) -> None:
    import multiprocessing

    with multiprocessing.get_context("spawn").Pool(1) as pool:
        (found,) = pool.map(predictor.predict, [["yes apple"]])
    assert found == predictor.predict(["yes apple"])


def test_a_prediction_prints_its_label_and_probability() -> None:
    assert str(Prediction("good", 0.9731, {"bad": 0.0269, "good": 0.9731})) == "good 0.973"
    assert str(Prediction(["a", "c"], 0.9, {"a": 0.9, "b": 0.1, "c": 0.75})) == "a 0.900, c 0.750"
    assert str(Prediction([], None, {"a": 0.1})) == "(none)"
    assert str(Prediction(3.14159, None, {})) == "3.142"


def test_one_text_starts_no_thread(predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = predictor.predict("yes apple")
    monkeypatch.setattr("threading.Thread.start", None)
    assert predictor.predict("yes apple") == expected


def test_several_threads_get_their_own_answers(predictor: Predictor) -> None:
    from concurrent.futures import ThreadPoolExecutor

    texts = [f"{'apple ' * (n % 9)}number {n}" for n in range(80)]
    alone = [predictor.predict(text) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(predictor.predict, texts))
    assert [each.probabilities for each in together] == [each.probabilities for each in alone]


def test_only_one_thread_computes_at_a_time(predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading
    import time
    from concurrent.futures import ThreadPoolExecutor

    inside, most, network = 0, 0, predictor.network
    forward, counting = network.logits, threading.Lock()

    def counted(batch: Any) -> Any:
        nonlocal inside, most
        with counting:
            inside, most = inside + 1, max(most, inside + 1)
        time.sleep(0.01)
        with counting:
            inside -= 1
        return forward(batch)

    monkeypatch.setattr(network, "logits", counted)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(predictor.predict, ["yes"] * 8))
    assert most == 1
