"""What `whet.Trainer` adds to the library's, and where it differs on purpose. `test_parity_*.py`: what is the same."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from tests.conftest import small_model
from tests.huggingface.made import QUIET, logged, make_rows, make_trainer, padding_tokenizer, weights
from whet import Trainer, TrainerCallback, TrainingArguments
from whet.engine.notices import WhetNotice
from whet.errors import Diverged

SHORT: dict[str, Any] = {"save_strategy": "no", "logging_steps": 1}


def test_it_is_a_stock_trainer(tmp_path: Path) -> None:
    assert isinstance(make_trainer(tmp_path), transformers.Trainer)


def test_stock_arguments_are_taken(tmp_path: Path) -> None:
    args = transformers.TrainingArguments(str(tmp_path), use_cpu=True, max_steps=1, disable_tqdm=True)
    trainer = Trainer(small_model(), args, train_dataset=make_rows(8), processing_class=padding_tokenizer())
    trainer.remove_callback(transformers.PrinterCallback)
    assert trainer.train().global_step == 1


def test_tokenizer_is_taken_as_processing_class_with_one_notice(tmp_path: Path) -> None:
    args, tokenizer = TrainingArguments(str(tmp_path), **QUIET), padding_tokenizer()
    with pytest.warns(WhetNotice, match="processing_class") as heard:
        trainer = Trainer(small_model(), args, tokenizer=tokenizer)
    assert trainer.processing_class is tokenizer
    assert len(heard) == 1
    with pytest.warns(WhetNotice, match="processing_class"):
        assert trainer.tokenizer is tokenizer


def test_a_subclass_may_keep_a_tokenizer_of_its_own(tmp_path: Path) -> None:
    class Mine(Trainer):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            self.tokenizer = "mine"

    assert Mine(small_model(), TrainingArguments(str(tmp_path), **QUIET)).tokenizer == "mine"


def old_trainer() -> type[Trainer]:
    class OwnLoss(Trainer):
        """As people wrote it for transformers 4."""

        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False) -> Any:
            labels = inputs.pop("labels")
            outputs = model(**inputs)
            loss = torch.nn.functional.cross_entropy(outputs.logits, labels)
            return (loss, outputs) if return_outputs else loss

    return OwnLoss


def test_an_old_compute_loss_trains_by_the_mean_of_all_micro_batches(tmp_path: Path) -> None:
    with pytest.warns(WhetNotice, match="does not take num_items_in_batch"):
        kind = old_trainer()
    losses = []
    for size, accumulate in ((8, 1), (4, 2)):
        settings = {"per_device_train_batch_size": size, "gradient_accumulation_steps": accumulate}
        trainer = make_trainer(tmp_path, kind=kind, max_steps=2, **SHORT, **settings)
        trainer.train()
        assert trainer.evaluate()["eval_loss"] > 0
        losses.append(logged(trainer))
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_methods_in_old_signatures_are_called_without_what_was_added(tmp_path: Path) -> None:
    with pytest.warns(WhetNotice, match="it is called without it") as heard:

        class Old(Trainer):
            """As people wrote it for transformers 4."""

            def training_step(self, model: Any, inputs: Any) -> Any:
                return super().training_step(model, inputs)

            def log(self, logs: Any) -> None:
                super().log({**logs, "mine": 1.0})

            def _get_train_sampler(self) -> Any:
                return torch.utils.data.SequentialSampler(self.train_dataset)

    assert [str(each.message).partition(" ")[0] for each in heard] == [
        "Old.training_step",
        "Old.log",
        "Old._get_train_sampler",
    ]
    trainer = make_trainer(tmp_path, kind=Old, max_steps=2, **SHORT)
    trainer.train()
    assert logged(trainer, "mine") == [1.0, 1.0, 1.0]


def test_methods_in_present_signatures_are_left_alone(recwarn: pytest.WarningsRecorder) -> None:
    def log(self: Any, *given: Any, **named: Any) -> None: ...
    def compute_loss(self: Any, model: Any, inputs: Any, return_outputs: bool = False, **others: Any) -> None: ...

    made = type("Mine", (Trainer,), {"log": log, "compute_loss": compute_loss})
    assert (made.log, made.compute_loss) == (log, compute_loss)
    assert not recwarn.list


def test_label_names_come_from_the_data(tmp_path: Path) -> None:
    from datasets import ClassLabel

    rows = make_rows().cast_column("label", ClassLabel(names=["different", "same"]))
    assert make_trainer(tmp_path, train=rows).model.config.id2label == {0: "different", 1: "same"}
    made = make_trainer(tmp_path, train=rows, model_init=lambda: small_model(), max_steps=1, **SHORT)
    made.train()
    assert made.model.config.label2id == {"different": 0, "same": 1}


@pytest.mark.parametrize("width", [32, 64])
def test_the_model_itself_holds_the_trained_weights(width: int, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, model=small_model(width=width), max_steps=3, learning_rate=1e-2, **SHORT)
    trainer.train()
    row = make_rows(1, seed=9)  # with tokens that training never saw
    batch = {name: torch.tensor(row[name][:]) for name in ("input_ids", "token_type_ids", "attention_mask")}
    with torch.no_grad():
        expected = trainer.model.eval()(**batch).logits.numpy()
    assert trainer.predict(row).predictions == pytest.approx(expected, abs=1e-5)
    assert not any(parameter.grad is not None for parameter in trainer.model.parameters())


def test_every_weight_has_memory_of_its_own_afterwards(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, model=small_model(width=64), max_steps=1, **SHORT)
    trainer.train()
    for parameter in trainer.model.parameters():
        assert parameter.untyped_storage().nbytes() == parameter.numel() * parameter.element_size()


def test_predictions_come_in_input_order_also_when_grouped_by_length(tmp_path: Path) -> None:
    rows = make_rows(11)
    trainer = make_trainer(tmp_path, train_sampling_strategy="group_by_length")
    assert trainer.predict(rows).label_ids.tolist() == rows["label"][:]


def test_a_loss_that_is_not_finite_stops_before_the_weights_are_harmed(tmp_path: Path) -> None:
    model = small_model(width=64)
    model.classifier.weight.data[0, 0] = torch.inf
    before = weights(model)
    with pytest.raises(Diverged, match=r"at step 1;.*learning_rate"):
        make_trainer(tmp_path, model=model, max_steps=2, **SHORT).train()
    assert all(torch.equal(each, before[name]) for name, each in weights(model).items())


def test_out_of_memory_halves_the_micro_batch_and_keeps_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from whet.engine.fused.stepper import FusedStepper

    whole = make_trainer(tmp_path / "a", model=small_model(width=64), max_steps=2, **SHORT)
    whole.train()
    backward, refused = FusedStepper.backward, itertools.count()

    def tight(self: Any, batch: Any, *given: Any, **named: Any) -> Any:
        if len(batch.labels) > 3:
            next(refused)
            raise torch.OutOfMemoryError("no room")
        return backward(self, batch, *given, **named)

    monkeypatch.setattr(FusedStepper, "backward", tight)
    halved = make_trainer(tmp_path / "b", model=small_model(width=64), max_steps=2, **SHORT)
    with pytest.warns(WhetNotice, match="micro-batches of"):
        halved.train()
    assert next(refused) == 2  # of 8 rows, and of 4
    assert logged(halved) == pytest.approx(logged(whole), rel=1e-6)


@pytest.mark.parametrize("width", [32, 64])
def test_bf16_trains_close_to_float32(width: int, tmp_path: Path) -> None:
    losses = []
    for bf16 in (False, True):
        trainer = make_trainer(tmp_path, model=small_model(width=width), bf16=bf16, max_steps=3, **SHORT)
        trainer.train()
        losses.append(logged(trainer))
    assert losses[1] == pytest.approx(losses[0], abs=0.02)
    assert losses[1] != losses[0]


def test_dropout_is_a_function_of_the_seed_and_the_step(tmp_path: Path) -> None:
    class Draws(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            torch.rand(3)

    losses = []
    for callbacks in ([], [Draws()]):
        model = small_model(width=64, dropout=0.3)
        trainer = make_trainer(tmp_path, model=model, callbacks=callbacks, max_steps=3, **SHORT)
        trainer.train()
        losses.append(logged(trainer))
    assert losses[0] == losses[1]


def test_a_second_training_goes_on_with_the_optimizer(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, model=small_model(width=64), max_steps=2, **SHORT)
    trainer.train()
    trainer.train_dataset = make_rows(24, seed=5)  # other words: rows of the embedding that are new to the engine
    trainer.train()
    steps = {float(state["step"]) for state in trainer.optimizer.optimizer.state.values()}
    assert steps == {4.0}


def test_gradients_can_be_looked_at(tmp_path: Path) -> None:
    norms = []

    class Look(TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **others: Any) -> None:
            norms.append(float(model.classifier.weight.grad.norm()))

    make_trainer(tmp_path, model=small_model(width=64), callbacks=[Look()], max_steps=2, **SHORT).train()
    assert min(norms) > 0


def test_hyperparameter_search_finds_a_rate(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    trainer = make_trainer(
        tmp_path, model_init=lambda: small_model(), max_steps=1, eval_strategy="steps", eval_steps=1, **SHORT
    )
    best = trainer.hyperparameter_search(
        lambda trial: {"learning_rate": trial.suggest_float("learning_rate", 1e-5, 1e-3)}, n_trials=2, backend="optuna"
    )
    assert 1e-5 <= best.hyperparameters["learning_rate"] <= 1e-3


def test_predictions_of_one_row_are_those_among_others(tmp_path: Path) -> None:
    trainer, rows = make_trainer(tmp_path), make_rows(5)
    together = trainer.predict(rows).predictions
    alone = np.concatenate([trainer.predict(rows.select([row])).predictions for row in range(5)])
    assert together == pytest.approx(alone, abs=1e-5)
