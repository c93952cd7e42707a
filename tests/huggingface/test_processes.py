"""A Trainer in two real processes: the library's training under DDP, one writer, and what a struck process does."""

from __future__ import annotations

import inspect
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from tests.conftest import small_model
from tests.huggingface.made import logged, make_rows, make_trainer, padding_tokenizer, weights
from tests.huggingface.ranks import run_together, values
from whet import Trainer, TrainerCallback
from whet.records import Save, Step
from whet.runs.folder import RunFolder

# 37 rows in batches of 2 in two processes, two batches a step: the last step has fewer.
ROWS, STEPS_AN_EPOCH = 37, 5
SETTINGS: dict[str, Any] = {
    "num_train_epochs": 2,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "logging_steps": 1,
    "learning_rate": 1e-3,
    "save_steps": 2,
    "save_total_limit": 3,
    "eval_strategy": "steps",
    "eval_steps": 4,
    "per_device_eval_batch_size": 3,
}

LOADS = inspect.getsource(transformers.Trainer._load_optimizer_and_scheduler)
resumes = pytest.mark.skipif(
    "map_location = self.args.device if self.args.world_size > 1" in LOADS,
    reason="this version of transformers cannot read an optimizer's state in several processes on the CPU",
)


def accuracy(prediction: Any) -> dict[str, Any]:
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def make(folder: Path, path: str = "packed", kind: Any = Trainer, **others: Any) -> Any:
    """By each of the engine's paths, on rows that no number of processes divides; every process draws its own head."""
    width, dropout = 64 if path == "fused" else 32, others.pop("dropout", 0.0)
    model = small_model(width=width, dropout=dropout, seed=int(os.environ.get("RANK", "0")))
    rows = {"train": make_rows(ROWS), "evaluation": make_rows(11, seed=1)}
    return make_trainer(folder, model=model, kind=kind, **rows, **{**SETTINGS, **others})


def train_and_measure(folder: Path, path: str, kind: Any, smoothing: float) -> dict[str, Any]:
    trainer = make(folder, path, kind, compute_metrics=accuracy, label_smoothing_factor=smoothing)
    output = trainer.train()
    return {
        "path": getattr(trainer, "path", ""),
        **{name: logged(trainer, name) for name in ("loss", "grad_norm", "eval_loss", "eval_accuracy", "epoch")},
        "train_loss": output.training_loss,
        "predictions": trainer.predict(make_rows(13, seed=2)).predictions,
        "single": trainer.predict(make_rows(1, seed=3)).predictions,
        "weights": {name: tensor.numpy() for name, tensor in weights(trainer.model).items()},
        "files": sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()),
    }


@pytest.fixture(scope="module", params=[("fused", 0.0), ("fused", 0.2), ("packed", 0.0)], ids=str)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], list[Any], Path]:
    """What each of two processes found with either class, and the folder of whet's."""
    (path, smoothing), place = request.param, tmp_path_factory.mktemp("processes")
    stock = values(train_and_measure, place / "stock", path, transformers.Trainer, smoothing)
    ours = values(train_and_measure, place / "ours", path, Trainer, smoothing)
    assert [each["path"].split()[0] for each in ours] == [path, path]
    return ours, stock, place / "ours"


def test_every_step_is_the_librarys_under_ddp(both: tuple[list[Any], list[Any], Path]) -> None:
    ours, stock, _ = both
    assert len(ours[0]["loss"]) == 2 * STEPS_AN_EPOCH
    for name in ("loss", "grad_norm", "eval_loss", "eval_accuracy", "epoch", "train_loss"):
        np.testing.assert_allclose(ours[0][name], stock[0][name], rtol=1e-4, atol=1e-6, err_msg=name)


def test_processes_end_with_the_same_weights(both: tuple[list[Any], list[Any], Path]) -> None:
    ours, stock, _ = both
    for name, expected in stock[0]["weights"].items():
        np.testing.assert_array_equal(ours[0]["weights"][name], ours[1]["weights"][name])
        if "key.bias" not in name:  # no output depends on it: its gradient is nothing but rounding
            np.testing.assert_allclose(ours[0]["weights"][name], expected, rtol=1e-3, atol=2e-5)


def test_predictions_are_in_input_order_everywhere(both: tuple[list[Any], list[Any], Path]) -> None:
    ours, stock, _ = both
    for name in ("predictions", "single"):
        np.testing.assert_allclose(ours[0][name], stock[0][name], atol=1e-4)
        np.testing.assert_array_equal(ours[0][name], ours[1][name])


def test_one_process_writes(both: tuple[list[Any], list[Any], Path]) -> None:
    ours, stock, folder = both
    newest = [{name for name in each[0]["files"] if name.startswith("checkpoint-10/")} for each in (ours, stock)]
    assert newest[0] == newest[1] | {"checkpoint-10/manifest.json"}
    steps = [record.step for record in RunFolder.open(folder).all_records() if isinstance(record, Step)]
    assert steps == list(range(1, 2 * STEPS_AN_EPOCH + 1))
    assert RunFolder.open(folder).environment["processes"] == 2


class Struck(TrainerCallback):
    """One process gets a signal in the middle of a step's end."""

    def __init__(self, number: int, rank: int, step: int = 7) -> None:
        self.number, self.rank, self.step = number, rank, step

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if state.global_step == self.step and args.process_index == self.rank:
            os.kill(os.getpid(), self.number)


NEVER = Struck(0, rank=-1)
"""The same callback without a signal: one that looks at each step adds words to the sum behind the gradient's norm."""


def final_weights(folder: Path, resume: bool = False, struck: Struck = NEVER) -> dict[str, Any]:
    trainer = make(folder, "fused", dropout=0.1, callbacks=[struck])
    trainer.train(resume_from_checkpoint=resume or None)
    return {name: tensor.numpy() for name, tensor in weights(trainer.model).items()}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    found = values(final_weights, tmp_path_factory.mktemp("undisturbed"))
    assert all((found[0][name] == found[1][name]).all() for name in found[0])
    return found[0]


@resumes
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_training_goes_on_to_the_bit(rank: int, tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    told = run_together(final_weights, tmp_path / "run", False, Struck(signal.SIGKILL, rank))
    assert told[rank].exit_code == -signal.SIGKILL
    assert "is gone" in told[1 - rank].error or "no longer reaches" in told[1 - rank].error
    for resumed in values(final_weights, tmp_path / "run", True):
        assert all((resumed[name] == undisturbed[name]).all() for name in undisturbed)


@resumes
@pytest.mark.parametrize("rank", [0, 1])
def test_a_signal_to_one_process_saves_once_and_all_leave(
    rank: int, tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    told = run_together(final_weights, tmp_path / "run", False, Struck(signal.SIGTERM, rank))
    assert "SIGTERM was received" in told[rank].error
    assert "another process of this run was told to stop" in told[1 - rank].error
    assert all("resume_from_checkpoint" in each.error for each in told)
    saved = [record for record in RunFolder.open(tmp_path / "run").all_records() if isinstance(record, Save)]
    assert [(record.step, record.reason) for record in saved][-2:] == [(6, "schedule"), (7, "interrupted")]
    for resumed in values(final_weights, tmp_path / "run", True):
        assert all((resumed[name] == undisturbed[name]).all() for name in undisturbed)


class Broken:
    """A collator that fails in one process only."""

    def __call__(self, rows: list[Any]) -> Any:
        if os.environ["RANK"] == "1":
            raise ValueError("row 7 has no mask")
        return transformers.DataCollatorWithPadding(padding_tokenizer())(rows)


def train_broken(folder: Path) -> None:
    make(folder, data_collator=Broken()).train()


def test_an_error_of_one_process_is_named_by_the_other(tmp_path: Path) -> None:
    told = run_together(train_broken, tmp_path)
    assert told[1].error == "ValueError: row 7 has no mask"
    assert "Rank 1 stopped with ValueError: row 7 has no mask" in told[0].error


def train_on_other_rows(folder: Path) -> None:
    rank = int(os.environ["RANK"])
    make_trainer(folder, train=make_rows(24, seed=rank), save_strategy="no").train()


def test_other_rows_in_one_process_are_refused(tmp_path: Path) -> None:
    told = run_together(train_on_other_rows, tmp_path)
    assert all("train_dataset of rank 1 are not those of rank 0" in each.error for each in told)


class StopsOne(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if state.global_step == 3 and args.process_index == 1:
            control.should_training_stop = True


def train_and_stop(folder: Path) -> int:
    return int(make(folder, callbacks=[StopsOne()]).train().global_step)


def test_a_stop_that_one_process_asks_for_stops_all(tmp_path: Path) -> None:
    assert values(train_and_stop, tmp_path) == [3, 3]


class Normed(torch.nn.Module):
    """A model of one's own."""

    def __init__(self) -> None:
        super().__init__()
        self.config = transformers.PreTrainedConfig()  # the library asks for it under DDP
        torch.manual_seed(0)
        self.embedding, self.head = torch.nn.Embedding(400, 8), torch.nn.Linear(8, 2)

    def forward(self, input_ids: Any, attention_mask: Any = None, labels: Any = None) -> dict[str, Any]:
        logits = self.head(self.embedding(input_ids).mean(dim=1))
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def train_own_model(folder: Path, kind: Any) -> tuple[str, dict[str, Any]]:
    settings = {"per_device_train_batch_size": 4, "max_steps": 4, "save_strategy": "no"}
    trainer = make_trainer(folder, model=Normed(), train=make_rows(32), kind=kind, **settings)
    trainer.train()
    return getattr(trainer, "path", ""), {name: tensor.numpy() for name, tensor in weights(trainer.model).items()}


def test_the_librarys_loop_trains_under_ddp_as_it_does(tmp_path: Path) -> None:
    ours = values(train_own_model, tmp_path / "ours", Trainer)
    stock = values(train_own_model, tmp_path / "stock", transformers.Trainer)
    assert ours[0][0] == "stock (the model is a Normed) from step 0"
    for name, expected in stock[0][1].items():
        np.testing.assert_array_equal(ours[0][1][name], expected)
        np.testing.assert_array_equal(ours[1][1][name], expected)
