"""What both Trainers give back and leave on disk is the same."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import whet
from tests.huggingface.made import padding_tokenizer
from tests.huggingface.parity import COMMON, EVERY_TWO, FUSED, ROWS, Use, accuracy, compare, rows_of, run, same

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")

OUTPUTS: dict[str, Callable[[Any], Any]] = {
    "evaluate": lambda trainer: trainer.evaluate(),
    "evaluate other rows": lambda trainer: trainer.evaluate(rows_of("binary", 5, 3), metric_key_prefix="other"),
    "predict": lambda trainer: tuple(trainer.predict(rows_of("binary", 9, 4))),
    "predict without labels": lambda trainer: (
        trainer.predict(rows_of("binary", 9, 4).remove_columns(["label"])).predictions
    ),
    "train again": lambda trainer: tuple(trainer.train())[:2],
    "a batch of training": lambda trainer: dict(next(iter(trainer.get_train_dataloader()))),
    "a batch of evaluation": lambda trainer: dict(next(iter(trainer.get_eval_dataloader()))),
    "resume from the newest": lambda trainer: resumed(trainer),
    "learning rates": lambda trainer: trainer.get_learning_rates() if hasattr(trainer, "get_learning_rates") else [],
    "decaying parameters": lambda trainer: sorted(trainer.get_decay_parameter_names(trainer.model)),
    "save_model": lambda trainer: files_after(trainer, lambda: trainer.save_model()),
    "save_state": lambda trainer: files_after(trainer, trainer.save_state),
    "save_metrics": lambda trainer: files_after(trainer, lambda: trainer.save_metrics("train", {"a": 1.0})),
}


def resumed(trainer: Any) -> Any:
    trainer.args.max_steps, trainer.args.save_strategy = 3, "steps"
    trainer.args.save_steps = 3
    trainer.train()
    trainer.args.max_steps = 5
    return tuple(trainer.train(resume_from_checkpoint=True))[:2]


def files_after(trainer: Any, act: Callable[[], Any]) -> list[str]:
    act()
    return sorted(path.name for path in Path(trainer.args.output_dir).iterdir())


@pytest.mark.parametrize("name", list(OUTPUTS))
def test_an_output_is_the_librarys(name: str, tmp_path: Path) -> None:
    compare(Use("fused from step", {}, lambda: {"compute_metrics": accuracy}, after=OUTPUTS[name]), tmp_path)


def test_a_checkpoint_has_the_librarys_files_and_states(tmp_path: Path) -> None:
    ours, stock = compare(Use(FUSED, {**EVERY_TWO, "weight_decay": 0.1}), tmp_path)
    mine, theirs = (Path(each.args.output_dir) / "checkpoint-4" for each in (ours, stock))
    assert {path.name for path in mine.iterdir()} == {path.name for path in theirs.iterdir()} | {"manifest.json"}
    states = [json.loads((folder / "trainer_state.json").read_text()) for folder in (mine, theirs)]
    same(states[0], states[1], "trainer_state")
    moments = [torch.load(folder / "optimizer.pt") for folder in (mine, theirs)]
    assert moments[0]["param_groups"] == moments[1]["param_groups"]
    for index, expected in moments[1]["state"].items():
        for kind, tensor in expected.items():
            found = moments[0]["state"][index][kind]
            assert found.dtype == tensor.dtype
            torch.testing.assert_close(found, tensor, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("bases", [(whet.Trainer, transformers.Trainer), (transformers.Trainer, whet.Trainer)])
@pytest.mark.parametrize("step", [2, 4])
def test_either_class_goes_on_from_a_checkpoint_of_the_other(bases: Any, step: int, tmp_path: Path) -> None:
    use = Use(FUSED, {"max_steps": 7, "save_strategy": "steps", "save_steps": 2})
    first, second = bases
    run(use, first, tmp_path / "first")
    whole = run(use, transformers.Trainer, tmp_path / "whole")
    again = copy.copy(use)
    arguments = whet.TrainingArguments if second is whet.Trainer else transformers.TrainingArguments
    more = {"bf16": False} if second is whet.Trainer else {}
    given = {"train_dataset": rows_of("binary", ROWS), "processing_class": padding_tokenizer()}
    trainer = second(again.model(), arguments(str(tmp_path / "again"), **{**COMMON, **use.args, **more}), **given)
    trainer.remove_callback(transformers.PrinterCallback)
    torch.manual_seed(11)
    trainer.train(resume_from_checkpoint=str(tmp_path / "first" / f"checkpoint-{step}"))
    entries = [[dict(sorted(entry.items())) for entry in each.state.log_history] for each in (trainer, whole)]
    for entry in (entries[0][-1], entries[1][-1]):
        del entry["train_loss"]  # a mean over the steps of one call
    same(*entries, "log_history")
    for name, tensor in trainer.model.state_dict().items():
        if not name.endswith("key.bias"):
            same(tensor, whole.model.state_dict()[name], name)
