"""The records of a run that was killed are those of a run that was left alone, but for times."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whet.config import make_config
from whet.errors import Interrupted
from whet.records import End, Evaluation, Finding, Record, Resume, Save, Step, replay
from whet.runs.folder import RunFolder
from whet.tools.selftest.tiny_run import differences, run_contents, write_model, write_rows
from whet.training.evaluation import Evaluator
from whet.training.run import train_run

LOG_EVERY = 3
"""Not at the saves, so that a resumed run goes on with a loss that is summed up in part."""


class Killed(BaseException):
    """What no handler answers: nothing is saved after it."""


class Run:
    """The same command, which may be killed or told to stop."""

    def __init__(self, home: Path, run: Path) -> None:
        self.run = run
        self.settings: dict[str, Any] = {
            "source": str(home / "rows.csv"),
            "model": str(home / "model"),
            "run": str(run),
            "recipe": "course",
            "epochs": 2,
            "batch_size": 4,
            "learning_rate": 0.03,
            "evaluations": 4,
            "save_every": 5,
            "log_every": LOG_EVERY,
            "metric": "loss",
            "precision": "float32",
        }

    def __call__(self, hear: Callable[[Any], None] = lambda event: None) -> None:
        config = make_config(self.settings)
        train_run(config.data.source, config, on_event=lambda event, job: hear(event))

    def killed_at(self, kind: type[Record], step: int) -> None:
        def kill(event: Any) -> None:
            if isinstance(event, kind) and event.step == step:
                raise Killed

        with pytest.raises(Killed):
            self(kill)

    def told_to_stop_at(self, kind: type[Any], step: int) -> None:
        def stop(event: Any) -> None:
            if isinstance(event, kind) and event.step == step:
                os.kill(os.getpid(), signal.SIGTERM)

        with pytest.raises(Interrupted):
            self(stop)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    write_model(folder / "model")
    write_rows(folder / "rows.csv", 40)
    return folder


@pytest.fixture(scope="module")
def expected(home: Path) -> dict[str, Any]:
    run = Run(home, home / "reference")
    run()
    return run_contents(run.run)


@pytest.fixture
def run(home: Path, tmp_path: Path) -> Run:
    return Run(home, tmp_path / "run")


def test_the_reference_saves_between_its_step_lines(expected: dict[str, Any]) -> None:
    steps = {kind: {r["step"] for r in expected["records"] if r["kind"] == kind} for kind in ("step", "save")}
    assert steps["save"] - steps["step"], "otherwise no checkpoint holds a loss that is summed up in part"


def test_a_kill_in_the_middle_of_a_sum_keeps_its_step_line(run: Run, expected: dict[str, Any]) -> None:
    run.killed_at(Step, 12)
    run()
    assert differences(expected, run_contents(run.run)) == []


def test_a_stop_in_the_middle_of_a_sum_keeps_its_step_line(run: Run, expected: dict[str, Any]) -> None:
    from whet.training.plan import StepDone

    run.told_to_stop_at(StepDone, 7)
    run()
    assert differences(expected, run_contents(run.run)) == []


def test_an_evaluation_that_is_done_again_after_a_kill_is_recorded_once(
    run: Run, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped inside an evaluation, so that the checkpoint is older than it; killed once it is recorded."""
    real = Evaluator.measure

    def measure(self: Evaluator, split: str, state: Any) -> Any:
        if state.step == 12:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(self, split, state)

    monkeypatch.setattr(Evaluator, "measure", measure)
    with pytest.raises(Interrupted):
        run()
    monkeypatch.setattr(Evaluator, "measure", real)
    for _ in range(2):
        run.killed_at(Evaluation, 12)
    run()
    lines = [record for record in RunFolder.open(run.run).all_records() if isinstance(record, Evaluation)]
    assert [record.step for record in lines].count(12) == 3
    assert differences(expected, run_contents(run.run)) == []


@pytest.mark.parametrize("kind, step", [(Save, 5), (Evaluation, 8), (Save, 16), (End, 16)])
def test_a_kill_right_after_a_record_changes_none(
    kind: type[Record], step: int, run: Run, expected: dict[str, Any]
) -> None:
    run.killed_at(kind, step)
    run()
    assert differences(expected, run_contents(run.run)) == []


# --- what a resume takes back ---------------------------------------------------------------------------------------


def evaluation(step: int, split: str = "validation") -> Evaluation:
    return Evaluation(step=step, epoch=0.0, split=split, loss=1.0, metrics={}, rows=1)


def verdict(step: int) -> Finding:
    return Finding(step=step, about="verdict", sentence="", details={"verdict": "healthy"})


def fewer(step: int, rows: int) -> Finding:
    return Finding(step=step, about="memory", sentence="", details={"evaluation_rows": rows})


def kept(*records: Record) -> list[Record]:
    return [record for record in replay(records) if not isinstance(record, Resume)]


def step(number: int) -> Step:
    return Step(step=number, epoch=0.0, loss=1.0, learning_rate=0.0)


def test_steps_up_to_the_checkpoint_are_kept_and_later_ones_taken_back() -> None:
    assert kept(step(3), step(4), step(5), Resume(step=4, path="")) == [step(3), step(4)]


@pytest.mark.parametrize("evaluated", [True, False])
def test_an_evaluation_is_kept_if_the_checkpoint_came_after_it(evaluated: bool) -> None:
    records = [evaluation(2), verdict(2), evaluation(4), verdict(4)]
    expected = records if evaluated else records[:2]
    assert kept(*records, Resume(step=4, path="", evaluated=evaluated)) == sorted(expected, key=lambda r: r.step)


@pytest.mark.parametrize("rows, count", [(8, 2), (16, 1), (32, 0)])
def test_smaller_batches_are_kept_if_the_checkpoint_knows_of_them(rows: int, count: int) -> None:
    found = kept(fewer(4, 16), fewer(4, 8), Resume(step=4, path="", evaluation_rows=rows))
    assert len(found) == count


def test_the_end_is_always_done_again() -> None:
    end = End(step=4, reason="finished", best_step=4)
    assert kept(evaluation(4, "test"), end, Resume(step=4, path="")) == []
