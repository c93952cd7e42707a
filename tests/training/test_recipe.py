"""Settings chosen from the rows: what is chosen, what wins over it, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from whet import TrainingArguments
from whet.config import make_config
from whet.errors import UsageError
from whet.task import Task
from whet.training.recipe import epochs_for, follow_recipe, rate_for, refuse_contrastive, resolve_folds

BINARY = Task("binary", ("no", "yes"))


@pytest.mark.parametrize("rows, epochs", [(16, 20), (300, 20), (1_000, 6), (10_000, 3), (10**6, 3)])
def test_fewer_rows_are_gone_through_more_often(rows: int, epochs: float) -> None:
    assert epochs_for(rows) == epochs


def test_epochs_only_fall_with_more_rows() -> None:
    found = [epochs_for(rows) for rows in range(1, 20_000, 37)]
    assert found == sorted(found, reverse=True)


def test_wider_models_have_a_lower_rate() -> None:
    found = [rate_for(width) for width in (64, 384, 512, 768, 1024, 2048)]
    assert found == [1e-4, 1e-4, 6.1e-5, 3e-5, 2e-5, 1e-5]


def test_the_recipe_is_the_default_and_the_trainer_keeps_the_course() -> None:
    assert make_config().train.recipe == "auto"
    course = TrainingArguments("out", bf16=False)
    assert (course.learning_rate, course.num_train_epochs, course.warmup_steps) == (5e-5, 3, 0)


@pytest.mark.parametrize(
    "settings, folds",
    [
        ({}, "auto"),
        ({"recipe": "course"}, 0),
        ({"seeds": 2}, 0),
        ({"patience": 3}, 0),
        ({"shard": True}, 0),
        ({"validation": "held.csv"}, 0),
        ({"test": "test.csv"}, "auto"),
        ({"test_share": 0.2}, 0),
        ({"recipe": "course", "folds": 4}, 4),
    ],
)
def test_folds_are_for_whom_no_split_was_asked(settings: dict[str, Any], folds: int | str) -> None:
    assert resolve_folds(make_config(settings)).data.folds == folds


def test_seeds_of_a_split_model_are_refused() -> None:
    with pytest.raises(UsageError, match="seeds is 2, and shard=True trains one model"):
        resolve_folds(make_config({"seeds": 2, "shard": True}))


def test_the_course_is_left_as_it_is() -> None:
    config = make_config({"recipe": "course"})
    assert follow_recipe(config, 128, BINARY, 384) == (config, "")


def test_the_recipe_says_what_it_chose_and_the_way_out() -> None:
    config, said = follow_recipe(make_config({"recipe": "auto"}), 128, BINARY, 384)
    assert said == (
        "Recipe for 128 rows: 20 epochs at 0.0001, contrastive loss (--recipe course for the usual settings)."
    )
    assert (config.train.epochs, config.train.contrastive, config.train.warmup) == (20, 0.5, 0.1)


def test_what_was_set_wins_even_where_it_is_the_default() -> None:
    config, _ = follow_recipe(make_config({"recipe": "auto", "lr": 5e-5, "contrastive": 0}), 128, BINARY, 384)
    assert (config.train.learning_rate, config.train.contrastive) == (5e-5, 0)
    assert config.train.epochs == 20


def test_a_number_of_steps_stands_for_the_epochs() -> None:
    config, said = follow_recipe(make_config({"recipe": "auto", "max_steps": 7}), 128, BINARY, 384)
    assert config.train.epochs == 3
    assert "7 steps" in said


def test_one_epoch_is_counted_as_one() -> None:
    assert "rows: 1 epoch at" in follow_recipe(make_config({"recipe": "auto", "epochs": 1}), 128, BINARY, 384)[1]


@pytest.mark.parametrize("task", [Task("regression", ()), Task("multilabel", ("a", "b"))])
def test_rows_without_one_class_are_not_compared(task: Task) -> None:
    assert follow_recipe(make_config({"recipe": "auto"}), 128, task, 384)[0].train.contrastive == 0
    with pytest.raises(UsageError, match=f"a {task.kind} task has no classes to compare"):
        refuse_contrastive(make_config({"contrastive": 0.5}), task)
