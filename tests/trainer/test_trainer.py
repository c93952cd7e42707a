"""Trainer: what it gives back, what it writes, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import whet
from tests.conftest import small_model
from tests.trainer.made import QUIET, logged, make_rows, make_trainer, weights
from whet import Trainer, TrainerCallback, TrainingArguments
from whet.errors import DataError, UsageError
from whet.records import Evaluation
from whet.runs.folder import RunFolder
from whet.trainer.notices import NotHere, UnknownArgument, WhetNotice


def accuracy(prediction: Any) -> dict[str, Any]:
    logits, labels = prediction
    return {"accuracy": (logits.argmax(-1) == labels).mean()}


def test_train_gives_the_stock_result(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, max_steps=4, logging_steps=2, save_strategy="no")
    output = trainer.train()
    assert output.global_step == 4
    assert output.training_loss == pytest.approx(np.mean(logged(trainer)), rel=1e-9)
    assert output.metrics["train_loss"] == output.training_loss
    assert {"train_runtime", "train_samples_per_second", "epoch"} <= set(output.metrics)


def test_evaluate_has_the_loss_and_the_metrics_given(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, compute_metrics=accuracy)
    found = trainer.evaluate()
    assert {"eval_loss", "eval_accuracy", "eval_runtime", "epoch"} <= set(found)
    assert isinstance(found["eval_accuracy"], float)
    assert trainer.state.log_history[-1]["eval_loss"] == found["eval_loss"]


def test_predict_is_a_named_tuple_in_input_order(tmp_path: Path) -> None:
    trainer, rows = make_trainer(tmp_path), make_rows(11)
    predictions, label_ids, metrics = trainer.predict(rows)
    assert predictions.shape == (11, 2)
    assert label_ids.tolist() == rows["label"][:]
    alone = np.concatenate([trainer.predict(rows.select([row])).predictions for row in range(11)])
    assert predictions == pytest.approx(alone, abs=1e-5)
    assert "test_loss" in metrics


def test_predict_works_without_labels_and_with_secret_ones(tmp_path: Path) -> None:
    trainer, rows = make_trainer(tmp_path), make_rows(5)
    without = trainer.predict(rows.remove_columns(["label"]))
    secret = trainer.predict(rows.remove_columns(["label"]).add_column("label", [-1] * 5))
    assert without.label_ids is None
    assert "test_loss" not in without.metrics | secret.metrics
    assert np.array_equal(without.predictions, secret.predictions)


def test_several_evaluation_sets_are_named(tmp_path: Path) -> None:
    sets = {"near": make_rows(6, seed=1), "far": make_rows(6, seed=2)}
    args = {"max_steps": 1, "eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "far_loss"}
    trainer = make_trainer(tmp_path, evaluation=sets, **args)
    trainer.train()
    assert {"eval_near_loss", "eval_far_loss"} <= {name for entry in trainer.state.log_history for name in entry}
    assert trainer.state.best_metric == pytest.approx(logged(trainer, "eval_far_loss")[0])


@pytest.mark.parametrize("kind", ["binary", "multilabel", "regression"])
def test_every_task_trains(kind: str, tmp_path: Path) -> None:
    model = small_model(labels=1 if kind == "regression" else 2)
    rows = {"train": make_rows(kind=kind), "evaluation": make_rows(8, kind=kind)}
    trainer = make_trainer(tmp_path, model=model, **rows, max_steps=3, learning_rate=1e-3, logging_steps=1)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < before
    problem = {"binary": "single_label_classification", "multilabel": "multi_label_classification"}
    assert model.config.problem_type == problem.get(kind, "regression")


@pytest.mark.parametrize("width", [32, 64])
def test_the_model_itself_holds_the_trained_weights(width: int, tmp_path: Path) -> None:
    model = small_model(width=width)
    trainer = make_trainer(tmp_path, model=model, max_steps=3, learning_rate=1e-2)
    trainer.train()
    row = make_rows(1, seed=9)  # with tokens that training never saw
    batch = {name: torch.tensor(row[name][:]) for name in ("input_ids", "token_type_ids", "attention_mask")}
    with torch.no_grad():
        expected = model.eval()(**batch).logits.numpy()
    assert trainer.predict(row).predictions == pytest.approx(expected, abs=1e-5)


def test_output_dir_is_a_run_folder(tmp_path: Path) -> None:
    make_trainer(tmp_path / "out", num_train_epochs=2, eval_strategy="epoch", compute_metrics=accuracy).train()
    run = whet.Run(tmp_path / "out")
    found = [record for record in run.records if isinstance(record, Evaluation)]
    assert [record.step for record in found] == [3, 6]
    assert all(record.probe_loss is not None and "f1" in record.metrics for record in found)
    assert run.folder.finished
    assert run.summary()["verdict"]
    assert run.folder.config.train.batch_size == 8


def test_a_new_training_in_the_same_folder_starts_its_records_anew(tmp_path: Path) -> None:
    make_trainer(tmp_path, max_steps=4).train()
    make_trainer(tmp_path, max_steps=2).train()
    assert {record.step for record in RunFolder.open(tmp_path).records()} <= {0, 1, 2}


def test_label_names_come_from_the_data(tmp_path: Path) -> None:
    from datasets import ClassLabel

    rows = make_rows().cast_column("label", ClassLabel(names=["different", "same"]))
    trainer = make_trainer(tmp_path, train=rows)
    assert trainer.model.config.id2label == {0: "different", 1: "same"}


def test_save_model_is_a_standard_folder(tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    trainer = make_trainer(tmp_path, max_steps=2)
    trainer.train()
    trainer.save_model(tmp_path / "saved")
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved")
    assert all(torch.equal(weights(loaded)[name], each) for name, each in weights(trainer.model).items())


def test_model_init_starts_every_training_anew(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, model_init=small_model, max_steps=2)
    first = trainer.train().training_loss
    assert trainer.train().training_loss == first


def test_optimizer_and_schedule_of_ones_own_are_used(tmp_path: Path) -> None:
    model = small_model()
    optimizer = torch.optim.SGD(
        [{"params": model.bert.parameters(), "lr": 0.0}, {"params": model.classifier.parameters(), "lr": 0.5}]
    )
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    before = weights(model)
    trainer = make_trainer(tmp_path, model=model, optimizers=(optimizer, schedule), max_steps=3)
    trainer.train()
    assert [group["lr"] for group in optimizer.param_groups] == [0.0, 0.0625]
    after = weights(model)
    assert torch.equal(before["bert.pooler.dense.weight"], after["bert.pooler.dense.weight"])
    assert not torch.equal(before["classifier.weight"], after["classifier.weight"])


def test_create_optimizer_can_be_overridden(tmp_path: Path) -> None:
    class Mine(Trainer):
        def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
            return self.optimizer

    trainer = make_trainer(tmp_path, kind=Mine, max_steps=2)
    trainer.train()
    assert isinstance(trainer.callback_handler.optimizer, torch.optim.SGD)


def test_a_schedule_of_plateaus_follows_the_evaluations(tmp_path: Path) -> None:
    settings = {"lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": {"patience": 0, "factor": 0.1}}
    args = {"eval_strategy": "steps", "eval_steps": 1, "learning_rate": 1e-6, "max_steps": 4, "logging_steps": 1}
    trainer = make_trainer(tmp_path, metric_for_best_model="accuracy", **settings, **args)
    trainer.train()
    assert logged(trainer, "learning_rate")[-1] < logged(trainer, "learning_rate")[0]


@pytest.mark.parametrize("name", ["polynomial", "cosine_with_restarts", "inverse_sqrt", "constant_with_warmup"])
def test_every_stock_schedule_works(name: str, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, lr_scheduler_type=name, warmup_steps=2, max_steps=3, logging_steps=1)
    trainer.train()
    assert logged(trainer, "learning_rate")[0] == 0.0


def test_a_collator_of_ones_own_sees_only_what_the_model_takes(tmp_path: Path) -> None:
    seen: set[str] = set()

    def collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        seen.update(*rows)
        ids = torch.tensor([row["input_ids"][:4] for row in rows])
        return {"input_ids": ids, "labels": torch.tensor([row["label"] for row in rows])}

    trainer = make_trainer(tmp_path, data_collator=collate, max_steps=2)
    trainer.train()
    assert "input_ids" in seen
    assert "sentence1" not in seen
    assert trainer.evaluate()["eval_loss"] > 0


def test_a_module_of_ones_own_trains(tmp_path: Path) -> None:
    class Bag(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.EmbeddingBag(400, 2)

        def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
            logits = self.table(input_ids)
            return (torch.nn.functional.cross_entropy(logits, labels), logits) if labels is not None else logits

    rows = make_rows(24).map(lambda row: {"input_ids": row["input_ids"][:4]})
    trainer = make_trainer(tmp_path, model=Bag(), train=rows, evaluation=rows, max_steps=4, learning_rate=0.1)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < before
    trainer.save_model(tmp_path / "saved")
    assert (tmp_path / "saved" / "model.safetensors").is_file()


def test_train_loader_gives_the_batches_of_training(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, per_device_train_batch_size=4)
    trainer.data_collator = lambda rows: {"input_ids": torch.tensor([row["input_ids"][:4] for row in rows])}
    batches = list(trainer.get_train_dataloader())
    assert len(batches) == 6
    assert batches[0]["input_ids"].shape == (4, 4)


def test_a_half_precision_model_is_trained_in_float32(tmp_path: Path) -> None:
    with pytest.warns(WhetNotice, match="float32"):
        trainer = make_trainer(tmp_path, model=small_model().half())
    assert next(trainer.model.parameters()).dtype == torch.float32


def test_metrics_are_written_and_logged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = make_trainer(tmp_path)
    trainer.log_metrics("eval", {"eval_loss": 0.5})
    trainer.save_metrics("eval", {"eval_loss": 0.5})
    trainer.save_metrics("train", {"train_loss": 0.25})
    assert "eval_loss = 0.5000" in capsys.readouterr().out
    assert json.loads((tmp_path / "all_results.json").read_text()) == {"eval_loss": 0.5, "train_loss": 0.25}


def test_one_tidy_line_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_trainer(tmp_path, max_steps=2, logging_steps=1, log_level="passive").train()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("step 1/2  epoch 0.33  loss 0.")


def test_tokenizer_is_taken_as_processing_class_with_one_notice(tmp_path: Path) -> None:
    args, tokenizer = TrainingArguments(str(tmp_path), **QUIET), object()
    with pytest.warns(WhetNotice, match="processing_class") as heard:
        trainer = Trainer(small_model(), args, tokenizer=tokenizer)
    assert trainer.processing_class is tokenizer
    assert len(heard) == 1


def test_stock_arguments_are_taken(tmp_path: Path) -> None:
    from transformers import TrainingArguments as Stock

    trainer = Trainer(small_model(), Stock(str(tmp_path), use_cpu=True, learning_rate=1e-4))
    assert trainer.args.learning_rate == 1e-4


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"eval_strategy": "epoch", "evaluation": None}, "eval_dataset"),
        ({"load_best_model_at_end": True}, "eval_strategy"),
        ({"save_strategy": "best"}, "metric_for_best_model"),
    ],
)
def test_settings_that_contradict_are_refused(settings: dict[str, Any], match: str, tmp_path: Path) -> None:
    args = TrainingArguments(str(tmp_path), **{k: v for k, v in settings.items() if k != "evaluation"})
    given = {} if "evaluation" in settings else {"eval_dataset": make_rows(4)}
    with pytest.raises(UsageError, match=match):
        Trainer(small_model(), args, train_dataset=make_rows(4), **given)


def test_wrong_arguments_name_the_right_one(tmp_path: Path) -> None:
    with pytest.raises(UnknownArgument, match="train_dataset"):
        Trainer(small_model(), TrainingArguments(str(tmp_path)), train_datasets=make_rows(4))
    with pytest.raises(UnknownArgument, match="resume_from_checkpoint"):
        make_trainer(tmp_path).train(resume_from_checkpoints=True)


def test_overriding_what_is_never_called_is_refused(tmp_path: Path) -> None:
    class Mine(Trainer):
        def get_train_dataloader(self) -> Any:
            return []

    with pytest.raises(UsageError, match="get_train_dataloader"):
        make_trainer(tmp_path, kind=Mine)


def test_what_is_not_here_says_what_to_use(tmp_path: Path) -> None:
    with pytest.raises(NotHere, match="push_to_hub"):
        make_trainer(tmp_path).push_to_hub()


def test_a_label_without_an_output_names_its_row(tmp_path: Path) -> None:
    rows = make_rows(6).remove_columns(["label"]).add_column("label", [0, 1, 0, 7, 1, 0])
    with pytest.raises(DataError, match=r"Row 3 .* label 7"):
        make_trainer(tmp_path, train=rows).train()


def test_data_that_was_not_tokenised_says_so(tmp_path: Path) -> None:
    rows = make_rows(6).select_columns(["sentence1", "label"])
    trainer = make_trainer(tmp_path, train=rows.select_columns(["sentence1"]))
    with pytest.raises(DataError, match="Tokenise first"):
        trainer.train()


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        (["a", "b"], "Row 0 of train_dataset is 'a', not a dictionary of model inputs. Tokenise"),
        ([{"input_ids": [1, 2], "label": 0}, None], "Row 1 of train_dataset is None, not a dictionary"),
        ("reviews.csv", "train_dataset is 'reviews.csv', which is not a data set"),
        ([{"text": "a", "label": 1}], "None of the columns 'text', 'label' is an input of the model"),
    ],
)
def test_rows_that_are_no_inputs_are_shown(rows: Any, match: str, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, train=rows)
    with pytest.raises(UsageError, match=match):
        trainer.train()


def test_a_collator_of_ones_own_may_take_any_rows(tmp_path: Path) -> None:
    def collate(rows: list[str]) -> dict[str, torch.Tensor]:
        ids = torch.tensor([[5 + len(row)] * 3 for row in rows])
        return {"input_ids": ids, "labels": torch.zeros(len(rows), dtype=torch.long)}

    trainer = make_trainer(tmp_path, train=["a", "bc"], save_strategy="no", data_collator=collate, max_steps=1)
    assert trainer.train().global_step == 1


def test_a_metric_that_nobody_computes_is_named_at_the_first_evaluation(tmp_path: Path) -> None:
    args = {"eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "acuracy"}
    with pytest.raises(UsageError, match="Did you mean 'accuracy'"):
        make_trainer(tmp_path, max_steps=2, **args).train()


def test_wild_losses_stop_before_the_weights_are_harmed(tmp_path: Path) -> None:
    from whet.errors import Diverged

    trainer = make_trainer(tmp_path, max_steps=200, learning_rate=9.0, max_grad_norm=0.0)
    with pytest.raises(Diverged, match="learning_rate"):
        trainer.train()
    assert all(torch.isfinite(each).all() for each in weights(trainer.model).values() if each.is_floating_point())


def test_callbacks_that_look_at_gradients_find_them(tmp_path: Path) -> None:
    norms = []

    class Look(TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **others: Any) -> None:
            norms.append(float(model.classifier.weight.grad.norm()))

    make_trainer(tmp_path, model=small_model(width=64), callbacks=[Look()], max_steps=2).train()
    assert len(norms) == 2
    assert min(norms) > 0


def test_gradient_checkpointing_trains_the_same(tmp_path: Path) -> None:
    losses = []
    for checkpointing in (False, True):
        folder = tmp_path / str(checkpointing)
        trainer = make_trainer(folder, gradient_checkpointing=checkpointing, max_steps=3, logging_steps=1)
        trainer.train()
        losses.append(logged(trainer))
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_frozen_weights_stay(tmp_path: Path) -> None:
    model = small_model(width=64)
    for parameter in model.bert.parameters():
        parameter.requires_grad = False
    before = weights(model)
    make_trainer(tmp_path, model=model, max_steps=2, learning_rate=1e-2).train()
    changed = {name for name, each in weights(model).items() if not torch.equal(each, before[name])}
    assert changed == {"classifier.weight", "classifier.bias"}


def test_hooks_on_the_model_are_called(tmp_path: Path) -> None:
    model, calls = small_model(width=64), []
    model.bert.encoder.layer[0].register_forward_hook(lambda *_: calls.append(1))
    make_trainer(tmp_path, model=model, max_steps=2, eval_strategy="no").train()
    assert len(calls) == 2


def test_rows_of_like_length_can_be_taken_together(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, train_sampling_strategy="group_by_length", max_steps=2)
    assert trainer.train().global_step == 2
    lengths = [len(row["input_ids"]) for row in trainer.train_dataset]
    order = trainer.get_train_dataloader().batch_sampler.batches
    spread = np.mean([np.std([lengths[row] for row in batch]) for batch in order])
    assert spread < np.std(lengths)


@pytest.mark.filterwarnings("ignore:Trainer. bf16 was asked for")
def test_bf16_trains_close_to_float32(tmp_path: Path) -> None:
    losses = []
    for bf16 in (False, True):
        trainer = make_trainer(tmp_path / str(bf16), bf16=bf16, max_steps=3, logging_steps=1)
        trainer.train()
        losses.append(logged(trainer))
    assert losses[1] == pytest.approx(losses[0], abs=0.02)
    assert losses[1] != losses[0]
