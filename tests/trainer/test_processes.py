"""A Trainer in two real processes: the training of one, one writer, and what happens when a process is struck."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import small_model
from tests.trainer.made import logged, make_rows, make_trainer, weights
from tests.trainer.ranks import run_together, values
from whet import Trainer, TrainerCallback, TrainingArguments
from whet.distributed.group import Ranks
from whet.records import Save, Step
from whet.runs.folder import RunFolder
from whet.trainer.notices import WhetNotice

# 37 rows in steps of 8: the last step has 5, which is 3 for one process and 2 for the other.
ROWS, STEPS_AN_EPOCH = 37, 5
SETTINGS: dict[str, Any] = {
    "num_train_epochs": 2,
    "gradient_accumulation_steps": 2,
    "logging_steps": 1,
    "learning_rate": 1e-3,
    "save_steps": 2,
    "save_total_limit": 3,
    "eval_strategy": "steps",
    "eval_steps": 4,
    "per_device_eval_batch_size": 3,
}


def accuracy(prediction: Any) -> dict[str, Any]:
    """With a number that every process would draw anew."""
    logits, labels = prediction
    return {"accuracy": float((logits.argmax(-1) == labels).mean()), "drawn": int.from_bytes(os.urandom(4))}


class OwnLoss(Trainer):
    """A loss that divides by the labels of the whole step, as the stock documentation shows it."""

    loss_is_scaled_for_ga = True

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        total = torch.nn.functional.cross_entropy(outputs.logits, labels, reduction="sum")
        loss = total / (len(labels) if num_items_in_batch is None else num_items_in_batch)
        return (loss, outputs) if return_outputs else loss


def padded(rows: list[Any]) -> dict[str, torch.Tensor]:
    """A collator of one's own."""
    longest = max(len(row["input_ids"]) for row in rows)
    ids = [row["input_ids"] + [0] * (longest - len(row["input_ids"])) for row in rows]
    batch = {"input_ids": torch.tensor(ids), "labels": torch.tensor([row["label"] for row in rows])}
    return {**batch, "attention_mask": (batch["input_ids"] > 0).long()}


def make(folder: Path, path: str = "packed", **others: Any) -> Trainer:
    """By each of the engine's paths, on rows that no number of processes divides; every process draws its own head."""
    model = small_model(
        width=64 if path == "fused" else 32,
        dropout=others.pop("dropout", 0.0),
        seed=int(os.environ.get("RANK", "0")),
    )
    rows = {"train": make_rows(ROWS), "evaluation": make_rows(11, seed=1)}
    kind = OwnLoss if path == "loss" else Trainer
    if path in ("loss", "collator"):
        others["data_collator"] = padded
    size = 4 // int(os.environ.get("WORLD_SIZE", "1"))
    return make_trainer(
        folder, model=model, kind=kind, **rows, per_device_train_batch_size=size, **{**SETTINGS, **others}
    )


def train_and_measure(folder: Path, path: str) -> dict[str, Any]:
    trainer = make(folder, path, compute_metrics=accuracy)
    output = trainer.train()
    few = trainer.predict(make_rows(1, seed=3))
    return {
        "losses": logged(trainer),
        "norms": logged(trainer, "grad_norm"),
        "eval_losses": logged(trainer, "eval_loss"),
        "epochs": logged(trainer, "epoch"),
        "output": output,
        "metrics": trainer.evaluate(),
        "predictions": trainer.predict(make_rows(13, seed=2)).predictions,
        "single": few.predictions,
        "weights": {name: tensor.numpy() for name, tensor in weights(trainer.model).items()},
    }


@pytest.fixture(scope="module", params=["fused", "packed", "collator", "loss"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, list[Any], Path]:
    """What one process found, what each of two found, and the folder of the folders that they wrote."""
    place = tmp_path_factory.mktemp(request.param)
    two = values(train_and_measure, place / "two", request.param)
    return train_and_measure(place / "one", request.param), two, place


def test_every_step_has_the_loss_of_one_process(both: tuple[Any, list[Any], Path]) -> None:
    one, two, _ = both
    assert len(one["losses"]) == 2 * STEPS_AN_EPOCH
    for name in ("losses", "norms", "eval_losses", "epochs"):
        np.testing.assert_allclose(two[0][name], one[name], rtol=1e-4, atol=1e-6)


def test_processes_end_with_the_same_weights(both: tuple[Any, list[Any], Path]) -> None:
    one, two, _ = both
    for name, expected in one["weights"].items():
        np.testing.assert_array_equal(two[0]["weights"][name], two[1]["weights"][name])
        if "key.bias" not in name:  # no output depends on it: its gradient is nothing but rounding
            np.testing.assert_allclose(two[0]["weights"][name], expected, rtol=1e-3, atol=2e-5)


def test_metrics_are_those_of_one_process_on_every_rank(both: tuple[Any, list[Any], Path]) -> None:
    one, two, _ = both
    assert two[0]["metrics"] == two[1]["metrics"]
    assert two[0]["output"] == two[1]["output"]
    for name in ("eval_loss", "eval_accuracy"):
        assert two[0]["metrics"][name] == pytest.approx(one["metrics"][name], rel=1e-3)


def test_predictions_are_in_input_order(both: tuple[Any, list[Any], Path]) -> None:
    one, two, _ = both
    for name in ("predictions", "single"):
        np.testing.assert_allclose(two[0][name], one[name], atol=1e-3)
        np.testing.assert_array_equal(two[0][name], two[1][name])


def test_one_process_writes(both: tuple[Any, list[Any], Path]) -> None:
    def files(folder: Path) -> set[str]:
        return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}

    place = both[2]
    assert files(place / "two") == files(place / "one")
    steps = [record.step for record in RunFolder.open(place / "two").all_records() if isinstance(record, Step)]
    assert steps == list(range(1, 2 * STEPS_AN_EPOCH + 1))
    assert RunFolder.open(place / "two").environment["processes"] == 2


class Struck(TrainerCallback):
    """One process gets a signal in the middle of a step's end."""

    def __init__(self, number: int, rank: int, step: int = 7) -> None:
        self.number, self.rank, self.step = number, rank, step

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if state.global_step == self.step and args.process_index == self.rank:
            os.kill(os.getpid(), self.number)


def final_weights(folder: Path, resume: bool = False, struck: Struck | None = None) -> dict[str, Any]:
    trainer = make(folder, "fused", dropout=0.1, callbacks=[struck] if struck else [], load_best_model_at_end=True)
    trainer.train(resume_from_checkpoint=resume or None)
    return {name: tensor.numpy() for name, tensor in weights(trainer.model).items()}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    found = values(final_weights, tmp_path_factory.mktemp("undisturbed"))
    assert all((found[0][name] == found[1][name]).all() for name in found[0])
    return found[0]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_training_goes_on_to_the_bit(rank: int, tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    told = run_together(final_weights, tmp_path / "run", False, Struck(signal.SIGKILL, rank))
    assert told[rank].exit_code == -signal.SIGKILL
    assert "is gone" in told[1 - rank].error
    for resumed in values(final_weights, tmp_path / "run", True):
        assert all((resumed[name] == undisturbed[name]).all() for name in undisturbed)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_signal_to_one_process_saves_once_and_all_leave(
    rank: int, tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    told = run_together(final_weights, tmp_path / "run", False, Struck(signal.SIGTERM, rank))
    assert "SIGTERM was received" in told[rank].error
    assert "another process of this run was told to stop" in told[1 - rank].error
    assert all("resume_from_checkpoint" in each.error for each in told)
    saved = [record for record in RunFolder.open(tmp_path / "run").all_records() if isinstance(record, Save)]
    assert [record.step for record in saved if record.reason == "interrupted"] == [7]
    for resumed in values(final_weights, tmp_path / "run", True):
        assert all((resumed[name] == undisturbed[name]).all() for name in undisturbed)


def train_until_struck(folder: Path, struck: Struck) -> None:
    make(folder, callbacks=[struck]).train()


def test_another_number_of_processes_goes_on_and_says_so(tmp_path: Path) -> None:
    told = run_together(train_until_struck, tmp_path / "run", Struck(signal.SIGTERM, 0))
    assert all("resume_from_checkpoint" in each.error for each in told)
    alone, whole = make(tmp_path / "run"), make(tmp_path / "whole")
    with pytest.warns(WhetNotice, match="processes: 2 → 1"):
        alone.train(resume_from_checkpoint=True)
    whole.train()
    np.testing.assert_allclose(logged(alone), logged(whole), rtol=1e-4)


def best_of(folder: Path) -> tuple[float, float, str | None]:
    trainer = make(folder, load_best_model_at_end=True, learning_rate=0.05, save_strategy="no")
    trainer.train()
    return min(logged(trainer, "eval_loss")), trainer.evaluate()["eval_loss"], trainer.state.best_model_checkpoint


def test_the_best_model_is_loaded_by_all(tmp_path: Path) -> None:
    found = values(best_of, tmp_path)
    for lowest, now, checkpoint in found:
        assert now == pytest.approx(lowest, rel=1e-6)
        assert Path(str(checkpoint)).is_dir()


class Broken:
    """A collator that fails in one process only."""

    def __call__(self, rows: list[Any]) -> dict[str, torch.Tensor]:
        if os.environ["RANK"] == "1":
            raise ValueError("row 7 has no mask")
        return padded(rows)


def train_broken(folder: Path) -> None:
    make(folder, data_collator=Broken()).train()


def test_an_error_of_one_process_is_named_by_the_other(tmp_path: Path) -> None:
    told = run_together(train_broken, tmp_path)
    assert told[1].error == "ValueError: row 7 has no mask"
    assert "Rank 1 stopped with ValueError: row 7 has no mask" in told[0].error


def train_on_other_rows(folder: Path) -> None:
    rank = int(os.environ["RANK"])
    make_trainer(folder, train=make_rows(24, seed=rank)).train()


def test_other_rows_in_one_process_are_refused(tmp_path: Path) -> None:
    told = run_together(train_on_other_rows, tmp_path)
    assert all("train_dataset of rank 1 are not those of rank 0" in each.error for each in told)


class Places(TrainerCallback):
    """What a callback can know of its process, and a wish of one process only."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        flags = (state.is_world_process_zero, state.is_local_process_zero)
        self.seen.append((*flags, args.process_index, args.world_size, args.local_rank))
        if state.global_step == 3 and args.process_index == 1:
            control.should_training_stop = True


def train_with_places(folder: Path) -> dict[str, Any]:
    places = Places()
    trainer = make(folder, callbacks=[places], log_level="passive", report_to="tensorboard")
    output = trainer.train()
    trainer.log_metrics("train", output.metrics)
    trainer.save_metrics("train", output.metrics)
    trainer.save_model(folder / "model")
    return {"seen": places.seen, "steps": output.global_step, "zero": trainer.is_world_process_zero()}


def test_callbacks_run_everywhere_and_one_process_speaks(tmp_path: Path) -> None:
    told = run_together(train_with_places, tmp_path)
    assert not [each.error for each in told if each.error]
    assert [each.value["zero"] for each in told] == [True, False]
    assert [set(each.value["seen"]) for each in told] == [{(True, True, 0, 2, 0)}, {(False, False, 1, 2, 1)}]
    assert "step" in told[0].printed
    assert told[1].printed == ""
    assert len(list((tmp_path / "runs").glob("events.*"))) == 1
    assert (tmp_path / "model" / "config.json").is_file()


def test_a_stop_that_one_process_asks_for_stops_all(tmp_path: Path) -> None:
    assert [each["steps"] for each in values(train_with_places, tmp_path)] == [3, 3]


class Normed(torch.nn.Module):
    """A model of one's own, with running statistics and a head that only some steps use."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm = torch.nn.Embedding(400, 8), torch.nn.BatchNorm1d(8)
        self.head, self.other = torch.nn.Linear(8, 2), torch.nn.Linear(8, 2)
        self.passes = 0

    def forward(self, input_ids: Any, attention_mask: Any = None, labels: Any = None) -> dict[str, Any]:
        self.passes += self.training
        means = self.norm(self.embedding(input_ids).mean(dim=1))
        logits = self.head(means) + (self.other(means) if self.passes > 4 else 0)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def train_normed(folder: Path) -> dict[str, Any]:
    trainer = make_trainer(
        folder, model=Normed(), train=make_rows(32), data_collator=padded, per_device_train_batch_size=4, save_steps=4
    )
    trainer.train()
    return {name: tensor.numpy() for name, tensor in weights(trainer.model).items()}


def test_a_model_of_ones_own_stays_the_same_everywhere(tmp_path: Path) -> None:
    first, second = values(train_normed, tmp_path)
    assert all((first[name] == second[name]).all() for name in first)


def prepare_in_turn(folder: Path) -> float:
    args = TrainingArguments(str(folder), use_cpu=True)
    made = folder / "made"
    with args.main_process_first():
        if args.process_index == 0:
            made.write_text("by the main process")
        return float(made.exists())


def test_the_main_process_goes_first_where_asked(tmp_path: Path) -> None:
    assert values(prepare_in_turn, tmp_path) == [1.0, 1.0]


def test_batches_to_look_at_are_the_process_own(tmp_path: Path) -> None:
    rows = make_rows(11)
    trainer = make_trainer(tmp_path, train=rows, evaluation=rows, per_device_eval_batch_size=2, data_collator=padded)
    shares = []
    for rank in range(2):
        trainer.ranks = Ranks(rank, 2)
        shares.append([len(batch["labels"]) for batch in trainer.get_eval_dataloader()])
    assert shares == [[2, 2, 2], [2, 2, 1]]
