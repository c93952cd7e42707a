"""`whet selftest` finds what it looks for, and is not pleased by nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from whet.cli import main
from whet.cli.selftest import table
from whet.records import Resume, Step
from whet.runs.folder import RunFolder
from whet.tools.selftest.fork_client import ForkServer
from whet.tools.selftest.tiny_run import differences, run_contents, steps_repeated, write_model, write_rows
from whet.tools.selftest.trials import InterruptionTrials, Outcome, Tally, examine


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import whet

    folder = tmp_path_factory.mktemp("finished")
    write_model(folder / "model")
    write_rows(folder / "rows.csv", 40)
    settings = {"model": str(folder / "model"), "run": str(folder / "run"), "epochs": 1, "batch_size": 8}
    return whet.fit(folder / "rows.csv", **settings, evaluations=1).path


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "copy")
    return tmp_path / "copy"


def test_a_small_self_test_passes_and_counts(laboratory: InterruptionTrials) -> None:
    said: list[str] = []
    outcome = examine(laboratory, kills=2, signals=1, corruptions=2, echo=said.append)
    assert outcome.passed, outcome.tallies
    assert [tally.exact for tally in outcome.tallies] == [1, 1, 1, 2]
    assert sum(row["noticed"] for row in outcome.corruptions.values()) == 2
    assert "kill -9, file boundaries: 1 of 1 bit-exact, 0 stuck." in said
    assert table(outcome)[-1].startswith("Kills: 2 of 2 bit-exact, 0 stuck.")


@pytest.mark.slow
def test_the_self_test_as_a_user_runs_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["selftest", "--kills", "20", "--seed", "7", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [tally["exact"] for tally in found["tallies"]] == [10, 10, 10, 9]


def test_the_same_run_does_not_differ(finished: Path, copy: Path) -> None:
    assert differences(run_contents(finished), run_contents(copy)) == []


@pytest.mark.parametrize("name", ["model/model.safetensors", "predictions.parquet"])
def test_one_bit_in_a_result_is_a_difference(name: str, finished: Path, copy: Path) -> None:
    data = bytearray((copy / name).read_bytes())
    data[len(data) // 2] ^= 1
    (copy / name).write_bytes(data)
    assert differences(run_contents(finished), run_contents(copy)) == [f"{Path(name).name} differs"]


def test_another_number_in_a_record_is_a_difference(finished: Path, copy: Path) -> None:
    lines = (copy / "records.jsonl").read_text().splitlines()
    place = next(i for i, line in enumerate(lines) if '"kind": "step"' in line)
    lines[place] = lines[place].replace('"loss": 0.', '"loss": 1.')
    (copy / "records.jsonl").write_text("\n".join(lines) + "\n")
    assert len(differences(run_contents(finished), run_contents(copy))) == 1


def test_a_missing_record_is_a_difference(finished: Path, copy: Path) -> None:
    lines = (copy / "records.jsonl").read_text().splitlines()
    (copy / "records.jsonl").write_text("\n".join(line for line in lines if '"kind": "step"' not in line) + "\n")
    assert "records instead of" in differences(run_contents(finished), run_contents(copy))[0]


def test_steps_that_were_done_again_are_counted(copy: Path) -> None:
    folder = RunFolder.open(copy)
    (copy / "records.jsonl").unlink()
    for step in range(1, 8):
        folder.append(Step(step=step, epoch=0.0, loss=0.5, learning_rate=0.0))
    folder.append(Resume(step=4, path="checkpoints/step-000004"))
    assert steps_repeated(copy) == 3


@pytest.mark.parametrize("change", [{"exact": 1}, {"stuck": 1, "exact": 1}, {"wrong_exit": 1}])
def test_one_trial_that_went_wrong_fails_the_test(change: dict[str, Any]) -> None:
    good = {"trials": 2, "exact": 2}
    assert Outcome([Tally("kill -9", **good)], {}, 1.0, True).passed
    assert not Outcome([Tally("kill -9", **{**good, **change})], {}, 1.0, True).passed


def test_a_damage_that_was_not_noticed_fails_the_test() -> None:
    row = {"tried": 2, "noticed": 1, "fell back right": 2}
    assert not Outcome([], {"flipped bit": row}, 1.0, True).passed


def test_a_command_that_hangs_is_stuck_and_is_killed(warm: ForkServer, tmp_path: Path) -> None:
    sleeping = warm.start([1000], tmp_path, call="time:sleep")
    assert sleeping.wait(seconds=0.3) is None
    assert sleeping.wait(seconds=60) == -9
