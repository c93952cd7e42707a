from __future__ import annotations

import numpy as np
import pytest

from whet.experiments.measure import beside_default, measured, sentence_of, winner_of
from whet.experiments.search import Trial
from whet.runs.compare import Predicted


def trial(number: int, score: float | None, state: str = "finished") -> Trial:
    return Trial(number=number, state=state, score=score, seconds=1.0)


def answer(right: int, rows: int = 200) -> Predicted:
    labels = np.arange(rows) % 2
    said = np.where(np.arange(rows) < right, labels, 1 - labels)
    return Predicted(list(range(rows)), labels, said)


@pytest.mark.parametrize(
    "trials, higher, winner",
    [
        ([trial(0, 0.8), trial(1, 0.9)], True, 1),
        ([trial(0, 0.8), trial(1, 0.9)], False, 0),
        ([trial(0, 0.9), trial(1, 0.9)], True, 0),
        ([trial(0, 0.8), trial(1, 0.9, "pruned"), trial(2, None, "diverged")], True, 0),
    ],
)
def test_the_best_finished_trial_wins_and_the_first_of_equals(trials: list[Trial], higher: bool, winner: int) -> None:
    assert winner_of(trials, higher=higher).number == winner


@pytest.mark.parametrize("right, better", [(180, True), (164, False), (160, False), (120, False)])
def test_only_what_the_paired_test_sees_is_better(right: int, better: bool) -> None:
    found, said = beside_default("trial-004", answer(160), answer(right), "accuracy")
    assert said is better
    assert "held-out rows" in found.sentence


def test_a_lower_error_is_better() -> None:
    labels = np.linspace(0, 5, 200)
    far, near = (Predicted(list(range(200)), labels, labels + off * np.sin(np.arange(200))) for off in (1.0, 0.2))
    assert beside_default("trial-001", far, near, "mse")[1]
    assert not beside_default("trial-001", near, far, "mse")[1]


def test_the_sentence_names_what_is_shipped() -> None:
    found, _ = beside_default("trial-004", answer(160), answer(164), "accuracy")
    said = sentence_of(9, "default", measured("default", answer(160), "accuracy"), "accuracy", 200, found)
    assert said.startswith("Not better than the default. No difference between default and trial-004")
    assert said.endswith("Shipped: default.")
    alone = sentence_of(9, "default", measured("default", answer(160), "accuracy"), "accuracy", 200, None)
    assert alone.startswith("None of 9 other trainings scored higher than the default")
