"""Settings chosen from the rows: what is chosen, what wins over it, what is refused."""

from __future__ import annotations

import pytest

from whet.config import make_config
from whet.errors import UsageError
from whet.task import Task
from whet.training.recipe import epochs_for, follow_recipe, rate_for, refuse_contrastive

BINARY = Task("binary", ("no", "yes"))


@pytest.mark.parametrize("rows, epochs", [(16, 20), (300, 20), (1_000, 6), (10_000, 3), (10**6, 3)])
def test_fewer_rows_are_gone_through_more_often(rows: int, epochs: float) -> None:
    assert epochs_for(rows) == epochs


def test_epochs_only_fall_with_more_rows() -> None:
    found = [epochs_for(rows) for rows in range(1, 20_000, 37)]
    assert found == sorted(found, reverse=True)


def test_wider_models_have_a_lower_rate() -> None:
    assert rate_for(384) == 1e-4
    assert rate_for(768) == 5e-5
    assert rate_for(64) == 1e-4


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


@pytest.mark.parametrize("task", [Task("regression", ()), Task("multilabel", ("a", "b"))])
def test_rows_without_one_class_are_not_compared(task: Task) -> None:
    assert follow_recipe(make_config({"recipe": "auto"}), 128, task, 384)[0].train.contrastive == 0
    with pytest.raises(UsageError, match=f"a {task.kind} task has no classes to compare"):
        refuse_contrastive(make_config({"contrastive": 0.5}), task)
