"""Every way to use a model gives the same probabilities: files, HTTP, ONNX, Ray, Spark, and transformers alone."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import whet
from whet.cli import main
from whet.tools.selftest.tiny_run import WORDS, write_rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore")]
ROWS, TOLERANCE = 1_000, 1e-4
EXACT: Any = {"device": "cpu", "precision": "float32"}
FLAGS = ["--device", "cpu", "--precision", "float32"]
TEXTS = [
    f"{('no', 'yes')[n % 2]} {' '.join(WORDS[(n + k) % 10] for k in range(n % 40))} {n} Ünïcode 犬 {'!' * (n % 3)}"
    for n in range(ROWS)
]
Chances = list[dict[str, float]]


@pytest.fixture(scope="module")
def run(tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("agreement")
    write_rows(place / "clean.csv", 900)
    head, *rows = (place / "clean.csv").read_text().splitlines()
    swapped = [row if n % 7 else _other_label(row) for n, row in enumerate(rows)]
    (place / "rows.csv").write_text("\n".join([head, *swapped]) + "\n")
    settings = {"epochs": 2, "learning_rate": 3e-3, "model": str(tiny_model_folder), **EXACT}
    found = whet.fit(str(place / "rows.csv"), run=str(place / "run"), **settings).path
    assert whet.load(found).decisions.temperature != 1  # else raw and calibrated could not be told apart
    return found


def _other_label(row: str) -> str:
    """A wrong one: calibration needs mistakes."""
    text, label = row.rsplit(",", 1)
    return f"{text},{'bad' if label == 'good' else 'good'}"


@pytest.fixture(scope="module")
def expected(run: Path) -> dict[bool, Chances]:
    """Raw and calibrated, from one text at a time: without batches, padding or packing."""
    model = whet.load(run, **EXACT)
    logits = np.concatenate([model.logits([text]) for text in TEXTS])
    return {raw: [each.probabilities for each in model.decode(logits, raw=raw)] for raw in (False, True)}


def named(rows: list[dict[str, Any]]) -> Chances:
    return [{name: row[f"p({name})"] for name in ("bad", "good")} for row in rows]


def by_predict(run: Path, place: Path, raw: bool) -> Chances:
    source = place / "rows.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS), encoding="utf-8")
    command = ["predict", str(run), str(source), "-o", str(place / "out.jsonl"), *FLAGS]
    assert main([*command, *(["--raw"] if raw else [])]) == 0
    return named([json.loads(line) for line in (place / "out.jsonl").read_text(encoding="utf-8").splitlines()])


def by_parts(run: Path, place: Path, raw: bool) -> Chances:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"text": TEXTS}), place / "rows.parquet")
    command = ["predict", str(run), str(place / "rows.parquet"), "-o", f"{place}/out/", "--part-rows", "300", *FLAGS]
    assert main([*command, *(["--raw"] if raw else [])]) == 0
    parts = [pq.read_table(part) for part in sorted((place / "out").glob("part-*.parquet"))]
    return named(pa.concat_tables(parts).to_pylist())


def by_serve(run: Path, place: Path, raw: bool) -> Chances:
    import httpx

    from whet.inference.serving.server import Settings, serve

    server = serve(run, Settings(port=0, **EXACT))
    try:
        answer = httpx.post(f"{server.url}predict", json={"inputs": TEXTS, "raw": raw}, timeout=120)
        return [each["probabilities"] for each in answer.json()["predictions"]]
    finally:
        server.stop()


def by_export(run: Path, place: Path, raw: bool) -> Chances:
    pytest.importorskip("onnxscript", reason="exports are tested where the packages of the extra onnx are installed")
    assert main(["export", str(run), "--to", "onnx", "-o", str(place / "onnx")]) == 0
    spec = importlib.util.spec_from_file_location("exported_predict", place / "onnx" / "predict.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.Model(place / "onnx")
    if raw:
        logits = np.array([row["logits"] for row in model.outputs(TEXTS)])
        return [each.probabilities for each in whet.load(run, **EXACT).decode(logits, raw=True)]
    return [each["probabilities"] for each in model.predict(TEXTS)]


def by_ray(run: Path, place: Path, raw: bool) -> Chances:
    ray = pytest.importorskip("ray", reason="Ray is tested where the extra ray is installed")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        ray.data.DataContext.get_current().enable_progress_bars = False
        rows = ray.data.from_items([{"n": n, "text": text} for n, text in enumerate(TEXTS)])
        given = {"fn_constructor_args": [str(run)], "fn_constructor_kwargs": {"raw": raw, **EXACT}}
        workers = ray.data.ActorPoolStrategy(size=1)
        found = rows.map_batches(whet.ray.Predictor, batch_size=128, compute=workers, **given).take_all()
    finally:
        ray.shutdown()
    return named(sorted(found, key=lambda row: int(row["n"])))


def by_spark(run: Path, place: Path, raw: bool) -> Chances:
    pytest.importorskip("pyspark", reason="Spark is tested where the extra spark is installed")
    if shutil.which("java") is None:
        pytest.skip("Spark is tested where there is a Java runtime")
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    try:
        session.sparkContext.setLogLevel("OFF")
        frame = session.createDataFrame(list(enumerate(TEXTS)), "n int, text string").repartition(3)
        label = whet.spark.predict_udf(run, raw=raw, **EXACT)
        found = frame.mapInPandas(label, label.schema(frame)).orderBy("n").collect()
    finally:
        session.stop()
    return named([row.asDict() for row in found])


def by_pipeline(run: Path, place: Path, raw: bool) -> Chances:
    """In a process that cannot import whet. Its probabilities are raw ones."""
    (place / "texts.json").write_text(json.dumps(TEXTS))
    code = (
        "import json, sys; sys.modules['whet'] = None\n"
        "from transformers import pipeline\n"
        "model = pipeline('text-classification', model=sys.argv[1], device='cpu', top_k=None)\n"
        "found = model(json.load(open('texts.json')), batch_size=16, truncation=True)\n"
        "print(json.dumps([{one['label']: one['score'] for one in row} for row in found]))"
    )
    command = [sys.executable, "-c", code, str(run / "model")]
    ended = subprocess.run(command, cwd=place, capture_output=True, text=True, check=True)
    found: Chances = json.loads(ended.stdout.splitlines()[-1])
    return found


Way = Callable[[Path, Path, bool], Chances]
WAYS: list[Way] = [by_predict, by_parts, by_serve, by_export, by_ray, by_spark]


@pytest.mark.parametrize(("way", "raw"), [*((way, raw) for way in WAYS for raw in (False, True)), (by_pipeline, True)])
def test_a_thousand_rows_get_the_same_probabilities(
    way: Way, raw: bool, run: Path, expected: dict[bool, Chances], tmp_path: Path
) -> None:
    found = way(run, tmp_path, raw)
    assert len(found) == ROWS
    one, other = (np.array([[row["bad"], row["good"]] for row in rows]) for rows in (expected[raw], found))
    np.testing.assert_allclose(other, one, atol=TOLERANCE, rtol=0)
