"""A run that was interrupted anywhere, by anything, ends like one that was not."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import small_model
from whet.api import Run
from whet.config import make_config
from whet.errors import ArtifactError, Interrupted, UsageError
from whet.records import End, Evaluation, Resume, Save, Start, Step
from whet.runs.folder import RunFolder
from whet.tools.selftest.damage import flip_bit
from whet.tools.selftest.tiny_run import differences, run_contents, write_model, write_rows
from whet.training.run import train_run

Hear = Callable[[Any], None]


both_paths = pytest.mark.parametrize("model", [16, 64], indirect=True, ids=["general", "fused"])
every_path = pytest.mark.parametrize("model", [16, 64, "deberta-v2", "mpnet"], indirect=True)
"""A model for each of the engine's ways to compute on a CPU."""


@pytest.fixture(scope="module")
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    kind = getattr(request, "param", 16)
    folder = tmp_path_factory.mktemp("model") / str(kind)
    write_model(folder, 16 if isinstance(kind, str) else kind)
    if isinstance(kind, str):
        small_model(kind, dropout=0.1, layers=1, width=16).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "rows.csv"
    write_rows(path, 40)
    return path


class Trainer:
    """The same command, again and again."""

    def __init__(self, source: Path, model: Path, run: Path) -> None:
        self.source, self.run, self.lines = source, run, []  # type: ignore[var-annotated]
        self.settings: dict[str, Any] = {
            "source": str(source),
            "recipe": "course",
            "model": str(model),
            "run": str(run),
            "epochs": 2,
            "batch_size": 4,
            "learning_rate": 0.03,
            "evaluations": 4,
            "metric": "loss",
            "save_every": 5,
            "log_every": 1,
            "precision": "float32",
        }

    def __call__(self, hear: Hear = lambda event: None, echo: Hear = lambda line: None, **changes: Any) -> Run:
        accept = changes.pop("accept_changes", False)

        def note(line: str) -> None:
            self.lines.append(line)
            echo(line)

        self.lines.clear()
        config = make_config({**self.settings, **changes})
        folder = train_run(
            str(self.source), config, accept_changes=accept, echo=note, on_event=lambda event, job: hear(event)
        )
        return Run(folder.path)

    def interrupted(self, **arguments: Any) -> None:
        with pytest.raises(Interrupted):
            self(**arguments)


@pytest.fixture
def train(source: Path, model: Path, tmp_path: Path) -> Trainer:
    return Trainer(source, model, tmp_path / "run")


@pytest.fixture(scope="module")
def expected(source: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    run = tmp_path_factory.mktemp("reference") / "run"
    Trainer(source, model, run)()
    return run_contents(run)


def when(kind: type, step: int, number: int = signal.SIGTERM, **fields: Any) -> Hear:
    """Sends a real signal when this record is heard."""
    sent: list[int] = []

    def hear(event: Any) -> None:
        matches = isinstance(event, kind) and event.step == step
        if matches and not sent and all(getattr(event, name) == value for name, value in fields.items()):
            sent.append(number)
            os.kill(os.getpid(), number)

    return hear


def at_line(start: str) -> Hear:
    def echo(line: str) -> None:
        if line.startswith(start):
            os.kill(os.getpid(), signal.SIGINT)

    return echo


@pytest.mark.parametrize("model, step", [(16, 1), (16, 4), (16, 5), (16, 16), (64, 5), (64, 14)], indirect=["model"])
def test_a_signal_after_any_step_saves_it_and_the_run_ends_the_same(
    step: int, train: Trainer, expected: dict[str, Any]
) -> None:
    train.interrupted(hear=when(Step, step))
    assert RunFolder.open(train.run).records()[-1].step == step
    assert (train.run / "checkpoints" / f"step-{step:06d}").is_dir()
    assert differences(expected, run_contents(train().path)) == []
    assert any(line.startswith("Resuming") and f"from step {step} of 16" in line for line in train.lines)


@pytest.mark.parametrize("step", [4, 16])
def test_a_signal_during_an_evaluation_leaves_it_for_later(
    step: int, train: Trainer, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from whet.training.evaluation import Evaluator

    real = Evaluator.measure

    def measure(self: Evaluator, split: str, state: Any) -> Any:
        if state.step == step:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(self, split, state)

    monkeypatch.setattr(Evaluator, "measure", measure)
    train.interrupted()
    monkeypatch.setattr(Evaluator, "measure", real)
    kept = [r for r in RunFolder.open(train.run).records() if isinstance(r, Evaluation) and r.step == step]
    assert not kept
    assert differences(expected, run_contents(train().path)) == []


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # importing DeBERTa
@every_path
def test_a_signal_right_after_the_best_evaluation_keeps_it_the_best(train: Trainer, expected: dict[str, Any]) -> None:
    best = next(r for r in expected["records"] if r["kind"] == "evaluation" and r["best"])
    train.interrupted(hear=when(Evaluation, best["step"], split="validation"))
    assert differences(expected, run_contents(train().path)) == []


def test_a_signal_while_finishing_finishes_later(train: Trainer, expected: dict[str, Any]) -> None:
    train.interrupted(hear=when(Evaluation, 8, split="validation"))
    with pytest.raises(Interrupted):
        train(hear=when(Save, 15, signal.SIGINT))
    assert differences(expected, run_contents(train().path)) == []


@pytest.mark.parametrize("line", ["Columns", "Model", "16 steps"])
def test_a_signal_before_training_leaves_at_once_and_loses_nothing(
    line: str, train: Trainer, expected: dict[str, Any]
) -> None:
    train.interrupted(echo=at_line(line))
    assert differences(expected, run_contents(train().path)) == []


def test_a_signal_while_tokenizing_leaves_at_once(
    train: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from whet.data.tokens import table as tokens

    monkeypatch.setenv("WHET_CACHE", str(tmp_path / "cache"))
    real = tokens._write
    with monkeypatch.context() as patched:
        patched.setattr(tokens, "_write", lambda *given: (os.kill(os.getpid(), signal.SIGTERM), real(*given)))
        train.interrupted()
    assert not (train.run / "records.jsonl").exists()
    assert train().metrics


def test_a_deadline_saves_and_says_so(train: Trainer, expected: dict[str, Any]) -> None:
    from whet.utils.signals import Interrupts

    def pass_deadline(event: Any) -> None:
        if isinstance(event, Step) and event.step == 6:
            interrupts._deadline = 0.0

    made = Interrupts.__init__
    interrupts: Any = None

    def remember(self: Interrupts, minutes: float | None = None) -> None:
        nonlocal interrupts
        interrupts = self
        made(self, minutes)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Interrupts, "__init__", remember)
        with pytest.raises(Interrupted, match="deadline of 60 minutes"):
            train(hear=pass_deadline, max_minutes=60)
    (end,) = [r for r in RunFolder.open(train.run).records() if isinstance(r, End)]
    assert (end.reason, end.step) == ("deadline", 6)
    assert differences(expected, run_contents(train().path)) == []


def test_a_report_is_there_after_an_interruption_and_after_the_end(train: Trainer) -> None:
    train.interrupted(hear=when(Step, 9))
    assert "interrupted" in (train.run / "report.html").read_text()
    train()
    assert (train.run / "report.html").stat().st_size > 1000


def test_a_finished_run_without_a_report_gets_one(train: Trainer) -> None:
    (train().path / "report.html").unlink()
    train()
    assert (train.run / "report.html").is_file()


def test_a_report_that_fails_does_not_cost_the_run(train: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    from whet.runs.report import html as report

    def fail(folder: RunFolder) -> None:
        raise ZeroDivisionError("no report today")

    monkeypatch.setattr(report, "write_report", fail)
    assert train().folder.finished
    assert train.lines[-1] == "The report could not be written: no report today"


@both_paths
def test_falling_back_is_said_and_ends_the_same(train: Trainer, expected: dict[str, Any]) -> None:
    import random

    train.interrupted(hear=when(Step, 12))
    flip_bit(train.run / "checkpoints" / "step-000012", random.Random(3))
    run = train()
    assert [line for line in train.lines if line.startswith("Passed over")]
    assert differences(expected, run_contents(run.path)) == []
    (resume,) = [record for record in run.records if isinstance(record, Resume)]
    assert resume.step == 10
    assert "step-000012" in resume.note


@both_paths
def test_averaged_weights_and_what_is_shipped_survive_interruptions(train: Trainer, tmp_path: Path) -> None:
    train.settings |= {"average": 0.9, "choice": "steady", "metric": "accuracy", "contrastive": 0.5}
    whole = Trainer(train.source, Path(train.settings["model"]), tmp_path / "whole")
    whole.settings |= {**train.settings, "run": str(whole.run)}
    expected = run_contents(whole().path)
    assert any(record["kind"] == "finding" and record["about"] == "choice" for record in expected["records"])
    train.interrupted(hear=when(Step, 7))
    train.interrupted(hear=when(Evaluation, 16, split="averaged"))
    assert differences(expected, run_contents(train().path)) == []


def test_no_whole_checkpoint_is_refused(train: Trainer) -> None:
    train.interrupted(hear=when(Step, 6))
    for folder in (train.run / "checkpoints").iterdir():
        (folder / "manifest.json").unlink()
    with pytest.raises(ArtifactError, match="No checkpoint of"):
        train()


def test_checkpoints_that_were_deleted_are_missed(train: Trainer) -> None:
    import shutil

    train.interrupted(hear=when(Step, 6))
    shutil.rmtree(train.run / "checkpoints")
    with pytest.raises(ArtifactError, match="No checkpoint of"):
        train()


def test_files_of_others_in_a_run_folder_outlive_it(train: Trainer) -> None:
    train.interrupted(hear=when(Step, 6))
    foreign = [train.run / "notes.txt", train.run / "checkpoints" / "step-copy" / "weights", train.run / "old" / "log"]
    for file in foreign:
        file.parent.mkdir(exist_ok=True)
        file.write_text("precious")
    train(keep=1)
    assert [file.read_text() for file in foreign] == ["precious"] * 3


def test_missing_records_are_not_made_up(train: Trainer) -> None:
    train.interrupted(hear=when(Step, 6))
    (train.run / "records.jsonl").unlink()
    with pytest.raises(ArtifactError, match="no records"):
        train()


def test_changed_settings_are_shown_and_refused(train: Trainer) -> None:
    train.interrupted(hear=when(Step, 6))
    with pytest.raises(UsageError, match=r"learning_rate was 0\.03, is 0\.01"):
        train(learning_rate=0.01)


def test_changed_data_is_refused(train: Trainer, source: Path, tmp_path: Path) -> None:
    train.interrupted(hear=when(Step, 6))
    other = tmp_path / source.name
    other.write_text(source.read_text().replace("apple", "peach"))
    train.source = other
    train.settings["source"] = str(source)
    with pytest.raises(UsageError, match="data was"):
        train()


def test_a_changed_tokenizer_is_refused(train: Trainer, tmp_path: Path, model: Path) -> None:
    import shutil

    copy = tmp_path / "model"
    shutil.copytree(model, copy)
    train.settings["model"] = str(copy)
    train.interrupted(hear=when(Step, 6))
    file = copy / "tokenizer.json"
    file.write_text(file.read_text().replace('"lowercase": true', '"lowercase": false').replace('"##e"', '"##é"'))
    with pytest.raises(UsageError, match="tokenizer of"):
        train()


def test_accepted_changes_go_on_and_become_the_settings(train: Trainer) -> None:
    train.interrupted(hear=when(Step, 6))
    run = train(epochs=3, learning_rate=0.01, accept_changes=True)
    assert "Going on although epochs was 2.0, is 3.0; learning_rate was 0.03, is 0.01." in train.lines
    assert run.folder.config.train.learning_rate == 0.01
    (start,) = [record for record in run.records if isinstance(record, Start)]
    assert (start.total_steps, run.records[-1].step) == (24, 24)


@both_paths
def test_accepted_data_goes_on(train: Trainer, source: Path, tmp_path: Path) -> None:
    train.interrupted(hear=when(Step, 6))
    train.source = tmp_path / source.name
    train.source.write_text(source.read_text().replace("apple", "zax"))
    assert train(source=str(train.source), accept_changes=True).folder.finished


def test_settings_that_do_not_touch_training_may_change(train: Trainer, expected: dict[str, Any]) -> None:
    train.interrupted(hear=when(Step, 6))
    assert differences(expected, run_contents(train(keep=4, max_minutes=90).path)) == []


def test_without_a_name_the_newest_unfinished_run_goes_on(
    train: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    train.interrupted(hear=when(Step, 6), run=None)
    assert train(run=None).path == Path("runs/rows-001")
    assert train(run=None).path == Path("runs/rows-002")


def test_a_clock_that_jumps_changes_nothing(
    train: Trainer, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    import itertools
    import time

    years = itertools.cycle([0.0, 4e9, 1.0, 2e9])
    train.interrupted(hear=when(Step, 7))
    monkeypatch.setattr(time, "time", lambda: next(years))
    run = train()
    assert differences(expected, run_contents(run.path)) == []
    assert all(0 <= record.seconds < 1000 for record in run.records if isinstance(record, Step))


def test_patience_saves_its_last_step_and_resumes_the_same(train: Trainer, tmp_path: Path) -> None:
    patient = {"patience": 1, "learning_rate": 1e-9, "metric": "accuracy", "save_every": 7}
    reference = run_contents(train(**patient).path)
    train.run = tmp_path / "again" / "run"
    train.settings["run"] = str(train.run)
    train.interrupted(hear=when(Step, 7), **patient)
    assert differences(reference, run_contents(train(**patient).path)) == []
    assert any(record["kind"] == "save" and record["step"] == 8 for record in reference["records"])
