"""The numbers that the rules look at, on curves whose numbers are known."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from whet.runs.verdict.features import CurveData, CurveFeatures, crawls, few_rows, overlaps
from whet.runs.verdict.judge import _replayed
from whet.runs.verdict.rules import underfitting


def curve(losses: Any, *, score: Any = None, **more: Any) -> CurveFeatures:
    """Losses whose chance is 1, so that features are of the losses themselves."""
    data = {"steps": 10 * np.arange(1, len(losses) + 1), "evaluation": np.array(losses, float), "chance": 1.0}
    scores = None if score is None else np.array(score, float)
    return CurveFeatures(CurveData(**{**data, "score": scores, "majority": 0.5, "rows": 400, **more}))


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        (np.linspace(1.0, 0.7, 12), True),
        ([1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.499, 0.498, 0.497, 0.496, 0.495, 0.494], False),  # nearly at its end
        (np.linspace(0.7, 1.0, 12), False),
    ],
)
def test_a_curve_crawls_while_its_last_third_falls_as_the_others_did(losses: Any, expected: bool) -> None:
    assert crawls(curve(losses)) is expected


def test_of_eight_evaluations_two_may_stand_out_of_order() -> None:
    losses = [1.06, 0.92, 1.02, 0.79, 0.79, 0.84, 0.75, 0.82]
    assert curve(losses).order == pytest.approx(-0.71, abs=0.01)
    assert crawls(curve(losses))


@pytest.mark.parametrize(("lowest", "learnt"), [(0.92, True), (0.94, False)])
def test_without_a_score_a_loss_below_chance_is_what_was_learnt(lowest: float, learnt: bool) -> None:
    assert curve([1.0, 0.98, 0.96, 0.95, lowest, lowest, lowest, lowest]).beats_majority is learnt


@pytest.mark.parametrize(("loss", "learnt"), [(0.96, True), (0.98, False)])
def test_a_model_underfits_only_if_it_has_learnt_something(loss: float, learnt: bool) -> None:
    losses = [1.0, 0.99, loss, loss, loss, loss, loss, loss]
    assert (underfitting(curve(losses, training=np.array(losses))) is not None) is learnt


@pytest.mark.parametrize(("share", "much"), [(0.0, False), (0.01, False), (0.011, True), (0.5, True)])
def test_from_a_hundredth_of_the_rows_on_splits_overlap(share: float, much: bool) -> None:
    assert overlaps(curve([1.0] * 8, overlap=share)) is much


def test_a_median_of_more_evaluations_owes_less_to_noise() -> None:
    losses = 0.5 + 0.05 * np.random.default_rng(0).standard_normal(48)
    found = curve(losses)
    assert found.volatility == pytest.approx(0.05, rel=0.3)
    assert found.wobble == pytest.approx(found.volatility / 4)


@pytest.mark.parametrize(("rows", "few"), [(0, False), (13, True), (35, True), (37, False), (400, False)])
def test_so_few_rows_leave_a_third_of_the_way_open(rows: int, few: bool) -> None:
    assert few_rows(curve([1.0] * 8, rows=rows)) is few
    if rows:
        assert curve([1.0] * 8, rows=rows).left_open == pytest.approx(2 / math.sqrt(rows))


def test_a_smooth_curve_is_replayed_with_a_little_noise() -> None:
    smooth = curve([0.5] * 4000, score=[0.8] * 4000, training=np.full(4000, 0.4), chance=2.0)
    again = _replayed(smooth, np.random.default_rng(0))
    assert again.training is not None
    assert again.score is not None
    assert np.std(again.evaluation) == pytest.approx(0.006, rel=0.05)
    assert np.std(again.training) == pytest.approx(0.006, rel=0.05)
    assert np.std(again.score) == pytest.approx(0.1 * smooth.error, rel=0.05)
