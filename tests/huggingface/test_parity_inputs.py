"""Data sets, models and optimizers are taken by both Trainers alike."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.conftest import small_model
from tests.huggingface.made import padding_tokenizer
from tests.huggingface.parity import EVERY_TWO, FUSED, OTHERS, PACKED, ROWS, Use, accuracy, compare, rows_of

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __init__(self, rows: Any) -> None:
        self.rows = [{name: row[name] for name in ("input_ids", "attention_mask", "label")} for row in rows]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


class Endless(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        yield from Rows(rows_of("binary", ROWS)).rows


class Named(torch.nn.Module):
    """A model of one's own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = torch.nn.Embedding(400, 8), torch.nn.Linear(8, 2)

    def forward(self, input_ids: Any, attention_mask: Any = None, labels: Any = None) -> dict[str, Any]:
        logits = self.head(self.embedding(input_ids).mean(dim=1))
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


class Tuples(Named):
    """A model that gives a tuple, as written before outputs had names."""

    def forward(self, input_ids: Any, attention_mask: Any = None, labels: Any = None) -> Any:
        return tuple(super().forward(input_ids, attention_mask, labels).values())


class Tensors(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Encodings as tensors beside a list of labels, as in many tutorials."""

    def __init__(self, rows: Any) -> None:
        self.encodings = {name: torch.tensor(rows[name][:]) for name in ("input_ids", "attention_mask")}
        self.labels = rows["label"][:]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Any:
        item = {name: values[index].clone() for name, values in self.encodings.items()}
        return {**item, "labels": torch.tensor(self.labels[index])}


def with_adapters() -> Any:
    peft = pytest.importorskip("peft")
    model = small_model(width=64)
    torch.manual_seed(3)
    return peft.get_peft_model(model, peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"]))


def as_lists() -> dict[str, Any]:
    return {"train_dataset": list(rows_of("binary", ROWS)), "eval_dataset": list(rows_of("binary", OTHERS, 1))}


def padded_rows() -> dict[str, Any]:
    def pad(row: Any) -> dict[str, Any]:
        more = 12 - len(row["input_ids"])
        return {name: row[name] + [0] * more for name in ("input_ids", "attention_mask", "token_type_ids")}

    found = {"train_dataset": rows_of("binary", ROWS), "eval_dataset": rows_of("binary", OTHERS, 1)}
    return {name: rows.map(pad) for name, rows in found.items()}


def both(change: Callable[[Any], Any], kind: str = "binary") -> Callable[[], dict[str, Any]]:
    return lambda: {"train_dataset": change(rows_of(kind, ROWS)), "eval_dataset": change(rows_of(kind, OTHERS, 1))}


def own_optimizer(model: Any) -> Any:
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)


def two_rates(model: Any) -> Any:
    groups = [{"params": model.bert.parameters()}, {"params": model.classifier.parameters(), "lr": 1e-2}]
    return torch.optim.AdamW(groups, lr=1e-3), None


def frozen() -> Any:
    model = small_model(width=64)
    model.bert.embeddings.requires_grad_(False)
    return model


def without_dropout() -> Any:
    """As people switch dropout off: in the modules, which the configuration does not notice."""
    model = small_model(width=64, dropout=0.5)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


def hooked() -> Any:
    model = small_model(width=64)
    model.bert.register_forward_hook(lambda *_: None)
    return model


def doubled(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    return 2 * torch.nn.functional.cross_entropy(outputs.logits, labels, reduction="sum") / num_items_in_batch


def of_family(family: str, **others: Any) -> Callable[[], Any]:
    return lambda: small_model(family, width=64, **others)


def plain(rows: Any) -> Any:
    return rows.remove_columns(["token_type_ids"])


GROUPS = {"gradient_accumulation_steps": 2, **EVERY_TWO}
THINGS: dict[str, Use] = {
    "two evaluation sets": Use(
        FUSED, EVERY_TWO, lambda: {"eval_dataset": {"a": rows_of("binary", 5, 1), "b": rows_of("binary", 4, 2)}}
    ),
    "compute_metrics": Use(FUSED, EVERY_TWO, lambda: {"compute_metrics": accuracy}),
    "preprocess_logits_for_metrics": Use(
        FUSED,
        EVERY_TWO,
        lambda: {
            "compute_metrics": lambda p: {"share": float(p.predictions.mean())},
            "preprocess_logits_for_metrics": lambda logits, labels: logits.argmax(-1),
        },
    ),
    "include_for_metrics": Use(
        FUSED,
        {**EVERY_TWO, "include_for_metrics": ["inputs", "loss"]},
        lambda: {"compute_metrics": lambda p: {"first": float(p.inputs[0, 0]), "loss_mean": float(p.losses.mean())}},
    ),
    "the column labels": Use(FUSED, EVERY_TWO, both(lambda rows: rows.rename_column("label", "labels"))),
    "no mask column": Use(FUSED, EVERY_TWO, both(lambda rows: rows.remove_columns(["attention_mask"]))),
    "torch tensors": Use(FUSED, EVERY_TWO, both(lambda rows: rows.with_format("torch"))),
    "lists of dictionaries": Use(FUSED, EVERY_TWO, as_lists),
    "rows padded before": Use(FUSED, EVERY_TWO, padded_rows),
    "default_data_collator": Use(
        FUSED, EVERY_TWO, lambda: {**padded_rows(), "data_collator": transformers.default_data_collator}
    ),
    "padding to a multiple": Use(
        FUSED,
        EVERY_TWO,
        lambda: {"data_collator": transformers.DataCollatorWithPadding(padding_tokenizer(), pad_to_multiple_of=8)},
    ),
    "padding to a length": Use(
        FUSED,
        EVERY_TWO,
        lambda: {
            "data_collator": transformers.DataCollatorWithPadding(
                padding_tokenizer(), padding="max_length", max_length=20
            )
        },
    ),
    "several labels a row": Use(
        FUSED, GROUPS, both(lambda rows: rows, "multilabel"), lambda: multi("multi_label_classification")
    ),
    "regression": Use(
        FUSED, GROUPS, both(lambda rows: rows, "regression"), functools.partial(small_model, width=64, labels=1)
    ),
    "three classes": Use(FUSED, EVERY_TWO, model=functools.partial(small_model, width=64, labels=3)),
    "own optimizer and schedule": Use(FUSED, {}, lambda: {"optimizers": own_optimizer}),
    "optimizer_cls_and_kwargs": Use(
        FUSED, {}, lambda: {"optimizer_cls_and_kwargs": (torch.optim.AdamW, {"lr": 1e-3, "betas": (0.5, 0.9)})}
    ),
    "model_init": Use(FUSED, {}, lambda: {"model_init": lambda: small_model(width=64)}),
    "a width that is not fused": Use(PACKED, GROUPS, model=small_model),
    "frozen embeddings": Use(PACKED, GROUPS, model=frozen),
    "roberta": Use(FUSED, GROUPS, both(plain), of_family("roberta")),
    "distilbert": Use(FUSED, GROUPS, both(plain), of_family("distilbert")),
    "distilbert with a column of types": Use(FUSED, {}, model=of_family("distilbert")),
    "electra": Use(FUSED, GROUPS, both(plain), of_family("electra")),
    "modernbert": Use(PACKED, GROUPS, both(plain), of_family("modernbert")),
    "deberta-v2": Use(PACKED, GROUPS, model=of_family("deberta-v2")),
    "mpnet": Use(
        PACKED, GROUPS, lambda: {**both(plain)(), "processing_class": padding_tokenizer(1)}, of_family("mpnet")
    ),
    "rates by layer": Use("stock (the optimizer's groups differ", {}, lambda: {"optimizers": two_rates}),
    "compute_loss_func": Use("stock (compute_loss_func is given)", GROUPS, lambda: {"compute_loss_func": doubled}),
    "a hook on the model": Use("stock (the model has hooks)", EVERY_TWO, model=hooked),
    "dropout switched off in the modules": Use(
        "stock (the model drops out at other rates", EVERY_TWO, model=without_dropout
    ),
    "half precision": Use("stock (weights are bfloat16)", {}, model=lambda: small_model(width=64).bfloat16()),
    "a model of one's own": Use(
        "stock (the model is a Named)",
        {"max_steps": 2},
        lambda: {"train_dataset": Rows(rows_of("binary", ROWS))},
        Named,
    ),
    "a model that gives a tuple": Use(
        "stock (the model is a Tuples)",
        EVERY_TWO,
        lambda: {
            "train_dataset": Rows(rows_of("binary", ROWS)),
            "eval_dataset": Rows(rows_of("binary", OTHERS, 1)),
            "compute_metrics": accuracy,
        },
        Tuples,
    ),
    "adapters": Use(
        "stock (the model is a PeftModelForSequenceClassification)",
        {**EVERY_TWO, "load_best_model_at_end": True},
        model=with_adapters,
    ),
    "dictionaries of tensors": Use(
        "stock (the data set is a Tensors)",
        EVERY_TWO,
        lambda: {name: Tensors(rows) for name, rows in padded_rows().items()} | {"processing_class": None},
    ),
    "streamed data sets": Use(
        "stock (the loader is a",
        {**EVERY_TWO, "max_steps": 3},
        both(lambda rows: rows.to_iterable_dataset()),
    ),
    "best by one of several sets": Use(
        FUSED,
        {**EVERY_TWO, "metric_for_best_model": "eval_b_accuracy", "load_best_model_at_end": True},
        lambda: {
            "eval_dataset": {"a": rows_of("binary", 5, 1), "b": rows_of("binary", 4, 2)},
            "compute_metrics": accuracy,
        },
        after=lambda trainer: [
            trainer.evaluate(),
            trainer.evaluate("b"),
            Path(trainer.state.best_model_checkpoint).name,
        ],
    ),
    "a torch data set": Use(
        "stock (the data set is a Rows)", {}, lambda: {"train_dataset": Rows(rows_of("binary", ROWS))}
    ),
    "an iterable data set": Use("stock (the loader is a", {"max_steps": 2}, lambda: {"train_dataset": Endless()}),
    "set_transform": Use(
        "stock (the data set has the format 'custom')",
        {"max_steps": 2, "remove_unused_columns": True},
        lambda: {"train_dataset": rows_of("binary", ROWS).with_transform(lambda rows: rows)},
    ),
    "an own collator": Use(
        "stock (the collator is <lambda>)",
        {},
        lambda: {"data_collator": lambda rows: transformers.DataCollatorWithPadding(padding_tokenizer())(rows)},
    ),
    "positions among the columns": Use(
        "stock (The rows hold the model input 'position_ids'",
        {},
        lambda: {
            **padded_rows(),
            "train_dataset": padded_rows()["train_dataset"].map(lambda row: {"position_ids": list(range(12))}),
        },
    ),
}


def multi(problem: str) -> Any:
    model = small_model(width=64)
    model.config.problem_type = problem
    return model


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # importing DeBERTa
@pytest.mark.parametrize("name", list(THINGS))
def test_data_models_and_optimizers_are_taken_as_in_the_library(name: str, tmp_path: Path) -> None:
    compare(THINGS[name], tmp_path)
