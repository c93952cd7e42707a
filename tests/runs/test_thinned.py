from __future__ import annotations

from pathlib import Path

import pytest

from tests.many_runs import build_many
from tests.run_folders import build_run, step_record
from whet.errors import ArtifactError
from whet.records import Evaluation, Resume, Step
from whet.runs.folder import RunFolder
from whet.runs.thinned import STEPS, thinned_records
from whet.runs.verdict.judge import verdict_of


def test_a_run_of_few_steps_is_read_whole(tmp_path: Path) -> None:
    folder = build_run(tmp_path / "run", steps=STEPS, resumed=True)
    assert thinned_records(folder.path) == folder.records()


def test_of_a_long_run_some_steps_are_left_and_all_else(tmp_path: Path) -> None:
    path = build_many(tmp_path, 1, 3000) / "run-000"
    whole, found = RunFolder(path).records(), thinned_records(path)
    steps = [record for record in found if isinstance(record, Step)]
    assert STEPS / 2 < len(steps) <= STEPS + len(found) - len(steps)
    assert steps[-1].step == 3000
    assert [record for record in found if not isinstance(record, Step)] == [
        record for record in whole if not isinstance(record, Step)
    ]


def test_what_a_resume_took_back_stays_away(tmp_path: Path) -> None:
    folder = RunFolder(build_many(tmp_path, 1, 1200) / "run-000")
    folder.append(Resume(step=600, path=""))
    folder.append(step_record(601))
    found = thinned_records(folder.path)
    assert max(record.step for record in found if isinstance(record, Step)) == 601
    assert not [record for record in found if isinstance(record, Evaluation) and record.step > 600]


def test_the_verdict_is_that_of_all_steps(tmp_path: Path) -> None:
    for number in range(3):
        path = build_many(tmp_path / str(number), number + 1, 2400) / f"run-{number:03d}"
        whole, found = (verdict_of(records) for records in (RunFolder(path).records(), thinned_records(path)))
        assert found.verdict == whole.verdict


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = build_many(tmp_path, 1) / "run-000"
    lines = (path / "records.jsonl").read_text().splitlines()
    (path / "records.jsonl").write_text("\n".join([*lines[:4], "{broken", *lines[4:]]) + "\n")
    with pytest.raises(ArtifactError, match="line 5"):
        thinned_records(path)
