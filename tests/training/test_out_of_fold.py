"""The folds that `whet labels` trains for a run that has none."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.data_files import as_csv, labelled, write
from whet.config import make_config
from whet.data.examples import load_examples
from whet.errors import DataError, Interrupted, UsageError
from whet.records import Part
from whet.runs.folder import RunFolder
from whet.runs.label_errors import MADE_NOW, find_suspects, has_out_of_fold
from whet.runs.report.mistakes import read_answers
from whet.tools.selftest.tiny_run import write_model, write_rows
from whet.training.out_of_fold import measure_out_of_fold
from whet.training.run import train_run

ROWS = 60
FOLDS = 5


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, rows, and a finished run with a single split of them."""
    folder = tmp_path_factory.mktemp("unfolded")
    write_model(folder / "model", 32)
    write_rows(folder / "rows.csv", ROWS)
    train(folder, folder / "run")
    return folder


def train(home: Path, run: Path, **settings: Any) -> RunFolder:
    given = {"source": str(home / "rows.csv"), "model": str(home / "model"), "run": str(run), "folds": 0}
    given |= {"epochs": 1, "evaluations": 1, "batch_size": 8, "precision": "float32", **settings}
    config = make_config(given)
    return train_run(config.data.source, config)


@pytest.fixture
def run(home: Path, tmp_path: Path) -> RunFolder:
    """A copy of the finished run."""
    return RunFolder(shutil.copytree(home / "run", tmp_path / "run"))


def judged_rows(run: RunFolder) -> Any:
    made = RunFolder(run.path / MADE_NOW)
    answers = read_answers(made, "validation", made.data["task"], made.data["labels"])
    assert answers is not None
    return answers


def test_each_training_row_is_judged_by_a_fold_and_known_by_its_number_in_the_source(run: RunFolder) -> None:
    assert not has_out_of_fold(run)
    made = measure_out_of_fold(run)
    assert has_out_of_fold(run)
    assert not made.model.exists()
    answers = judged_rows(run)
    trained_on = load_examples(run.config.data.source, run.config.data).rows["train"]
    assert answers.rows.tolist() == trained_on.column("row")
    assert answers.texts == trained_on.column("text")
    assert answers.labels.tolist() == trained_on.column("label")
    parts = [record for record in made.records() if isinstance(record, Part)]
    assert {(record.name, record.number) for record in parts} == {("fold", number + 1) for number in range(FOLDS)}
    found = find_suspects(run)
    assert found is not None
    assert found.looked_at == len(trained_on)


def test_an_interruption_costs_no_fold_that_is_done(run: RunFolder, tmp_path: Path) -> None:
    done: list[int] = []

    def cut_off(event: Any, job: Any) -> None:
        if isinstance(event, Part) and event.state == "done":
            done.append(event.number)
            if len(done) == 2:
                raise Interrupted("cut off")

    with pytest.raises(Interrupted):
        measure_out_of_fold(run, on_event=cut_off)
    assert not has_out_of_fold(run)
    heard: list[Any] = []
    measure_out_of_fold(run, on_event=lambda event, job: heard.append(event))
    finished = [event.number for event in heard if isinstance(event, Part) and event.state == "done"]
    assert finished[:2] == done, "what was done is told again"
    assert not any(isinstance(event, Part) and event.number == 1 and event.state == "running" for event in heard[2:])
    whole = RunFolder(run.path.with_name("whole"))
    shutil.copytree(run.path, whole.path, ignore=shutil.ignore_patterns(MADE_NOW))
    measure_out_of_fold(whole)
    assert np.array_equal(judged_rows(run).logits, judged_rows(whole).logits)


def test_a_second_call_trains_nothing(run: RunFolder) -> None:
    measure_out_of_fold(run)
    heard: list[Any] = []
    measure_out_of_fold(run, on_event=lambda event, job: heard.append(event))
    assert heard == []


def test_a_source_with_other_rows_is_refused(home: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "rows.csv", (home / "rows.csv").read_text())
    run = train(home, tmp_path / "run", source=str(source))
    write(source, as_csv(labelled(40)))
    with pytest.raises(DataError, match="does not hold the rows"):
        measure_out_of_fold(run)
    assert not (run.path / MADE_NOW).exists()


def test_rows_that_came_from_no_file_cannot_be_read_again(home: Path, tmp_path: Path) -> None:
    config = make_config(
        {"model": str(home / "model"), "run": str(tmp_path / "run"), "folds": 0, "epochs": 1, "evaluations": 1}
    )
    run = train_run(pd.read_csv(home / "rows.csv"), config)
    with pytest.raises(UsageError, match="did not come from a file"):
        measure_out_of_fold(run)
