"""The run folder: one writer, whole lines, nothing outside, nothing foreign touched."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from whet.config import make_config
from whet.errors import ArtifactError, EnvironmentFault
from whet.records import End, Resume, Start, Step
from whet.runs.folder import RunFolder, next_run_path, run_name


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", make_config({"source": "rows.csv"}))


def step(number: int) -> Step:
    return Step(step=number, epoch=0.1, loss=0.5, learning_rate=1e-3)


def test_records_come_back_in_order(folder: RunFolder) -> None:
    for number in (1, 2, 3):
        folder.append(step(number))
    assert [record.step for record in folder.records()] == [1, 2, 3]


def test_half_a_line_is_passed_over_and_cut_off_before_the_next(folder: RunFolder) -> None:
    folder.append(step(1))
    with open(folder.path / "records.jsonl", "a") as file:
        file.write('{"v": 1, "kind": "st')
    assert [record.step for record in folder.records()] == [1]
    folder.drop_torn_line()
    folder.append(step(2))
    assert [record.step for record in folder.records()] == [1, 2]


def test_a_full_disk_leaves_no_half_line(folder: RunFolder) -> None:
    folder.append(step(1))
    size = (folder.path / "records.jsonl").stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, before[1]))
    try:
        with pytest.raises(EnvironmentFault, match="Cannot write"):
            folder.append(step(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (folder.path / "records.jsonl").stat().st_size == size
    folder.append(step(3))
    assert [record.step for record in folder.records()] == [1, 3]


def test_a_damaged_line_is_named(folder: RunFolder) -> None:
    folder.append(step(1))
    with open(folder.path / "records.jsonl", "a") as file:
        file.write("garbage\n")
    with pytest.raises(ArtifactError, match="damaged at line 2"):
        folder.records()


@pytest.mark.parametrize(
    "reason, finished", [("finished", True), ("patience", True), ("diverged", False), ("interrupted", False)]
)
def test_a_run_is_finished_only_when_its_plan_is(reason: str, finished: bool, folder: RunFolder) -> None:
    folder.append(End(step=9, reason=reason, best_step=3))
    assert folder.finished is finished


def test_a_later_start_takes_the_place_of_an_earlier_one(folder: RunFolder) -> None:
    about = {"steps_per_epoch": 2, "task": "binary", "labels": [], "rows": {}, "prior": {}, "metric": "f1"}
    for total in (10, 20):
        folder.append(Start(step=0, total_steps=total, higher_is_better=True, majority={}, **about))  # type: ignore[arg-type]
        folder.append(Resume(step=0, path=""))
    (start,) = [record for record in folder.records() if isinstance(record, Start)]
    assert start.total_steps == 20


def test_a_second_process_cannot_write_the_run(folder: RunFolder) -> None:
    code = (
        "import sys; from pathlib import Path; from whet.runs.folder import RunFolder\n"
        "with RunFolder(Path(sys.argv[1])).locked(): pass"
    )
    with folder.locked():
        second = subprocess.run([sys.executable, "-c", code, folder.path], capture_output=True, text=True)
    assert "EnvironmentFault: Another process is writing the run" in second.stderr
    assert subprocess.run([sys.executable, "-c", code, folder.path]).returncode == 0


def test_a_folder_with_foreign_files_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(EnvironmentFault, match="holds something else"):
        RunFolder.create(tmp_path, make_config({}))
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.txt"]


def test_what_a_process_killed_at_its_beginning_left_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    (tmp_path / ".config.toml.tmp").write_text("[da")
    assert RunFolder.create(tmp_path, make_config({"source": "x.csv"})).config.data.source == "x.csv"


@pytest.mark.parametrize("name", ["records.jsonl", "model", "checkpoints", "report.html", ".lock", "data.json"])
def test_a_link_in_the_folder_is_refused(name: str, folder: RunFolder, tmp_path: Path) -> None:
    (folder.path / name).unlink(missing_ok=True)
    (folder.path / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(EnvironmentFault, match="is a link"):
        folder.refuse_links()


def test_records_do_not_follow_a_link(folder: RunFolder, tmp_path: Path) -> None:
    (folder.path / "records.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(EnvironmentFault):
        folder.append(step(1))
    assert not (tmp_path / "elsewhere").exists()


def test_files_are_not_written_through_a_link(folder: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("untouched")
    (folder.path / ".data.json.tmp").symlink_to(tmp_path / "victim")
    (folder.path / "data.json").symlink_to(tmp_path / "victim")
    folder.write_json("data.json", {"a": 1})
    assert (tmp_path / "victim").read_text() == "untouched"
    assert folder.data == {"a": 1}


def test_a_file_in_the_way_of_the_folder_is_an_environment_fault(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(EnvironmentFault, match="Cannot write"):
        RunFolder.create(tmp_path / "runs" / "one", make_config({}))


def test_numbers_count_up_from_the_highest(tmp_path: Path) -> None:
    (tmp_path / "mrpc-007").mkdir()
    os.symlink(tmp_path / "mrpc-007", tmp_path / "mrpc-009")
    assert next_run_path(tmp_path, "mrpc").name == "mrpc-008"


@pytest.mark.parametrize(
    "source, name",
    [
        ("reviews.csv", "reviews"),
        ("glue/mrpc", "mrpc"),
        ("../../etc/passwd", "passwd"),
        ("..", "run"),
        ("/", "run"),
        ("<script>.csv", "script"),
        ("-", "run"),
    ],
)
def test_a_name_is_plain_whatever_the_source_is_called(source: str, name: str) -> None:
    assert run_name(source) == name
