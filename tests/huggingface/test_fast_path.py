"""The decision between the engine and the library's loop, and where it is shown."""

from __future__ import annotations

import inspect
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import transformers

from tests.conftest import small_model
from tests.huggingface.made import make_rows, make_trainer, padding_tokenizer
from whet import Trainer, TrainerCallback
from whet.engine.notices import WhetNotice
from whet.huggingface import fast_path

SHORT: dict[str, Any] = {"max_steps": 2, "save_strategy": "no"}


def environment(folder: Path) -> Any:
    return json.loads((folder / "environment.json").read_text(encoding="utf-8"))


def test_the_path_is_shown_logged_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(logging.getLogger("transformers.trainer"), "info", lambda line, *_: said.append(line))
    trainer = make_trainer(tmp_path, model=small_model(width=64), num_train_epochs=2, save_strategy="no")
    trainer.train()
    assert trainer.path == "fused from step 0"
    assert [line for line in said if "Path" in line] == ["  Path = fused"]
    assert environment(tmp_path)["path"] == "fused"
    assert environment(tmp_path)["path_history"] == trainer.path


def test_the_reason_for_the_librarys_loop_is_kept(tmp_path: Path) -> None:
    class Mine(Trainer):
        def training_step(self, *given: Any, **named: Any) -> Any:
            return super().training_step(*given, **named)

    trainer = make_trainer(tmp_path, kind=Mine, **SHORT)
    trainer.train()
    assert trainer.path == "stock (training_step is overridden) from step 0"
    assert (environment(tmp_path)["path"], environment(tmp_path)["path_why"]) == (
        "stock",
        "training_step is overridden",
    )


def test_this_release_of_the_library_is_known() -> None:
    assert fast_path.unknown_version() == ""


@pytest.mark.filterwarnings("ignore:the use of:UserWarning")
def test_an_unknown_release_trains_with_its_own_loop_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(fast_path.KNOWN, "training_step", ("00000000",))
    fast_path.unknown_version.cache_clear()
    try:
        trainer = make_trainer(tmp_path, num_train_epochs=2, save_strategy="no")
        with pytest.warns(
            WhetNotice, match="Trainer.training_step that was not compared with this version of whet"
        ) as heard:
            trainer.train()
        assert len(heard) == 1
        assert trainer.path.startswith(f"stock (transformers {transformers.__version__} has a Trainer.training_step")
    finally:
        fast_path.unknown_version.cache_clear()


def test_a_fingerprint_is_of_the_statements_alone() -> None:
    def one(value: int) -> int:
        """Explains."""
        # a remark
        return value

    def other(value: int) -> int:
        return value

    def third(value: int) -> int:
        return value + 1

    found = [fast_path.fingerprint(inspect.getsource(each).replace(each.__name__, "f")) for each in (one, other, third)]
    assert found[0] == found[1]
    assert found[0] != found[2]


def test_only_an_overridden_event_counts() -> None:
    class Saves(TrainerCallback):
        def on_save(self, *given: Any, **named: Any) -> None:
            """Looks at nothing."""

    assert fast_path.overrides(Saves(), "on_save")
    assert not fast_path.overrides(Saves(), "on_log")
    assert not fast_path.users([transformers.EarlyStoppingCallback()], "on_evaluate")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda row: {"label": row["label"] + 5}, "a label is none of the model's"),
        (lambda row: {"label": float(row["label"])}, "labels are float"),
        (lambda row: {"input_ids": [row["input_ids"][0], 0, *row["input_ids"][2:]]}, "the padding token inside"),
        (
            lambda row: {"input_ids": [399 + row["label"] * 0 + 1] * len(row["input_ids"])},
            "a token is none of the model's",
        ),
        (lambda row: {"token_type_ids": [2] * len(row["input_ids"])}, "a token type is none of the model's"),
        (lambda row: {"attention_mask": [0, *row["attention_mask"][1:]]}, "hides tokens other than padding"),
    ],
)
def test_rows_that_the_engine_would_take_otherwise_are_left_to_the_library(
    change: Any, reason: str, tmp_path: Path
) -> None:
    rows = make_rows(8)
    if "float" in reason:
        from datasets import Value

        rows = rows.cast_column("label", Value("float32"))
    model = small_model("roberta" if "padding token" in reason else "bert")  # which counts positions by it
    trainer = make_trainer(tmp_path, train=rows.map(change), model=model, **SHORT)
    trainer.create_optimizer_and_scheduler(2)
    assert reason in fast_path.why_stock(trainer, trainer.get_train_dataloader())


def test_batches_wider_than_the_model_are_left_to_the_library(tmp_path: Path) -> None:
    collator = transformers.DataCollatorWithPadding(padding_tokenizer(), padding="max_length", max_length=70)
    trainer = make_trainer(tmp_path, data_collator=collator, **SHORT)
    with pytest.raises((IndexError, RuntimeError)):
        trainer.train()
    assert trainer.path.startswith("stock (a batch is wider than the model's positions)")


def test_a_data_set_is_read_once_however_often_its_columns_are_removed(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, **SHORT)
    first, second = (fast_path.table_of(trainer, trainer.get_eval_dataloader().dataset) for _ in range(2))
    assert first is second
