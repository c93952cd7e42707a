"""Settings: the library's own, old names taken with one notice, bf16 where the device has it."""

from __future__ import annotations

import abc
import dataclasses
import inspect
import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import transformers

from whet import TrainingArguments
from whet.engine.notices import WhetNotice
from whet.huggingface.training_arguments import GONE, RENAMED
from whet.utils.device import choose_hardware

OLD = [
    ("evaluation_strategy", "epoch", "eval_strategy", "epoch"),
    ("no_cuda", True, "use_cpu", True),
    ("per_gpu_train_batch_size", 4, "per_device_train_batch_size", 4),
    ("per_gpu_eval_batch_size", 4, "per_device_eval_batch_size", 4),
    ("group_by_length", True, "train_sampling_strategy", "group_by_length"),
    ("warmup_ratio", 0.1, "warmup_steps", 0.1),
    ("adafactor", True, "optim", "adafactor"),
    ("include_inputs_for_metrics", True, "include_for_metrics", ["inputs"]),
]


def is_field(name: str) -> bool:
    return name in {each.name for each in dataclasses.fields(transformers.TrainingArguments)}


def test_they_are_the_librarys_with_the_same_defaults() -> None:
    args = TrainingArguments("out", bf16=False)
    assert isinstance(args, transformers.TrainingArguments)
    stock = {each.name: each for each in dataclasses.fields(transformers.TrainingArguments)}
    ours = {each.name: each for each in dataclasses.fields(TrainingArguments)}
    assert set(ours) - set(stock) == {"record_run"}
    assert {name for name in stock if ours[name].default != stock[name].default} == {"bf16"}


@pytest.mark.parametrize(("old", "value", "new", "taken"), [each for each in OLD if not is_field(each[0])])
def test_an_old_name_works_with_one_notice(old: str, value: Any, new: str, taken: Any) -> None:
    with pytest.warns(WhetNotice, match=f"{old} is now {new}") as heard:
        args = TrainingArguments("out", bf16=False, **{old: value})
    assert getattr(args, new) == taken
    assert len(heard) == 1
    assert heard[0].filename == __file__


@pytest.mark.parametrize("name", sorted(name for name in GONE if not is_field(name)))
def test_a_name_that_is_gone_is_said_to_have_no_effect(name: str) -> None:
    with pytest.warns(WhetNotice, match=f"{name} is gone"):
        TrainingArguments("out", bf16=False, **{name: True})


def test_old_names_can_be_assigned() -> None:
    args = TrainingArguments("out", bf16=False)
    with pytest.warns(WhetNotice, match="eval_strategy"):
        args.evaluation_strategy = "epoch"
    assert args.eval_strategy == "epoch"


def test_the_new_name_counts_where_both_are_given() -> None:
    with pytest.warns(WhetNotice, match="eval_strategy counts"):
        args = TrainingArguments("out", bf16=False, evaluation_strategy="epoch", eval_strategy="steps", eval_steps=1)
    assert args.eval_strategy == "steps"


def test_logging_dir_is_where_tensorboard_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    if is_field("logging_dir"):
        pytest.skip("this version of transformers still has the field")
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", "before")
    with pytest.warns(WhetNotice, match="TENSORBOARD_LOGGING_DIR"):
        TrainingArguments("out", bf16=False, logging_dir="here")
    assert os.environ["TENSORBOARD_LOGGING_DIR"] == "here"


def test_a_wrong_name_is_the_librarys_error() -> None:
    with pytest.raises(TypeError, match="learning_rat"):
        TrainingArguments("out", learning_rat=1e-5)


def test_a_users_dataclass_has_its_fields_and_the_old_names() -> None:
    @dataclasses.dataclass
    class Mine(TrainingArguments):
        temperature: float = 2.0

    with pytest.warns(WhetNotice, match="Mine: evaluation_strategy"):
        mine = Mine("out", bf16=False, evaluation_strategy="epoch", temperature=3.0)
    assert (mine.temperature, mine.eval_strategy) == (3.0, "epoch")


def test_a_users_dataclass_may_have_abstract_classes_beside_it() -> None:
    class Named(abc.ABC):
        @abc.abstractmethod
        def name(self) -> str: ...

    @dataclasses.dataclass
    class Mine(TrainingArguments, Named):
        def name(self) -> str:
            return "mine"

    assert Mine("out", bf16=False).name() == "mine"


def test_old_names_can_be_read() -> None:
    args = TrainingArguments("out", bf16=False, eval_strategy="epoch")
    assert (args.evaluation_strategy, args.no_cuda, args.overwrite_output_dir) == ("epoch", False, None)
    with pytest.warns(WhetNotice, match="overwrite_output_dir is gone"):
        assert TrainingArguments("out", bf16=False, overwrite_output_dir=True).overwrite_output_dir is True
    with pytest.raises(AttributeError, match="learning_rat"):
        assert args.learning_rat


def test_scripts_can_read_them_from_a_command_line() -> None:
    line = ["--output_dir", "out", "--learning_rate", "1e-4", "--bf16", "--use_cpu", "--do_train"]
    (args,) = transformers.HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(line)
    assert (args.learning_rate, args.bf16, args.do_train) == (1e-4, True, True)


def test_bf16_is_automatic_unless_it_is_set() -> None:
    native = choose_hardware("cpu").bf16
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        automatic = TrainingArguments("out", use_cpu=True)
    assert (automatic.bf16, automatic.mixed_precision) == (native, "bf16" if native else "no")
    assert [each.category for each in heard] == [WhetNotice] * native
    assert [TrainingArguments("out", use_cpu=True, bf16=value).bf16 for value in (True, False)] == [True, False]


def test_a_launchers_precision_is_kept_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    assert TrainingArguments("out", use_cpu=True).bf16 is False


def test_they_can_be_copied_pickled_and_shown() -> None:
    args = TrainingArguments("out", bf16=False, hub_token="secret")
    assert dataclasses.replace(args, seed=7).seed == 7
    assert pickle.loads(pickle.dumps(args)).seed == args.seed
    assert "secret" not in repr(args)
    assert "learning_rate" in inspect.signature(TrainingArguments).parameters


def test_nobody_is_reported_to_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.integrations.is_kubeflow_available", lambda: True, raising=False)
    assert TrainingArguments("out", bf16=False).report_to == []


def test_the_page_names_every_old_name() -> None:
    page = (Path(__file__).parents[2] / "docs" / "trainer.md").read_text(encoding="utf-8")
    assert not [name for name in (*RENAMED, *GONE) if f"`{name}`" not in page]
