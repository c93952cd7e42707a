from __future__ import annotations

from pathlib import Path

import pytest

from tests.run_folders import build_run, step_record
from whet.records import Evaluation, Resume, to_line
from whet.runs.folder import RunFolder
from whet.runs.live.follow import POINTS, Cursor, Tail


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return build_run(tmp_path / "run", finished=False)


def followed(folder: RunFolder) -> tuple[Tail, Cursor]:
    tail = Tail(folder.path)
    tail.poll()
    first = tail.since(Cursor())
    assert first is not None
    assert first[0] == "snapshot"
    return tail, first[2]


def test_only_what_is_new_is_told(folder: RunFolder) -> None:
    tail, cursor = followed(folder)
    assert tail.since(cursor) is None
    folder.append(step_record(161))
    folder.append(step_record(162))
    tail.poll()
    told = tail.since(cursor)
    assert told is not None
    name, content, cursor = told
    assert name == "records"
    assert content["series"]["train_loss"] == [[161, 162], [step_record(161).loss, step_record(162).loss]]
    assert content["progress"]["step"] == 162
    assert tail.since(cursor) is None


def test_a_half_written_line_waits_for_its_end(folder: RunFolder) -> None:
    tail, cursor = followed(folder)
    line = to_line(step_record(161)) + "\n"
    with open(folder.path / "records.jsonl", "a") as file:
        file.write(line[:20])
        file.flush()
        tail.poll()
        assert tail.since(cursor) is None
        file.write(line[20:])
    tail.poll()
    told = tail.since(cursor)
    assert told is not None
    assert told[1]["series"]["train_loss"][0] == [161]


def test_a_resume_takes_back_and_tells_all_again(folder: RunFolder) -> None:
    tail, cursor = followed(folder)
    folder.append(Resume(step=100, path="checkpoints/step-000100"))
    tail.poll()
    told = tail.since(cursor)
    assert told is not None
    assert told[0] == "snapshot"
    losses = told[1]["charts"][0]["lines"][0]
    assert losses["x"][-1] == 100


def test_a_new_series_tells_all_again(folder: RunFolder) -> None:
    tail, cursor = followed(folder)
    folder.append(Evaluation(step=161, epoch=1, split="validation", loss=0.3, metrics={"mine": 0.5}, rows=9))
    tail.poll()
    told = tail.since(cursor)
    assert told is not None
    assert told[0] == "snapshot"
    assert any(line["series"] == "mine" for chart in told[1]["charts"] for line in chart["lines"])


def test_an_evaluation_brings_verdict_confusion_and_worst_rows(folder: RunFolder) -> None:
    content = followed(folder)[0].snapshot()
    assert content["verdict"]["sentence"]
    assert content["evaluation"]["confusion"]
    assert content["evaluation"]["worst"][0]["row"]


def test_a_damaged_line_is_passed_over(folder: RunFolder) -> None:
    tail, cursor = followed(folder)
    with open(folder.path / "records.jsonl", "ab") as file:
        file.write(b"\xff\xfe not json\n")
    folder.append(step_record(161))
    tail.poll()
    told = tail.since(cursor)
    assert told is not None
    assert told[1]["damaged"] == 1
    assert told[1]["progress"]["step"] == 161


def test_a_file_that_began_anew_is_read_anew(folder: RunFolder) -> None:
    tail, cursor = followed(folder)
    (folder.path / "records.jsonl").write_text(to_line(step_record(1)) + "\n")
    tail.poll()
    told = tail.since(cursor)
    assert told is not None
    assert told[1]["charts"][0]["lines"][0]["x"] == [1]


def test_losses_that_are_not_finite_are_gaps(folder: RunFolder) -> None:
    tail, cursor = followed(folder)
    bad = step_record(161).__dict__ | {"loss": float("nan"), "grad_norm": float("inf")}
    folder.append(type(step_record(1))(**bad))
    tail.poll()
    told = tail.since(cursor)
    assert told is not None
    assert told[1]["series"]["train_loss"] == [[161], [None]]


def test_a_long_run_is_thinned_with_its_peak_and_refined_on_demand(folder: RunFolder) -> None:
    spike = step_record(7000).__dict__ | {"loss": 9.5}
    with open(folder.path / "records.jsonl", "a") as file:
        for step in range(161, 12_000):
            record = step_record(step, 12_000) if step != 7000 else type(step_record(1))(**spike)
            file.write(to_line(record) + "\n")
    tail, _ = followed(folder)
    content = tail.snapshot()
    loss = content["charts"][0]["lines"][0]
    assert content["thinned"]
    assert len(loss["x"]) <= POINTS
    assert max(loss["y"]) == 9.5
    part = tail.part(6000, 8000, 0.5)["series"]
    assert part["train_loss"][0] == list(range(6000, 8001))
    assert len(part["train_loss_smoothed"][0]) == 2001


def test_a_fold_moves_the_points_of_those_before(folder: RunFolder) -> None:
    """Each fold adds rows to the evaluations of all steps: a watcher is told all again, and sees each step once."""

    def pooled(loss: float, rows: int) -> Evaluation:
        metrics = {"accuracy": 0.5}
        return Evaluation(
            step=900, epoch=9.0, split="validation", loss=loss, metrics=metrics, rows=rows, out_of_fold=True
        )

    folder.append(pooled(0.7, 10))
    tail, cursor = followed(folder)
    folder.append(pooled(0.6, 20))
    tail.poll()
    told = tail.since(cursor)
    assert told is not None
    assert told[0] == "snapshot"
    assert [r.rows for r in tail.records if isinstance(r, Evaluation) and r.out_of_fold] == [20]
