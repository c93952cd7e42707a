"""A verdict that knows its baselines, and how little a few rows can tell."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from tests.run_folders import build_run
from whet.records import Baselines, End, Evaluation, Start
from whet.runs.verdict.features import CurveData
from whet.runs.verdict.judge import PROBLEM_VERDICTS, Verdict, judge, verdict_of

BY_HEART = {
    "evaluation": [0.71, 0.72, 0.74, 0.78, 0.84, 0.92, 1.02, 1.10],
    "training": [0.68, 0.62, 0.52, 0.40, 0.28, 0.18, 0.10, 0.06],
    "score": [0.50, 0.51, 0.49, 0.50, 0.51, 0.50, 0.49, 0.50],
}
"""Learnt by heart, and never right elsewhere."""
FLAT = {"evaluation": [0.693] * 8, "training": [0.69] * 8, "score": [0.5] * 8}
FALLING = {
    "evaluation": [0.6, 0.5, 0.42, 0.36, 0.31, 0.27, 0.24, 0.22],
    "training": [0.6, 0.5, 0.42, 0.36, 0.31, 0.27, 0.24, 0.22],
    "score": [0.7, 0.75, 0.8, 0.83, 0.86, 0.88, 0.9, 0.91],
}
ZIGZAG = {
    "evaluation": [0.60, 0.40, 0.58, 0.36, 0.55, 0.33, 0.52, 0.30],
    "training": [0.55, 0.42, 0.46, 0.33, 0.38, 0.27, 0.30, 0.22],
    "score": [0.70, 0.80, 0.74, 0.82, 0.76, 0.84, 0.78, 0.86],
}


def judged(curve: dict[str, list[float]], **more: Any) -> Verdict:
    arrays = {name: np.array(values) for name, values in curve.items()}
    steps = np.arange(1, 9) * 20
    settings = {"chance": math.log(2), "majority": 0.5, "rows": 400, "metric": "accuracy", "learning_rate": 1e-4}
    return judge(CurveData(steps=steps, **arrays, **{**settings, "epochs": 20.0, **more}))


def baseline(name: str, value: float, p_value: float, above: float = 1.0, association: float = 0.0) -> dict[str, Any]:
    return {
        "name": name,
        "value": value,
        "interval": None,
        "p_value": p_value,
        "association": association,
        "above_commonest": above,
        "trained_on": None,
    }


def recorded(value: float, *others: dict[str, Any], association: float = 0.0, **more: Any) -> Baselines:
    return Baselines(
        step=160,
        split="validation",
        metric="accuracy",
        value=value,
        association=association,
        interval=[value - 0.05, value + 0.05],
        baselines=[*others, baseline("commonest", 0.5, 0.9 if value < 0.55 else 1e-6)],
        **{"rows": 400, **more},
    )


NOBODY = (baseline("frozen", 0.52, 0.6), baseline("TF-IDF", 0.51, 0.7))


# --- few rows -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("curve", "verdict"), [(BY_HEART, "label-noise-suspected"), (ZIGZAG, "erratic")])
def test_thirteen_rows_are_not_enough_to_blame_labels_or_call_a_curve_erratic(
    curve: dict[str, list[float]], verdict: str
) -> None:
    assert judged(curve).verdict == verdict
    few = judged(curve, rows=13)
    assert few.verdict != verdict
    assert "13 evaluation rows determine a score of accuracy to 27.7 points either way" in few.doubt


def test_how_sure_falls_with_the_rows_and_is_said_once() -> None:
    many, few = judged(FALLING), judged(FALLING, rows=13)
    assert (many.verdict, many.doubt, few.verdict) == ("healthy", "", "healthy")
    assert few.confidence < many.confidence
    assert len([line for line in few.lines() if "nsure" in line or "onfidence" in line]) == 1
    assert few.tone == "warn"


def test_a_curve_that_is_unsure_is_not_to_be_trained_again_but_judged_by_its_score() -> None:
    few = judged(FALLING, rows=13, baselines=recorded(0.9, rows=13))
    assert few.advice == "Go by the score, not by the curve: accuracy 85.0% to 95.0% on 13 validation rows."
    assert "Ship it" not in judged(FALLING, rows=13).advice
    assert "rain once more" not in few.advice


def test_what_stands_on_training_rows_is_as_sure_on_few_evaluation_rows() -> None:
    broken = {**FALLING, "training": [0.6, 0.5, math.nan, 0.4, 0.3, 0.3, 0.2, 0.2]}
    assert judged(broken, rows=5).doubt == ""
    assert judged(broken, rows=5).confidence == judged(broken).confidence


def test_where_the_number_of_rows_is_unknown_nothing_is_held_back() -> None:
    assert judged(ZIGZAG, rows=0).verdict == "erratic"


# --- beyond this model ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("curve", [BY_HEART, FLAT])
def test_what_no_answer_finds_on_few_rows_is_beyond_the_model(curve: dict[str, list[float]]) -> None:
    found = judged(curve, rows=128, baselines=recorded(0.51, *NOBODY, rows=128))
    assert found.verdict == "beyond-this-model"
    assert found.sentence.startswith("Beyond this model on these rows: on 128 validation rows")
    assert "52.0%" in found.sentence
    assert "51.0%" in found.sentence
    assert "larger model (--model)" in found.advice
    assert "More labelled rows" in found.advice
    assert found.baseline == ""
    assert found.verdict not in PROBLEM_VERDICTS


def test_many_rows_on_which_no_answer_has_to_do_with_the_labels_speak_for_wrong_labels() -> None:
    assert judged(BY_HEART, baselines=recorded(0.51, *NOBODY)).verdict == "label-noise-suspected"
    weak = recorded(0.51, *NOBODY, association=3.0)
    assert judged(BY_HEART, baselines=weak).verdict == "beyond-this-model"
    other = recorded(0.51, baseline("frozen", 0.52, 0.6, association=3.0))
    assert judged(BY_HEART, baselines=other).verdict == "beyond-this-model"


def test_labels_that_a_simpler_answer_finds_are_neither_wrong_nor_beyond_the_model() -> None:
    found = judged(BY_HEART, rows=128, baselines=recorded(0.51, baseline("TF-IDF", 0.75, 1e-5, 1e-6, 8.0), rows=128))
    assert found.verdict == "overfitting"
    assert found.baseline.startswith("Worse than a linear model on TF-IDF (75.0%) on the same 128 validation rows")
    stuck = judged(FLAT, rows=128, baselines=recorded(0.51, baseline("TF-IDF", 0.75, 1e-5, 1e-6, 8.0), rows=128))
    assert stuck.verdict == "not-learning"
    assert "--epochs 60" in stuck.advice


def test_a_model_that_was_hardly_trained_is_not_said_to_be_beaten_by_the_task() -> None:
    assert judged(FLAT, rows=128, learning_rate=2e-5, baselines=recorded(0.51, *NOBODY)).verdict != "beyond-this-model"


def test_a_model_that_learns_is_not_beyond_it() -> None:
    assert judged(FALLING, baselines=recorded(0.91, *NOBODY)).verdict == "healthy"
    assert judged(BY_HEART, rows=128).verdict == "label-noise-suspected"


# --- fine-tuning against simpler answers ----------------------------------------------------------------------------


def test_a_better_baseline_is_named_with_what_to_do_and_ship_it_is_not_said() -> None:
    found = judged(FALLING, baselines=recorded(0.91, baseline("frozen", 0.95, 0.01, 1e-9)))
    assert found.baseline == (
        "Worse than a linear model on the frozen encoder (95.0%) on the same 400 validation rows "
        "(accuracy 91.0%, p = 0.01)."
    )
    assert found.advice == "More labelled rows or a larger model (--model) would let fine-tuning pay."


def test_a_baseline_that_cannot_be_told_apart_is_named() -> None:
    found = judged(FALLING, baselines=recorded(0.91, baseline("frozen", 0.90, 0.4, 1e-9)))
    assert found.baseline.startswith("No better than a linear model on the frozen encoder (90.0%), as far as 400")
    assert "Ship it" in found.advice


def test_beaten_baselines_are_not_mentioned() -> None:
    assert judged(FALLING, baselines=recorded(0.91, baseline("frozen", 0.7, 1e-6, 1e-9))).baseline == ""


def test_a_smaller_error_is_ahead() -> None:
    other = baseline("frozen", 0.2, 0.001, 1e-9)
    found = dataclasses.replace(recorded(0.3, other), metric="mse")
    score = [-0.9, -0.8, -0.7, -0.6, -0.5, -0.4, -0.35, -0.3]
    more = {"majority": -1.0, "metric": "mse", "higher_is_better": False}
    assert judged({**FALLING, "score": score}, baselines=found, **more).baseline.startswith("Worse than")
    worse = dataclasses.replace(found, baselines=[{**other, "value": 0.4}])
    assert judged({**FALLING, "score": score}, baselines=worse, **more).baseline == ""


# --- records --------------------------------------------------------------------------------------------------------


def test_the_record_of_most_rows_is_read_and_rows_that_folds_held_out_count(tmp_path: Any) -> None:
    records = [
        dataclasses.replace(record, rows=900, out_of_fold=True) if isinstance(record, Evaluation) else record
        for record in build_run(tmp_path / "run", rows=120, test=False).records()
    ]
    start, end = records[0], records[-1]
    assert isinstance(start, Start)
    assert isinstance(end, End)
    small = recorded(0.7, baseline("frozen", 0.9, 1e-5, 1e-9), rows=50)
    large = dataclasses.replace(small, rows=90, split="test")
    found = verdict_of([dataclasses.replace(start, rows={"train": 900}), *records[1:-1], large, small, end])
    assert "90 test rows" in found.baseline
    share = start.majority["accuracy"]
    assert found.numbers["score_error"] == pytest.approx(math.sqrt(share * (1 - share) / 900), abs=1e-6)
