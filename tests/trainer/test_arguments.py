"""Settings under the stock names: old spellings taken, wrong ones named, defaults as people know them."""

from __future__ import annotations

import dataclasses
import re
import warnings
from pathlib import Path
from typing import Any

import pytest

from whet import TrainingArguments
from whet.errors import UsageError
from whet.trainer.arguments import FIELDS, from_stock
from whet.trainer.notices import UnknownArgument, WhetNotice
from whet.trainer.spellings import GONE, REFUSED, RENAMED, WITHOUT_EFFECT

DIFFERENT = {"bf16", "logging_dir"}  # documented in docs/trainer.md


def stock_fields() -> dict[str, Any]:
    from transformers import TrainingArguments as Stock

    return {
        field.name: getattr(field.default, "value", field.default)
        for field in dataclasses.fields(Stock)
        if field.default is not dataclasses.MISSING
    }


def test_defaults_are_the_stock_ones() -> None:
    stock = stock_fields()
    ours = {field.name: field.default for field in dataclasses.fields(TrainingArguments)}
    changed = {name for name in ours if name not in DIFFERENT and ours[name] != stock[name]}
    assert not changed


def test_every_stock_field_has_an_answer() -> None:
    assert not set(stock_fields()) - set(FIELDS) - set(WITHOUT_EFFECT) - set(REFUSED) - set(RENAMED) - set(GONE)


def test_stock_defaults_written_out_are_silent() -> None:
    from transformers import TrainingArguments as Stock

    made = {name: value for name, value in stock_fields().items() if name != "fsdp_config"}
    assert Stock is not TrainingArguments
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TrainingArguments(**made)


@pytest.mark.parametrize(
    ("old", "value", "new", "taken"),
    [
        ("evaluation_strategy", "epoch", "eval_strategy", "epoch"),
        ("no_cuda", True, "use_cpu", True),
        ("per_gpu_train_batch_size", 4, "per_device_train_batch_size", 4),
        ("per_gpu_eval_batch_size", 4, "per_device_eval_batch_size", 4),
        ("group_by_length", True, "train_sampling_strategy", "group_by_length"),
        ("warmup_ratio", 0.1, "warmup_steps", 0.1),
    ],
)
def test_an_old_name_works_with_one_notice(old: str, value: Any, new: str, taken: Any) -> None:
    with pytest.warns(WhetNotice, match=f"{old} is now {new}") as heard:
        args = TrainingArguments("out", **{old: value})
    assert getattr(args, new) == taken
    assert len(heard) == 1
    assert heard[0].filename == __file__


def test_old_names_can_be_assigned() -> None:
    args = TrainingArguments("out")
    with pytest.warns(WhetNotice, match="eval_strategy"):
        args.evaluation_strategy = "epoch"
    assert args.eval_strategy == "epoch"


def test_old_and_new_name_together_are_refused() -> None:
    with pytest.warns(WhetNotice), pytest.raises(UsageError, match="both"):
        TrainingArguments("out", evaluation_strategy="epoch", eval_strategy="steps")


@pytest.mark.parametrize("name", ["overwrite_output_dir", "save_safetensors", "torch_compile"])
def test_a_field_without_effect_is_said_to_have_none(name: str) -> None:
    with pytest.warns(WhetNotice, match=name) as heard:
        TrainingArguments("out", **{name: True})
    assert len(heard) == 1


def test_a_wrong_name_names_the_nearest_right_one() -> None:
    with pytest.raises(UnknownArgument, match="Did you mean 'learning_rate'"):
        TrainingArguments("out", learning_rat=1e-5)
    with pytest.raises(TypeError):
        TrainingArguments("out", learning_rat=1e-5)


def test_a_typo_in_an_assignment_is_refused() -> None:
    args = TrainingArguments("out")
    with pytest.raises(UnknownArgument, match="learning_rate"):
        args.learning_rat = 1e-5


@pytest.mark.parametrize("name", ["push_to_hub", "deepspeed", "fsdp", "neftune_noise_alpha", "tf32"])
def test_a_field_that_is_not_here_says_what_to_use(name: str) -> None:
    with pytest.raises(UsageError, match=f"no {name}.*{REFUSED[name].split()[0]}"):
        TrainingArguments("out", **{name: "yes"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("eval_strategy", "epochs"),
        ("lr_scheduler_type", "greedy"),
        ("per_device_train_batch_size", 0),
        ("learning_rate", "fast"),
        ("logging_steps", 2.5),
        ("save_total_limit", 0),
        ("label_smoothing_factor", 1.0),
    ],
)
def test_a_value_that_cannot_be_is_refused(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=name):
        TrainingArguments("out", **{name: value})


def test_the_best_model_is_chosen_by_loss_unless_said() -> None:
    args = TrainingArguments("out", load_best_model_at_end=True)
    assert (args.metric_for_best_model, args.greater_is_better) == ("loss", False)
    assert TrainingArguments("out", metric_for_best_model="f1").greater_is_better is True


def test_precision_is_automatic_unless_bf16_is_said() -> None:
    found = [TrainingArguments("out", bf16=value).precision for value in (None, True, False)]
    assert found == ["auto", "bf16", "float32"]


def test_fp16_is_taken_as_bf16_where_native() -> None:
    with pytest.warns(WhetNotice, match="bf16"):
        assert TrainingArguments("out", fp16=True).precision == "auto"


def test_a_subclass_can_add_fields() -> None:
    @dataclasses.dataclass
    class Mine(TrainingArguments):
        temperature: float = 2.0

    mine = Mine("out", learning_rate=1e-4, temperature=3.0)
    assert (mine.learning_rate, mine.temperature, mine.eval_strategy) == (1e-4, 3.0, "no")


def test_stock_arguments_are_carried_over() -> None:
    from transformers import TrainingArguments as Stock

    stock = Stock("out", eval_strategy="epoch", learning_rate=1e-4, use_cpu=True, warmup_steps=5)
    args = from_stock(stock)
    assert (args.output_dir, args.eval_strategy, args.learning_rate, args.warmup_steps) == ("out", "epoch", 1e-4, 5)


def test_scripts_can_read_them_from_a_command_line() -> None:
    from transformers import HfArgumentParser

    line = ["--output_dir", "out", "--learning_rate", "1e-4", "--eval_strategy", "epoch", "--do_train"]
    line += ["--lr_scheduler_kwargs", '{"num_cycles": 2}', "--lr_scheduler_type", "cosine_with_restarts"]
    (args,) = HfArgumentParser((TrainingArguments,)).parse_args_into_dataclasses(line)
    assert (args.learning_rate, args.eval_strategy, args.do_train) == (1e-4, "epoch", True)
    assert args.lr_scheduler_kwargs == {"num_cycles": 2}


def documented() -> dict[str, tuple[str, str]]:
    """Stock default and ours of every field, as docs/trainer.md gives them."""
    page = (Path(__file__).parents[2] / "docs" / "trainer.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (gone|`[^|]*`) \| (same|`[^|]*`) \|", page, re.MULTILINE)
    return {name: (stock, stock if ours == "same" else ours) for name, stock, ours in rows}


def test_the_page_lists_every_field_with_both_defaults() -> None:
    stock, page = stock_fields(), documented()
    for field in dataclasses.fields(TrainingArguments):
        known = f"`{stock[field.name]!r}`" if field.name in stock else "gone"
        assert page[field.name] == (known, f"`{field.default!r}`"), field.name


def test_the_page_names_every_field_without_effect_or_refused() -> None:
    page = (Path(__file__).parents[2] / "docs" / "trainer.md").read_text(encoding="utf-8")
    assert not [name for name in (*RENAMED, *GONE, *WITHOUT_EFFECT, *REFUSED) if f"`{name}`" not in page]
