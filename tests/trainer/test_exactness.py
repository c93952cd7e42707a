"""Step by step the stock Trainer's training: same weights, same rows, no dropout, float32."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import whet
from tests.conftest import small_model
from tests.trainer.made import QUIET, logged, make_rows, weights

STEPS = 50
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulation": {"gradient_accumulation_steps": 4, "per_device_train_batch_size": 4},
    "clipping": {"max_grad_norm": 0.05},
    "warm-up and cosine": {"lr_scheduler_type": "cosine", "warmup_steps": 7},
    "label smoothing": {"label_smoothing_factor": 0.2},
    "weight decay": {"weight_decay": 0.1, "learning_rate": 2e-3},
    "drop last": {"dataloader_drop_last": True, "gradient_accumulation_steps": 2},
}


def make_model(width: int) -> Any:
    """Its width decides the engine's path: 64 is fused, 32 packed."""
    torch.manual_seed(3)
    config = transformers.BertConfig(
        vocab_size=400,
        hidden_size=width,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=2 * width,
        max_position_embeddings=40,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return transformers.BertForSequenceClassification(config)


def few_rows() -> Any:
    return make_rows(58, longest=14)


def mean_over_the_step(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    """The stock Trainer's documented way to a loss that is exact under accumulation."""
    return torch.nn.functional.cross_entropy(outputs.logits, labels, reduction="sum") / num_items_in_batch


def settings(case: str, folder: Path) -> dict[str, Any]:
    common: dict[str, Any] = {"learning_rate": 1e-3, "max_steps": STEPS, "logging_steps": 1, "save_strategy": "no"}
    return {"output_dir": str(folder), "train_sampling_strategy": "sequential", **common, **CASES[case]}


def stock_trainer(case: str, model: Any, folder: Path, rows: Any, **others: Any) -> Any:
    args = transformers.TrainingArguments(**settings(case, folder), use_cpu=True, disable_tqdm=True, report_to="none")
    collator = transformers.DataCollatorWithPadding(padding_tokenizer())
    trainer = transformers.Trainer(model, args, train_dataset=rows, data_collator=collator, **others)
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


def our_trainer(case: str, model: Any, folder: Path, rows: Any, **others: Any) -> whet.Trainer:
    kind = others.pop("kind", whet.Trainer)
    args = whet.TrainingArguments(**settings(case, folder), **QUIET)
    return kind(model, args, train_dataset=rows, processing_class=padding_tokenizer(), **others)


def padding_tokenizer() -> Any:
    from tokenizers import Tokenizer, models

    backend = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1}, unk_token="[UNK]"))
    names = ["input_ids", "token_type_ids", "attention_mask"]
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", model_input_names=names)


def path_of(trainer: whet.Trainer) -> str:
    return str(json.loads(Path(trainer.args.output_dir, "environment.json").read_text())["path"])


def compare(ours: Any, stock: Any) -> None:
    assert logged(ours) == pytest.approx(logged(stock), rel=1e-5)
    assert len(logged(ours)) == STEPS
    assert logged(ours, "learning_rate") == pytest.approx(logged(stock, "learning_rate"), rel=1e-12)
    assert logged(ours, "grad_norm") == pytest.approx(logged(stock, "grad_norm"), rel=1e-3)
    expected = weights(stock.model)
    for name, found in weights(ours.model).items():
        # A key's bias moves no output: its gradient is rounding alone, which AdamW scales up to whole steps.
        if not name.endswith("key.bias"):
            torch.testing.assert_close(found, expected[name], rtol=1e-3, atol=2e-5, msg=name)


@pytest.mark.parametrize("case", list(CASES))
def test_the_fast_path_is_the_stock_training(case: str, tmp_path: Path) -> None:
    model, rows = make_model(64), few_rows()
    exact = {"compute_loss_func": mean_over_the_step} if "gradient_accumulation_steps" in CASES[case] else {}
    stock = stock_trainer(case, copy.deepcopy(model), tmp_path / "stock", rows, **exact)
    ours = our_trainer(case, model, tmp_path / "ours", rows)
    stock.train()
    ours.train()
    compare(ours, stock)
    assert path_of(ours) == "fused"


def test_clipping_is_active_where_it_is_tested(tmp_path: Path) -> None:
    ours = our_trainer("clipping", make_model(64), tmp_path, few_rows())
    ours.train()
    assert min(logged(ours, "grad_norm")) > CASES["clipping"]["max_grad_norm"]


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "electra", "modernbert"])
def test_stock_accumulation_without_a_loss_function_is_a_sum_of_means(family: str, tmp_path: Path) -> None:
    """Documented in docs/trainer.md; when this fails, the stock library was mended and the page can say so."""
    model, rows = small_model(family), make_rows(16, longest=8).remove_columns(["token_type_ids"])
    CASES["one step"] = {"max_steps": 1, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 4}
    stock = stock_trainer("one step", copy.deepcopy(model), tmp_path / "a", rows)
    ours = our_trainer("one step", model, tmp_path / "b", rows)
    stock.train()
    ours.train()
    assert logged(stock)[0] == pytest.approx(4 * logged(ours)[0], rel=1e-5)


@pytest.mark.parametrize("case", ["plain", "accumulation"])
def test_the_packed_path_is_the_stock_training(case: str, tmp_path: Path) -> None:
    model, rows = make_model(32), few_rows()
    stock = stock_trainer(case, copy.deepcopy(model), tmp_path / "a", rows, compute_loss_func=mean_over_the_step)
    ours = our_trainer(case, model, tmp_path / "b", rows)
    stock.train()
    ours.train()
    compare(ours, stock)
    assert path_of(ours) == "packed"


class OwnLoss(whet.Trainer):
    """As people wrote it for transformers 4."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False) -> Any:
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = torch.nn.functional.cross_entropy(outputs.logits, labels)
        return (loss, outputs) if return_outputs else loss


@pytest.mark.parametrize("case", ["plain", "accumulation"])
def test_a_loss_of_ones_own_is_the_stock_training(case: str, tmp_path: Path) -> None:
    model, rows = make_model(32), few_rows()
    stock = stock_trainer(case, copy.deepcopy(model), tmp_path / "a", rows, compute_loss_func=mean_over_the_step)
    ours = our_trainer(case, model, tmp_path / "b", rows, kind=OwnLoss)
    stock.train()
    ours.train()
    compare(ours, stock)


def test_a_loss_function_gets_the_labels_of_the_whole_step(tmp_path: Path) -> None:
    model, rows = make_model(32), few_rows()
    exact = {"compute_loss_func": mean_over_the_step}
    stock = stock_trainer("accumulation", copy.deepcopy(model), tmp_path / "a", rows, **exact)
    ours = our_trainer("accumulation", model, tmp_path / "b", rows, **exact)
    stock.train()
    ours.train()
    compare(ours, stock)


def test_evaluation_loss_and_predictions_are_the_stock_ones(tmp_path: Path) -> None:
    model, rows = make_model(64), make_rows(21)
    stock = stock_trainer("plain", copy.deepcopy(model), tmp_path / "a", rows)
    ours = our_trainer("plain", model, tmp_path / "b", rows)
    expected, found = stock.predict(rows), ours.predict(rows)
    assert found.predictions == pytest.approx(expected.predictions, abs=1e-5)
    assert found.label_ids.tolist() == expected.label_ids.tolist()
    assert found.metrics["test_loss"] == pytest.approx(expected.metrics["test_loss"], rel=1e-5)
