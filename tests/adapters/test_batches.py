"""Batches of rows come back as the kind of table that they were, with typed answers; no engine is needed for that."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import whet
from tests.inference.serving.models import save_run
from whet.adapters.spark import _loaded_once
from whet.errors import ArtifactError, DataError, UsageError
from whet.runs.decisions import FILE, Decisions

TEXTS = ["yes apple", None, "  ", "no brick cloud drum"]
COLUMNS = {"id": [1, 2, 3, 4], "review": TEXTS, "label": ["mine"] * 4}
EXACT: Any = {"device": "cpu", "precision": "float32"}


@pytest.fixture(scope="module")
def run(tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_run(tmp_path_factory.mktemp("batches"), tiny_model_folder)


@pytest.fixture(scope="module")
def label(run: Path) -> whet.ray.Predictor:
    return whet.ray.Predictor(run, **EXACT)


def arrays() -> dict[str, Any]:
    return {name: np.array(values, dtype=None if name == "id" else object) for name, values in COLUMNS.items()}


KINDS = {
    "arrow": lambda: pa.table(COLUMNS),
    "pandas": lambda: pd.DataFrame(COLUMNS),
    "categories": lambda: pd.DataFrame(COLUMNS).astype({"review": "category"}),
    "arrays": arrays,
}


@pytest.mark.parametrize("kind", KINDS)
def test_rows_stay_and_answers_come_behind_their_columns(label: Any, run: Path, kind: str) -> None:
    batch = KINDS[kind]()
    found = label(batch)
    assert type(found) is type(batch)
    rows = (
        pa.table(found)
        if isinstance(found, dict)
        else pa.Table.from_pandas(pd.DataFrame(found))
        if kind != "arrow"
        else found
    )
    assert rows.column_names[:4] == ["id", "review", "label", "predicted"]
    assert rows["id"].to_pylist() == [1, 2, 3, 4]
    assert rows["label"].to_pylist() == ["mine"] * 4
    expected = whet.load(run, **EXACT).predict([TEXTS[0], TEXTS[3]])
    answers = rows["predicted"].to_pylist()
    assert [answers[0], answers[3]] == [each.label for each in expected]
    assert [pd.isna(each) for each in answers] == [False, True, True, False]
    chances = rows["p(good)"].to_pylist()
    assert [chances[0], chances[3]] == pytest.approx([each.probabilities["good"] for each in expected], abs=1e-6)


@pytest.mark.parametrize("texts", [[], [None, None], ["  "]])
@pytest.mark.parametrize(
    "of", [lambda texts: pa.table({"review": texts}), lambda texts: pd.DataFrame({"review": texts})]
)
def test_batches_without_any_text_have_the_same_columns(label: Any, texts: list[Any], of: Any) -> None:
    found = label(of(texts))
    assert len(found) == len(texts)
    assert list(getattr(found, "column_names", found.columns)) == ["review", *label.names(["review"]).values()]
    if isinstance(found, pa.Table):
        assert found.schema.field("p(good)").type == pa.float64()


def test_columns_are_named_where_they_are_others(run: Path, label: Any) -> None:
    renamed = pa.table(COLUMNS).rename_columns(["id", "Body", "label"])
    assert whet.ray.Predictor(run, text="body", **EXACT)(renamed)["p(bad)"] == label(pa.table(COLUMNS))["p(bad)"]
    with pytest.raises(DataError, match=r"no column 'review': there are 'id', 'Body', 'label'\. Name it: text="):
        label(renamed)
    with pytest.raises(DataError, match="'review' holds values of the type int64, not texts"):
        label({"review": np.array([1, 2])})
    with pytest.raises(UsageError, match="trained on single texts, and was given a second text"):
        whet.ray.Predictor(run, pair="other", **EXACT)
    with pytest.raises(UsageError, match="does not name the column"):
        whet.ray.Predictor(run / "model", **EXACT)


def test_pairs_need_both_texts(tiny_model_folder: Path, tmp_path: Path) -> None:
    run = save_run(tmp_path, tiny_model_folder, pair="other")
    found = whet.ray.Predictor(run, **EXACT)(pa.table({"review": ["yes", "no"], "other": ["apple", None]}))
    expected = whet.load(run, **EXACT).predict("yes", "apple")
    assert found["label"].to_pylist() == [expected.label, None]
    assert found["p(good)"][0].as_py() == pytest.approx(expected.probabilities["good"], abs=1e-6)


def test_what_travels_to_spark_is_small_and_loads_once(run: Path, tmp_path: Path) -> None:
    function = whet.spark.predict_udf(run, **EXACT)
    sent = pickle.dumps(function)
    assert len(sent) < 2_000
    _loaded_once.cache_clear()
    frames = [pd.DataFrame({"review": ["yes apple"]})] * 2
    for partition in range(3):
        assert [len(each) for each in pickle.loads(sent)(iter(frames))] == [1, 1], partition
    assert _loaded_once.cache_info().misses == 1


def test_another_model_on_a_worker_is_refused(run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    function = whet.spark.predict_udf(copy, **EXACT)
    (copy / "model" / FILE).write_text(Decisions(temperature=2.0).to_json())
    with pytest.raises(ArtifactError, match="another one on this worker"):
        next(function(iter([pd.DataFrame({"review": ["yes"]})])))


def test_the_modules_come_without_the_engines() -> None:
    assert whet.ray.Predictor.__module__ == "whet.adapters.ray"
    assert {"ray", "spark"} <= set(dir(whet))
