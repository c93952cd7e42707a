"""Run folders made to do harm: one line or a whole page, nothing read without end, nothing overwritten."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.run_folders import build_run
from whet.cli import main
from whet.errors import ArtifactError, DataError
from whet.records import from_line
from whet.runs.folder import RunFolder
from whet.runs.live.follow import Tail
from whet.runs.predictions import labelled_rows


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return build_run(tmp_path / "run", rows=40).path


def change_records(run: Path, kind: str, **changes: Any) -> None:
    lines = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
    lines = [{**line, **changes} if line["kind"] == kind else line for line in lines]
    (run / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def deep_record(run: Path) -> None:
    with open(run / "records.jsonl", "a") as file:
        file.write('{"kind":"finding","step":1,"about":' + "[" * 100_000 + "\n")


SPOILT: dict[str, Callable[[Path], object]] = {
    "a record 10^5 deep": deep_record,
    "data.json 10^5 deep": lambda run: (run / "data.json").write_text('{"a":' * 100_000),
    "config.toml 10^5 deep": lambda run: (run / "config.toml").write_text("source = " + "[" * 30_000),
    "a long dotted name": lambda run: (run / "config.toml").write_text(f"[{'.'.join(['a'] * 100_000)}]"),
    "records of 10^12 bytes": lambda run: os.truncate(run / "records.jsonl", 1 << 40),
    "data.json of 10^12 bytes": lambda run: os.truncate(run / "data.json", 1 << 40),
    "words for numbers": lambda run: change_records(run, "start", total_steps="many", labels=7, rows=[]),
    "metrics of words": lambda run: change_records(run, "evaluation", metrics={"accuracy": "high"}),
    "no step": lambda run: change_records(run, "step", step=None),
    "a step of 400 digits": lambda run: change_records(run, "step", step=10**400),
    "200,000 labels": lambda run: change_records(run, "start", labels=["a"] * 20_000, task="multiclass"),
    "predictions that are none": lambda run: (run / "predictions.parquet").write_bytes(b"PAR1" + b"\0" * 99 + b"PAR1"),
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_hostile_run_ends_in_a_line_or_a_result(name: str, run: Path, tmp_path: Path, capsys: Any) -> None:
    other = build_run(tmp_path / "other", rows=40).path
    SPOILT[name](run)
    for command in (["runs", tmp_path], ["verdict", run], ["report", run], ["compare", run, other]):
        assert main([str(each) for each in command]) in (0, 2, 3)
    tail = Tail(run)
    tail.poll()
    tail.snapshot()
    assert "Traceback" not in capsys.readouterr().err


def test_a_report_is_not_written_through_links(run: Path, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "folder").mkdir()
    for name in (".report.html.tmp", "report.html"):
        (run / name).symlink_to(tmp_path / "mine")
    assert main(["report", str(run), "-o", str(run / "report.html")]) == 0
    (run / "report_files").symlink_to(tmp_path / "folder")
    assert main(["report", str(run)]) == 4
    assert "is a link" in capsys.readouterr().err
    assert (tmp_path / "mine").read_text() == "mine"
    assert list((tmp_path / "folder").iterdir()) == []


@pytest.mark.parametrize("kind", ["pipe", "link to a device"])
def test_a_model_of_pipes_and_devices_is_not_read(run: Path, kind: str) -> None:
    place = run / "model" / "extra"
    os.mkfifo(place) if kind == "pipe" else place.symlink_to("/dev/zero")
    (run / "model.sums.json").write_text('{"config.json": "0"}')
    with pytest.raises(ArtifactError, match="is not a file"):
        RunFolder.open(run).refuse_changed_model()


def test_predictions_that_claim_more_rows_than_they_have_room_for(run: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    one = pq.read_table(run / "predictions.parquet").slice(0, 1)
    many = one.take(pa.array([0] * 1_000_000))
    pq.write_table(many, run / "predictions.parquet", compression="zstd")
    with pytest.raises(ArtifactError, match="no room"):
        labelled_rows(RunFolder.open(run), "validation")


def test_texts_that_repeat_are_measured_before_they_are_written_out(run: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("whet.runs.predictions.MAX_BYTES", 1000)
    with pytest.raises(ArtifactError, match="GB of validation rows"):
        labelled_rows(RunFolder.open(run), "validation")


@pytest.mark.parametrize("line", ["[]", "7", '{"kind": 7}', '{"kind": "step"}', '{"kind": "step", "step": true}'])
def test_a_line_that_is_no_record(line: str) -> None:
    with pytest.raises(ValueError, match=r"record|type|missing"):
        from_line(line)


def test_packed_files_that_unpack_without_end(tmp_path: Path, monkeypatch: Any) -> None:
    import gzip

    from whet.config import DataConfig
    from whet.data.readers.source import read_file

    monkeypatch.setattr("whet.data.readers.text_files.HARMLESS_BYTES", 1_000_000)
    with gzip.open(tmp_path / "rows.csv.gz", "wb") as file:
        file.write(b"text,label\n" + b"the same row,a\n" * 200_000)
    (tmp_path / "scratch").mkdir()
    with pytest.raises(DataError, match="times its size"):
        read_file(tmp_path / "rows.csv.gz", DataConfig(), tmp_path / "scratch")


def test_a_workbook_that_unpacks_without_end(tmp_path: Path) -> None:
    pytest.importorskip("openpyxl")
    import zipfile

    from whet.config import DataConfig
    from whet.data.readers.excel_files import read_excel

    with zipfile.ZipFile(tmp_path / "rows.xlsx", "w", zipfile.ZIP_DEFLATED) as book:
        for part in range(3):
            book.writestr(f"xl/{part}.xml", bytes(100_000_000))
    with pytest.raises(DataError, match="unpacks to"):
        read_excel(tmp_path / "rows.xlsx", DataConfig(), tmp_path)
