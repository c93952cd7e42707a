from __future__ import annotations

from typing import Any

import pytest

from whet.config import make_config
from whet.errors import UsageError
from whet.experiments.space import BATCHES, FACTORS, RANGES, SEARCHED, Space
from whet.task import Task

CLASSES, NUMBER = Task("binary", ("no", "yes")), Task("regression", ())


class Corner:
    """A trial that takes the lowest, or the highest, of everything."""

    def __init__(self, *, highest: bool) -> None:
        self.highest = highest

    def suggest_float(self, name: str, low: float, high: float, log: bool = False) -> float:
        return high if self.highest else low

    def suggest_categorical(self, name: str, choices: list[Any]) -> Any:
        return choices[-1 if self.highest else 0]


@pytest.mark.parametrize(
    "given, models, task, left_out",
    [
        ({}, ("a", "b"), CLASSES, set()),
        ({}, ("a",), CLASSES, {"model"}),
        ({"model": "a"}, ("a", "b"), CLASSES, set()),
        ({}, ("a",), NUMBER, {"model", "contrastive"}),
        ({"epochs": 2, "lr": 1e-4}, ("a",), CLASSES, {"model", "epochs", "learning_rate"}),
        ({"max_steps": 20}, ("a",), CLASSES, {"model", "epochs"}),
    ],
)
def test_what_is_given_or_means_nothing_is_not_searched(
    given: dict[str, Any], models: tuple[str, ...], task: Task, left_out: set[str]
) -> None:
    assert set(SEARCHED) - set(Space.around(make_config(given), models, task).names) == left_out


def test_the_start_changes_no_setting() -> None:
    config = make_config({"warmup": 0.1}).replaced({"contrastive": 0.5})
    space = Space.around(config, ("a", "b"), CLASSES)
    assert space.settings(space.start(), config) == {}
    assert space.start()["contrastive"] == 0.5


def test_the_ends_of_the_ranges_are_settings_around_the_recipe() -> None:
    config = make_config({}).replaced({"learning_rate": 1e-4, "epochs": 6.0})
    space = Space.around(config, ("a", "b"), CLASSES)
    low, high = (space.settings(space.suggested(Corner(highest=end)), config) for end in (False, True))
    assert low["learning_rate"] == pytest.approx(1e-4 * FACTORS["learning_rate"][0])
    assert high["epochs"] == pytest.approx(6 * FACTORS["epochs"][1])
    assert (low["batch_size"], high["batch_size"]) == (BATCHES[0], BATCHES[-1])
    assert {name: (low[name], high[name]) for name in RANGES} == RANGES
    assert (low["model"], high["model"]) == ("a", "b")
    for found in (low, high):
        config.replaced(found)  # each is a setting that a run takes


def test_a_batch_outside_the_usual_ones_is_among_the_choices() -> None:
    config = make_config({}).replaced({"batch_size": 24})
    space = Space.around(config, ("a",), CLASSES)
    assert space.start()["batch_size"] == 24
    assert space.suggested(Corner(highest=False))["batch_size"] == 8


def test_nothing_left_to_search_is_refused() -> None:
    with pytest.raises(UsageError, match="Every setting"):
        Space.around(
            make_config(dict.fromkeys(RANGES, 0) | {"lr": 1e-4, "epochs": 1, "batch_size": 8}), ("a",), CLASSES
        )
