"""Spark itself, on one machine: rows in, columns out, one model a worker, and a worker that is killed."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import whet
from tests.inference.serving.models import save_run
from whet.errors import DataError

pytest.importorskip("pyspark", reason="Spark is tested where the extra spark is installed")
if shutil.which("java") is None:
    pytest.skip("Spark is tested where there is a Java runtime", allow_module_level=True)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore")]
ROWS = 200
TEXTS = [f"yes {n}" if n % 9 else None for n in range(ROWS)]
EXACT: Any = {"device": "cpu", "precision": "float32"}


@pytest.fixture(scope="module")
def run(tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_run(tmp_path_factory.mktemp("spark"), tiny_model_folder)


@pytest.fixture(scope="module")
def frame() -> Iterator[Any]:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    # One worker; a task may fail three times.
    session = SparkSession.builder.master("local[1,4]").config("spark.ui.enabled", "false").getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    rows = [(number, text, None if number % 7 else number) for number, text in enumerate(TEXTS)]
    yield session.createDataFrame(rows, "id int, review string, maybe int").repartition(4, "id")
    session.stop()


def test_the_answers_are_those_of_predict_and_go_into_parquet(run: Path, frame: Any, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    label = whet.spark.predict_udf(run, **EXACT)
    frame.mapInPandas(label, label.schema(frame)).write.parquet(str(tmp_path / "out"))
    found = pq.read_table(tmp_path / "out").sort_by("id")
    assert found.column_names == ["id", "review", "maybe", "label", "probability", "p(bad)", "p(good)"]
    assert found["id"].to_pylist() == list(range(ROWS))
    assert found["review"].to_pylist() == TEXTS
    assert found["maybe"].to_pylist() == [None if number % 7 else number for number in range(ROWS)]
    assert [label is None for label in found["label"].to_pylist()] == [text is None for text in TEXTS]
    expected = whet.load(run, **EXACT).predict([text for text in TEXTS if text])
    assert [label for label in found["label"].to_pylist() if label] == [each.label for each in expected]
    assert [p for p in found["p(good)"].to_pylist() if p is not None] == pytest.approx(
        [each.probabilities["good"] for each in expected], abs=1e-6
    )


def test_a_worker_loads_the_model_once_for_all_its_partitions(run: Path, frame: Any) -> None:
    label = whet.spark.predict_udf(run, **EXACT)

    def counted(frames: Iterator[Any]) -> Iterator[Any]:
        from whet.adapters.spark import _loaded_once

        for answered in label(frames):
            yield answered[["id"]].assign(worker=os.getpid(), loads=_loaded_once.cache_info().misses)

    found = frame.mapInPandas(counted, "id int, worker long, loads long").collect()
    assert len(found) == ROWS
    assert {row.loads for row in found} == {1}
    assert len({row.worker for row in found}) == 1


def test_a_worker_that_was_killed_is_started_again_by_spark(run: Path, frame: Any, tmp_path: Path) -> None:
    died, label = tmp_path / "died", whet.spark.predict_udf(run, **EXACT)

    def killed_once(frames: Iterator[Any]) -> Iterator[Any]:
        for answered in label(frames):
            if not died.exists():
                died.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield answered

    found = frame.mapInPandas(killed_once, label.schema(frame)).orderBy("id").collect()
    assert died.exists()
    assert found == frame.mapInPandas(label, label.schema(frame)).orderBy("id").collect()
    assert [row.id for row in found] == list(range(ROWS))


def test_a_missing_column_is_told_before_spark_starts(run: Path, frame: Any) -> None:
    with pytest.raises(DataError, match="no column 'body': there are 'id', 'review', 'maybe'"):
        whet.spark.predict_udf(run, text="body", **EXACT).schema(frame)
