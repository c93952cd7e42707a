"""Large files are labelled in parts, and a command that was killed goes on where it was."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import whet
from tests.inference.serving.models import save_run
from whet.cli import main
from whet.config import DataConfig
from whet.errors import UsageError
from whet.inference.bulk import label_in_parts
from whet.runs.decisions import FILE, Decisions

ROWS = 250
TEXTS = [f"{('no', 'yes')[n % 2]} {'apple ' * (n % 9)}{n}" for n in range(ROWS)]


@pytest.fixture(scope="module")
def run(tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_run(tmp_path_factory.mktemp("bulk"), tiny_model_folder)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    texts = [*TEXTS[:7], None, "  ", *TEXTS[9:]]
    table = pa.table({"id": range(ROWS), "review": texts, "label": ["mine"] * ROWS})
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=40)
    return tmp_path / "rows.parquet"


def command(run: Path, source: Path, output: Path, *more: str) -> list[str]:
    return ["predict", str(run), str(source), "-o", f"{output}/", "--part-rows", "64", "--device", "cpu", *more]


def test_parts_hold_the_rows_in_order_with_the_answers_of_predict(run: Path, source: Path, tmp_path: Path) -> None:
    assert main(command(run, source, tmp_path / "out")) == 0
    parts = sorted((tmp_path / "out").glob("part-*.parquet"))
    assert [pq.read_metadata(part).num_rows for part in parts] == [64, 64, 64, 58]
    found = pa.concat_tables([pq.read_table(part) for part in parts]).to_pydict()
    assert found["id"] == list(range(ROWS))
    assert found["label"] == ["mine"] * ROWS
    assert [n for n, label in enumerate(found["predicted"]) if label is None] == [7, 8]
    expected = whet.load(run, device="cpu").predict([text for n, text in enumerate(TEXTS) if n not in (7, 8)])
    assert [label for label in found["predicted"] if label is not None] == [each.label for each in expected]
    assert [p for p in found["p(good)"] if p is not None] == pytest.approx(
        [each.probabilities["good"] for each in expected], abs=1e-3
    )
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["complete"] is True


def test_parts_that_are_there_are_not_computed_again(run: Path, source: Path, tmp_path: Path) -> None:
    model = whet.load(run, device="cpu")
    config = DataConfig(text="review")
    done = label_in_parts(model, str(source), config, tmp_path / "out", part_rows=100)
    assert (done.rows, done.parts, done.found, done.unlabelled) == (ROWS, 3, 0, 2)
    second = tmp_path / "out" / "part-00001.parquet"
    whole = second.read_bytes()
    first = (tmp_path / "out" / "part-00000.parquet").stat().st_mtime_ns
    second.unlink()
    done = label_in_parts(model, str(source), config, tmp_path / "out", part_rows=100)
    assert (done.found, done.unlabelled) == (2, 0)
    assert second.read_bytes() == whole
    assert (tmp_path / "out" / "part-00000.parquet").stat().st_mtime_ns == first


def test_another_plan_for_a_folder_is_refused(run: Path, source: Path, tmp_path: Path) -> None:
    model, config = whet.load(run, device="cpu"), DataConfig(text="review")
    label_in_parts(model, str(source), config, tmp_path / "out", part_rows=100)
    with pytest.raises(UsageError, match=r"part_rows, parts differ"):
        label_in_parts(model, str(source), config, tmp_path / "out", part_rows=50)
    pq.write_table(pq.read_table(source).slice(1), source)
    with pytest.raises(UsageError, match="inputs, rows differ"):
        label_in_parts(model, str(source), config, tmp_path / "out", part_rows=100)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").touch()
    with pytest.raises(UsageError, match="holds something else"):
        label_in_parts(model, str(source), config, tmp_path / "other")


def test_other_decisions_are_another_plan(run: Path, source: Path, tmp_path: Path) -> None:
    config = DataConfig(text="review")
    label_in_parts(whet.load(run, device="cpu"), str(source), config, tmp_path / "out")
    try:
        (run / "model" / FILE).write_text(Decisions(confidence=0.9, limit=0.5).to_json())
        with pytest.raises(UsageError, match="model, names differ"):
            label_in_parts(whet.load(run, device="cpu"), str(source), config, tmp_path / "out")
        label_in_parts(whet.load(run, device="cpu"), str(source), config, tmp_path / "decided")
    finally:
        (run / "model" / FILE).unlink()
    (part,) = (tmp_path / "decided").glob("part-*")
    schema = pq.read_schema(part)
    assert schema.field("abstain").type == pa.bool_()
    assert schema.field("candidates").type == pa.list_(pa.string())


def test_rows_a_part_need_a_folder(run: Path, source: Path, tmp_path: Path) -> None:
    flags = ["predict", str(run), str(source), "-o", str(tmp_path / "out.csv"), "--part-rows", "5"]
    assert main(flags) == 2
    assert main([*command(run, source, tmp_path / "out"), "--drop-empty"]) == 2


def test_a_command_that_was_killed_goes_on(warm: Any, run: Path, source: Path, tmp_path: Path) -> None:
    """Killed after its first part; the parts at the end are those of a command that nobody killed."""
    table = pa.concat_tables([pq.read_table(source)] * 20)
    pq.write_table(table, source)
    assert main(command(run, source, tmp_path / "whole")) == 0
    running = warm.start(command(run, source, tmp_path / "out"), tmp_path)
    deadline = time.monotonic() + 120
    while not list((tmp_path / "out").glob("part-*")):
        assert time.monotonic() < deadline
        time.sleep(0.002)
    running.signal(signal.SIGKILL)
    running.wait(60)
    before = len(list((tmp_path / "out").glob("part-*")))
    assert warm.start(command(run, source, tmp_path / "out"), tmp_path).wait(240) == 0
    names = sorted(part.name for part in (tmp_path / "whole").glob("part-*"))
    assert 0 < before <= len(names) == 79
    for name in names:
        one, other = (pq.read_table(tmp_path / folder / name) for folder in ("whole", "out"))
        assert one["id"].to_pylist() == other["id"].to_pylist()
        assert one["predicted"].to_pylist() == other["predicted"].to_pylist()
