"""Ray Data itself, on one machine: rows in, columns out, one model a worker, and a worker that is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import whet
from tests.inference.serving.models import save_run

ray = pytest.importorskip("ray", reason="Ray is tested where the extra ray is installed")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore")]
ROWS = 200
TABLE = pa.table({"id": range(ROWS), "review": [f"yes {n}" if n % 9 else None for n in range(ROWS)]})


@pytest.fixture(scope="module")
def run(tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_run(tmp_path_factory.mktemp("ray"), tiny_model_folder)


@pytest.fixture(scope="module", autouse=True)
def _cluster() -> Iterator[None]:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield
    ray.shutdown()


def labelled(kind: Any, run: Path) -> Any:
    given: dict[str, Any] = {"fn_constructor_args": [str(run)]}
    given["fn_constructor_kwargs"] = {"device": "cpu", "precision": "float32"}
    workers = ray.data.ActorPoolStrategy(size=1)
    rows = ray.data.from_arrow(TABLE).repartition(5)
    found = rows.map_batches(kind, batch_format="pyarrow", batch_size=20, compute=workers, **given)
    return pa.concat_tables(ray.get(found.to_arrow_refs())).sort_by("id")


def test_each_worker_loads_the_model_once_and_answers_as_predict_does(run: Path, tmp_path: Path) -> None:
    loads = tmp_path / "loads"

    class Counted(whet.ray.Predictor):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            with open(loads, "a") as file:
                file.write(f"{os.getpid()}\n")

    found = labelled(Counted, run)
    assert len(loads.read_text().split()) == 1
    assert found["id"].to_pylist() == list(range(ROWS))
    assert found["review"].to_pylist() == TABLE["review"].to_pylist()
    texts = [text for text in TABLE["review"].to_pylist() if text]
    expected = whet.load(run, device="cpu", precision="float32").predict(texts)
    assert [label for label in found["label"].to_pylist() if label] == [each.label for each in expected]
    assert [p for p in found["p(good)"].to_pylist() if p is not None] == pytest.approx(
        [each.probabilities["good"] for each in expected], abs=1e-6
    )


def test_a_worker_that_was_killed_is_started_again_by_ray(run: Path, tmp_path: Path) -> None:
    died = tmp_path / "died"

    class KilledOnce(whet.ray.Predictor):
        batches = 0

        def __call__(self, batch: Any) -> Any:
            self.batches += 1
            if self.batches == 2 and not died.exists():
                died.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return super().__call__(batch)

    found = labelled(KilledOnce, run)
    assert died.exists()
    assert found.equals(labelled(whet.ray.Predictor, run))
    assert found["id"].to_pylist() == list(range(ROWS))
