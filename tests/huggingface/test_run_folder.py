"""output_dir as a run folder: what `whet verdict`, `report` and `compare` read, on both paths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import whet
from tests.conftest import small_model
from tests.huggingface.made import make_rows, make_trainer
from whet import EarlyStoppingCallback, Trainer
from whet.engine.notices import WhetNotice
from whet.errors import Diverged
from whet.records import End, Evaluation, Save, Start, Step
from whet.runs.folder import RunFolder


def accuracy(prediction: Any) -> dict[str, Any]:
    return {"accuracy": (prediction.predictions.argmax(-1) == prediction.label_ids).mean()}


class StockPath(Trainer):
    def training_step(self, *given: Any, **named: Any) -> Any:
        return super().training_step(*given, **named)


def of_kind(folder: Path, kind: type) -> list[Any]:
    return [record for record in RunFolder.open(folder).records() if isinstance(record, kind)]


@pytest.mark.parametrize("kind", [Trainer, StockPath])
def test_both_paths_keep_curves_verdict_and_report(kind: type[Trainer], tmp_path: Path) -> None:
    settings = {"num_train_epochs": 2, "eval_strategy": "epoch", "save_steps": 4, "logging_steps": 2}
    trainer = make_trainer(tmp_path, kind=kind, compute_metrics=accuracy, **settings)
    trainer.train()
    run = whet.Run(tmp_path)
    found = of_kind(tmp_path, Evaluation)
    assert [record.step for record in found] == [3, 6]
    assert all("f1" in record.metrics and "accuracy" in record.metrics for record in found)
    assert all((record.probe_loss is not None) == (kind is Trainer) for record in found)
    assert [record.step for record in of_kind(tmp_path, Step)] == [1, 2, 3, 4, 5, 6]
    assert [record.path for record in of_kind(tmp_path, Save)] == ["checkpoint-4", "checkpoint-6"]
    (start,) = of_kind(tmp_path, Start)
    assert (start.total_steps, start.steps_per_epoch, start.rows) == (6, 3, {"train": 24, "validation": 16})
    assert run.folder.finished
    assert run.summary()["verdict"]
    assert run.folder.config.train.batch_size == 8
    assert (tmp_path / "report.html").is_file()


def test_the_recorded_losses_are_those_of_the_logs(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, model=small_model(width=64), max_steps=3, logging_steps=1, save_strategy="no")
    trainer.train()
    logs = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert [record.loss for record in of_kind(tmp_path, Step)] == pytest.approx(logs, rel=1e-5)


def test_rows_of_the_evaluation_that_training_has_are_counted(tmp_path: Path) -> None:
    rows = make_rows(8)
    make_trainer(tmp_path, train=rows, evaluation=rows.select([0, 1]), eval_strategy="epoch", max_steps=1).train()
    assert of_kind(tmp_path, Start)[0].overlap == 1.0


def test_a_new_training_in_the_same_folder_starts_its_records_anew(tmp_path: Path) -> None:
    make_trainer(tmp_path, max_steps=4, save_strategy="no").train()
    make_trainer(tmp_path, max_steps=2, save_strategy="no").train()
    assert {record.step for record in RunFolder.open(tmp_path).records()} <= {0, 1, 2}


def test_the_end_says_why(tmp_path: Path) -> None:
    settings = {"eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "loss", "learning_rate": 1e-12}
    stopper = EarlyStoppingCallback(2, 0.5)
    make_trainer(tmp_path / "a", callbacks=[stopper], save_strategy="no", **settings).train()
    assert [record.reason for record in of_kind(tmp_path / "a", End)] == ["patience"]
    model = small_model(width=64)
    model.classifier.weight.data[0, 0] = torch.inf
    with pytest.raises(Diverged):
        make_trainer(tmp_path / "b", model=model, max_steps=2, save_strategy="no").train()
    assert [record.reason for record in of_kind(tmp_path / "b", End)] == ["diverged"]


def test_nothing_is_kept_where_it_is_not_wanted(tmp_path: Path) -> None:
    make_trainer(tmp_path, record_run=False, max_steps=1, save_strategy="no").train()
    assert not list(tmp_path.iterdir())


def test_a_folder_that_another_process_writes_costs_the_records_alone(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with folder.locked(), pytest.warns(WhetNotice, match="training goes on without it"):
        assert make_trainer(tmp_path, max_steps=1, save_strategy="no").train().global_step == 1


def test_a_push_leaves_the_run_folder_out(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, max_steps=1, save_strategy="no")
    trainer.args.push_to_hub = True
    trainer._finish_current_push = lambda: None
    trainer.train()
    assert RunFolder.open(tmp_path / "_whet").finished
