"""A run of several trainings: what it measures, what it leaves, and that an interruption anywhere changes nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from whet.api import Run
from whet.config import make_config
from whet.errors import DataError, Interrupted, UsageError
from whet.records import AVERAGED, End, Evaluation, Finding, Part, Start, Step
from whet.runs.folder import RunFolder
from whet.runs.parts import seed_table
from whet.runs.progress import progress
from whet.tools.selftest.tiny_run import differences, run_contents, write_model, write_rows
from whet.training.parts import SAVE_STEPS
from whet.training.run import train_run

Hear = Callable[[Any], None]
ROWS = 40


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parts")
    write_model(folder / "model", 64)
    write_rows(folder / "rows.csv", ROWS)
    return folder


class Command:
    """The same command, again and again."""

    def __init__(self, home: Path, run: Path, **settings: Any) -> None:
        self.run, self.lines, self.events = run, [], []  # type: ignore[var-annotated]
        self.settings: dict[str, Any] = {
            "source": str(home / "rows.csv"),
            "model": str(home / "model"),
            "run": str(run),
            "recipe": "auto",
            "epochs": 2,
            "batch_size": 4,
            "learning_rate": 0.03,
            "evaluations": 3,
            "metric": "loss",
            "save_every": 5,
            "log_every": 1,
            "precision": "float32",
            **settings,
        }

    def __call__(self, hear: Hear = lambda event: None, **changes: Any) -> Run:
        accept = changes.pop("accept_changes", False)
        self.lines.clear()
        self.events.clear()

        def on_event(event: Any, job: Any) -> None:
            self.events.append(event)
            hear(event)

        config = make_config({**self.settings, **changes})
        folder = train_run(config.data.source, config, accept_changes=accept, echo=self.lines.append, on_event=on_event)
        return Run(folder.path)


class Killed(BaseException):
    """Nothing of ours handles it."""


def when(name: str, number: int, steps: int, state: str = "running", *, kill: bool = False) -> Hear:
    """A signal, or a death, when a part has so many steps."""
    done: list[int] = []

    def hear(event: Any) -> None:
        if isinstance(event, Part) and (event.name, event.number, event.steps, event.state) == (
            name, number, steps, state,
        ) and not done:  # fmt: skip
            done.append(1)
            if kill:
                raise Killed
            os.kill(os.getpid(), signal.SIGTERM)

    return hear


# --- folds ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folded(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Command:
    command = Command(home, tmp_path_factory.mktemp("folded") / "run", folds=3)
    command()
    return command


@pytest.fixture
def command(home: Path, tmp_path: Path) -> Command:
    return Command(home, tmp_path / "run", folds=3)


def test_each_row_is_measured_once_by_the_fold_that_held_it_out(folded: Command) -> None:
    table = pq.read_table(folded.run / "predictions.parquet")
    assert table["row"].to_pylist() == list(range(1, ROWS + 1))
    assert set(table["split"].to_pylist()) == {"validation"}
    assert sorted(np.bincount(table["fold"].to_numpy())[1:].tolist()) == [13, 13, 14]


def test_the_last_evaluation_scores_the_predictions(folded: Command) -> None:
    table, best = pq.read_table(folded.run / "predictions.parquet"), Run(folded.run).best
    assert best is not None
    assert best.out_of_fold
    assert best.rows == ROWS
    right = np.array(table["label"].to_pylist()) == np.array(table["predicted"].to_pylist())
    assert best.metrics["accuracy"] == pytest.approx(right.mean())
    logits, labels = np.array(table["logits"].to_pylist()), table["label"].to_numpy()
    likely = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    assert best.loss == pytest.approx(-likely[np.arange(ROWS), labels].mean(), rel=1e-5)


def test_a_fold_never_trains_on_what_it_holds_out(home: Path, tmp_path: Path, folded: Command) -> None:
    """The logits of the first fold are those of an ordinary run on the other rows."""
    import csv

    table = pq.read_table(folded.run / "predictions.parquet")
    held = {row for row, fold in zip(table["row"].to_pylist(), table["fold"].to_pylist(), strict=True) if fold == 1}
    with open(home / "rows.csv", newline="") as file:
        header, *rows = csv.reader(file)
    for name, chosen in (("train", False), ("validation", True)):
        with open(tmp_path / f"{name}.csv", "w", newline="") as file:
            csv.writer(file).writerows([header, *(r for n, r in enumerate(rows, 1) if (n in held) is chosen)])
    alone = Command(home, tmp_path / "run", source=str(tmp_path), folds="auto")()
    scored = [record for record in alone.records if isinstance(record, Evaluation) and record.split == "validation"]
    last, part = scored[-1], next(record for record in Run(folded.run).records if isinstance(record, Part))
    assert (part.name, part.number) == ("fold", 1)
    assert last.loss == pytest.approx(part.loss, rel=1e-4)


def test_the_model_learns_from_all_rows(folded: Command, home: Path, tmp_path: Path) -> None:
    """It is the model of a run without any validation rows."""
    whole = Command(home, tmp_path / "run", folds=0, validation_share=0, test_share=0)()
    one, other = ((path / "model" / "model.safetensors").read_bytes() for path in (whole.path, folded.run))
    assert one == other


def test_the_records_tell_of_all_parts(folded: Command) -> None:
    records = Run(folded.run).records
    start, end = records[0], records[-1]
    assert isinstance(start, Start)
    assert isinstance(end, End)
    parts = [record for record in records if isinstance(record, Part)]
    assert [(part.name, part.number, part.state) for part in parts] == [
        ("fold", 1, "done"), ("fold", 2, "done"), ("fold", 3, "done"), ("final", 1, "done"),
    ]  # fmt: skip
    assert start.all_steps == sum(part.total_steps for part in parts)
    pooled = [record for record in records if isinstance(record, Evaluation)]
    assert [record.rows for record in pooled] == [ROWS] * 4
    assert [record.split for record in pooled] == [*["validation"] * 3, AVERAGED]
    assert end.best_step == pooled[-1].step == end.step
    assert not list(folded.run.glob("parts/*/checkpoints"))


def test_progress_counts_the_steps_of_all_parts(folded: Command, command: Command) -> None:
    seen: list[float] = []
    heard: list[Any] = []

    def hear(event: Any) -> None:
        if isinstance(event, Start | Part | Step):
            heard.append(event)
            seen.append(progress(heard).share)

    command(hear=hear)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    total = next(event.all_steps for event in heard if isinstance(event, Start))
    assert len(set(seen)) == total + 1


@pytest.mark.parametrize(
    "hear",
    [
        when("fold", 1, 3),
        when("fold", 2, 1, kill=True),
        when("fold", 2, 12, kill=True),
        when("fold", 3, 6),
        when("fold", 2, 14, "done", kill=True),
        when("final", 1, 0, kill=True),
    ],
    ids=["signal in fold 1", "death in fold 2", "death after a save", "signal in fold 3", "between", "before the last"],
)
def test_an_interruption_in_any_fold_changes_nothing(hear: Hear, command: Command, folded: Command) -> None:
    with pytest.raises((Interrupted, Killed)):
        command(hear=hear)
    assert not (command.run / "model").exists()
    assert differences(run_contents(folded.run), run_contents(command().path)) == []


def test_a_fold_that_is_done_is_never_done_again(command: Command) -> None:
    with pytest.raises(Interrupted):
        command(hear=when("fold", 2, 3))
    command()
    folds = [event for event in command.events if isinstance(event, Part) and event.name == "fold"]
    assert [(event.number, event.state) for event in folds if event.number == 1] == [(1, "done")]
    assert min(event.steps for event in folds if event.number == 2) >= 3


def test_a_damaged_fold_is_trained_again(command: Command, folded: Command) -> None:
    with pytest.raises(Interrupted):
        command(hear=when("fold", 3, 3))
    file = command.run / "parts" / "fold-1" / "held-out.safetensors"
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(bytes(content))
    command()
    assert any(line.startswith("Fold 1 is trained again") for line in command.lines)
    assert differences(run_contents(folded.run), run_contents(command.run)) == []


def test_other_settings_are_refused_and_accepted_for_all_folds(command: Command) -> None:
    with pytest.raises(Interrupted):
        command(hear=when("fold", 2, 3))
    with pytest.raises(UsageError, match=r"learning_rate was 0\.03, is 0\.02"):
        command(learning_rate=0.02)
    run = command(learning_rate=0.02, accept_changes=True)
    whole = Command(Path(command.settings["source"]).parent, command.run.parent / "other", folds=3, learning_rate=0.02)
    assert differences(run_contents(whole().path), run_contents(run.path)) == []


def test_a_test_file_is_left_for_the_end(home: Path, tmp_path: Path) -> None:
    write_rows(tmp_path / "test.csv", 20)
    run = Command(home, tmp_path / "run", folds=2, test=str(tmp_path / "test.csv"), allow=("leak",))()
    table = pq.read_table(run.path / "predictions.parquet")
    assert table["split"].to_pylist() == ["validation"] * ROWS + ["test"] * 20
    assert table["fold"].to_pylist()[ROWS:] == [None] * 20
    assert "test_accuracy" in run.metrics


def test_what_is_shorter_than_a_save_interval_is_not_saved(home: Path, tmp_path: Path) -> None:
    run = Command(home, tmp_path / "run", folds=2, save_every=None)()
    assert SAVE_STEPS > 20
    assert [path.name for path in run.path.glob("checkpoints/*")] == ["step-000020"]
    assert not any(record["kind"] == "save" for record in run_contents(run.path)["records"][-30:])


# --- seeds ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def seeded(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Command:
    command = Command(home, tmp_path_factory.mktemp("seeded") / "run", seeds=3)
    command()
    return command


@pytest.mark.parametrize(
    "hear",
    [
        when("seed", 1, 3),
        when("seed", 2, 4, kill=True),
        when("seed", 2, 6, kill=True),
        when("seed", 2, 16, "done", kill=True),
        when("seed", 3, 16, "done"),
    ],
    ids=["signal in the first", "death in the second", "death after a save", "between", "before the choice"],
)
def test_an_interruption_with_any_seed_changes_nothing(hear: Hear, seeded: Command, home: Path, tmp_path: Path) -> None:
    command = Command(home, tmp_path / "run", seeds=3)
    with pytest.raises((Interrupted, Killed)):
        command(hear=hear)
    assert differences(run_contents(seeded.run), run_contents(command().path)) == []


def test_each_seed_trains_as_it_would_alone(seeded: Command, home: Path, tmp_path: Path) -> None:
    alone = Command(home, tmp_path / "run", folds=0, seed=43)()
    second = RunFolder(seeded.run / "parts" / "seed-2")
    for kind in (Step, Evaluation):
        ours = [r.loss for r in second.records() if isinstance(r, kind)]
        theirs = [
            r.loss for r in alone.records if isinstance(r, kind) and getattr(r, "split", "validation") == "validation"
        ]
        assert ours == pytest.approx(theirs, rel=1e-3)


def test_the_best_seed_or_the_average_is_shipped_and_said(seeded: Command) -> None:
    found = next(r for r in Run(seeded.run).records if isinstance(r, Finding) and r.about == "seeds")
    members = [r for r in Run(seeded.run).records if isinstance(r, Part)]
    assert found.details["seeds"] == [part.seed for part in members] == [42, 43, 44]
    assert found.details["mean"] == pytest.approx(np.mean([part.score for part in members]))
    assert found.details["deviation"] == pytest.approx(np.std([part.score for part in members], ddof=1))
    best = Run(seeded.run).best
    assert best is not None
    shipped = found.details["shipped"]
    assert best.loss == (found.details["averaged"] if shipped == "average" else found.details["scores"][shipped - 42])
    assert not list(seeded.run.glob("parts/*/checkpoints"))


def test_predictions_are_those_of_the_shipped_model(seeded: Command) -> None:
    table = pq.read_table(seeded.run / "predictions.parquet")
    texts = table.filter(np.array(table["split"].to_pylist()) == "validation")
    logits = np.array(texts["logits"].to_pylist())
    likely = np.exp(logits).max(axis=1) / np.exp(logits).sum(axis=1)
    answers = Run(seeded.run).predict(texts["text"].to_pylist())
    assert [answer.probability for answer in answers] == pytest.approx(likely.tolist(), abs=2e-3)


def member(seed: int, score: float, loss: float) -> Part:
    return Part(step=0, name="seed", number=seed, of=3, state="done", seed=seed, score=score, loss=loss, best_step=9)


@pytest.mark.parametrize(
    "averaged, higher, shipped",
    [(0.75, True, "average"), (0.70, True, 2), (0.65, True, 2), (0.65, False, "average"), (0.75, False, 1)],
)
def test_the_average_is_shipped_where_it_beats_the_mean_seed(averaged: float, higher: bool, shipped: Any) -> None:
    table = seed_table([member(1, 0.5, 0.5), member(2, 0.8, 0.4), member(3, 0.8, 0.6)], "score", higher, averaged)
    assert table.mean == pytest.approx(0.7)
    assert table.as_dict()["shipped"] == shipped


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"folds": 3, "seeds": 2}, "folds is 3, and seeds=2 is measured on validation rows"),
        ({"folds": 3, "patience": 2}, "folds is 3, and patience needs validation rows"),
        ({"folds": 3, "validation": "VALIDATION"}, "folds is 3, and validation gives the rows"),
        ({"folds": 25}, "folds is 25, and the rarest label has 20 different texts"),
        ({"folds": 1}, "folds is 1"),
    ],
)
def test_what_folds_cannot_do_is_refused_and_nothing_is_written(
    changes: dict[str, Any], said: str, home: Path, tmp_path: Path
) -> None:
    if "validation" in changes:
        changes = {**changes, "validation": str(home / "rows.csv")}
    with pytest.raises(UsageError, match=said):
        Command(home, tmp_path / "run", **changes)()
    assert not (tmp_path / "run").exists()


def test_rows_that_cannot_be_measured_are_refused_and_nothing_is_written(home: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("text,label\none text,bad\none text,good\n")
    with pytest.raises(DataError, match="same text"):
        Command(home, tmp_path / "run", source=str(tmp_path / "rows.csv"))()
    assert not (tmp_path / "run").exists()


# --- the choice -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes, folds",
    [
        ({}, 5),
        ({"recipe": "course"}, 0),
        ({"patience": 3}, 0),
        ({"validation_share": 0.2}, 0),
        ({"folds": 0}, 0),
        ({"recipe": "course", "folds": 2}, 2),
    ],
)
def test_auto_takes_folds_where_nobody_asked_for_a_split(
    changes: dict[str, Any], folds: int, home: Path, tmp_path: Path
) -> None:
    run = Command(home, tmp_path / "run", max_steps=1, evaluations=1, **changes)()
    assert run.folder.config.data.folds == folds
    start = run.records[0]
    assert isinstance(start, Start)
    assert start.folds == folds
