import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.synthetic_curves import TRUTHS, Sample, draw, sample
from whet.errors import UsageError
from whet.records import End, Evaluation, Record, Start, Step
from whet.runs.verdict.features import CurveData, CurveFeatures, rank_correlation
from whet.runs.verdict.foreign_logs import Constants, read_observed
from whet.runs.verdict.judge import PROBLEM_VERDICTS, VERDICTS, Verdict, entropy, judge, verdict_of
from whet.runs.verdict.rules import first_call, not_enough


def seen(curve: Sample) -> CurveData:
    return CurveData(
        steps=curve.steps,
        evaluation=curve.eval_loss,
        training=curve.train_loss,
        score=curve.metric,
        chance=entropy(curve.prior),
        majority=max(curve.prior),
        rows=curve.rows,
    )


def called(curve: Sample) -> str:
    return first_call(CurveFeatures(seen(curve))).verdict


def plain(evaluation: list[float], training: list[float], score: list[float], **more: object) -> CurveData:
    return CurveData(
        steps=np.arange(1, len(evaluation) + 1) * 10,
        evaluation=np.array(evaluation),
        training=np.array(training),
        score=np.array(score),
        **{"chance": math.log(2), "majority": 0.5, "rows": 400, "metric": "accuracy", **more},  # type: ignore[arg-type]
    )


LOSSES = st.floats(0, 1e6) | st.sampled_from([math.nan, math.inf])
OVERFITTED = plain(
    [0.60, 0.50, 0.45, 0.50, 0.58, 0.66, 0.75, 0.82],
    [0.58, 0.45, 0.33, 0.22, 0.14, 0.08, 0.04, 0.02],
    [0.70, 0.76, 0.80, 0.80, 0.79, 0.80, 0.80, 0.80],
)


def macro_f1(curves: list[Sample]) -> float:
    pairs = [(curve.truth, called(curve)) for curve in curves]
    scores = []
    for kind in TRUTHS:
        hits = sum(truth == found == kind for truth, found in pairs)
        misses = sum((truth == kind) != (found == kind) for truth, found in pairs)
        scores.append(2 * hits / (2 * hits + misses))
    return sum(scores) / len(scores)


def test_curves_of_every_kind_are_told_apart() -> None:
    assert macro_f1(sample(25, seed=5)) >= 0.95


def test_twice_the_noise_is_borne() -> None:
    assert macro_f1(sample(25, noise=2, seed=6)) >= 0.90


def test_healthy_curves_are_not_called_sick() -> None:
    sick = [called(draw("healthy", seed)) in PROBLEM_VERDICTS for seed in range(300)]
    assert sum(sick) <= 6


@settings(max_examples=25)
@given(st.sampled_from(TRUTHS), st.integers(0, 10_000), st.integers(2, 1000))
def test_scaling_the_steps_changes_nothing_but_the_step(truth: str, seed: int, factor: int) -> None:
    curve = seen(draw(truth, seed))
    scaled = judge(dataclasses.replace(curve, steps=curve.steps * factor))
    once = judge(curve)
    assert (scaled.verdict, scaled.confidence) == (once.verdict, once.confidence)
    assert scaled.step == once.step * factor


@settings(max_examples=25)
@given(st.sampled_from(TRUTHS), st.integers(0, 10_000), st.integers(0, 3), st.sampled_from([math.nan, math.inf]))
def test_a_loss_that_is_not_finite_is_diverging(truth: str, seed: int, where: int, bad: float) -> None:
    curve = seen(draw(truth, seed))
    broken = curve.evaluation.copy()
    broken[where] = bad
    assert judge(dataclasses.replace(curve, evaluation=broken)).verdict == "diverging"


@given(st.integers(0, 3))
def test_few_evaluations_are_not_judged(count: int) -> None:
    found = judge(plain([0.7] * count, [0.7] * count, [0.5] * count))
    assert found.verdict == "not-enough"
    assert "4" in found.sentence


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(LOSSES, LOSSES, st.floats(0, 1)), max_size=12),
    st.integers(0, 1000),
)
def test_any_curve_gets_a_verdict_that_is_json(points: list[tuple[float, float, float]], rows: int) -> None:
    columns = [list(column) for column in zip(*points, strict=True)] or [[], [], []]
    found = judge(plain(*columns, rows=rows))
    assert found.verdict in VERDICTS
    assert 0 <= found.confidence <= 1
    json.dumps(found.as_dict(), allow_nan=False)


def test_a_verdict_names_numbers_step_and_flag() -> None:
    found = judge(dataclasses.replace(OVERFITTED, learning_rate=5e-5, epochs=8.0))
    assert (found.verdict, found.step) == ("overfitting", 30)
    assert "0.450" in found.sentence
    assert "0.820" in found.sentence
    assert "--lr 2e-05" in found.advice
    assert "--epochs 3" in found.advice


def test_a_falling_score_makes_overfitting_severe() -> None:
    assert OVERFITTED.score is not None
    falling = OVERFITTED.score - np.linspace(0, 0.15, 8)
    severe = judge(dataclasses.replace(OVERFITTED, score=falling))
    assert (severe.numbers["severe"], judge(OVERFITTED).numbers["severe"]) == (1, 0)
    assert "fell by" in severe.sentence
    assert "held" in judge(OVERFITTED).sentence


def test_a_score_that_held_is_no_reason_to_train_less_on_few_rows() -> None:
    few = judge(dataclasses.replace(OVERFITTED, rows=60))
    assert "keep this model" in few.advice
    assert "--epochs" not in few.advice
    assert "would have scored as well" in judge(dataclasses.replace(OVERFITTED, rows=4_000)).advice


def test_memorised_labels_that_never_help_are_suspected() -> None:
    rising = judge(dataclasses.replace(OVERFITTED, evaluation=OVERFITTED.evaluation + 0.3, score=np.full(8, 0.5)))
    assert rising.verdict == "label-noise-suspected"


def test_known_overlap_is_a_leak_whatever_the_curve() -> None:
    falling = [0.6, 0.5, 0.42, 0.36, 0.31, 0.27, 0.24, 0.22]
    curve = plain(falling, falling, [0.7, 0.75, 0.8, 0.83, 0.86, 0.88, 0.9, 0.91])
    assert judge(curve).verdict == "healthy"
    found = judge(dataclasses.replace(curve, overlap=0.03))
    assert (found.verdict, "3.0%" in found.sentence) == ("leak-suspected", True)


def test_a_clear_curve_is_surer_than_a_borderline_one() -> None:
    borderline = np.array([0.60, 0.50, 0.45, 0.46, 0.47, 0.48, 0.49, 0.502])
    unsure = judge(dataclasses.replace(OVERFITTED, evaluation=borderline))
    assert unsure.confidence < judge(OVERFITTED).confidence


def test_a_verdict_that_its_own_noise_speaks_against_names_the_other_one() -> None:
    evaluation = [0.729, 0.503, 0.509, 0.407, 0.454, 0.402, 0.398, 0.339]
    training = [0.7, 0.58, 0.497, 0.44, 0.401, 0.372, 0.352, 0.336]
    found = judge(plain(evaluation, training, [0.618, 0.652, 0.652, 0.698, 0.719, 0.757, 0.776, 0.839]))
    assert (found.verdict, found.confidence < 0.5) == ("healthy", True)
    assert "is called erratic 18 times of 30" in found.doubt
    assert found.doubt in found.lines()
    assert judge(OVERFITTED).doubt == ""


def test_what_noise_speaks_against_is_neither_green_nor_to_be_shipped() -> None:
    evaluation = [0.729, 0.503, 0.509, 0.407, 0.454, 0.402, 0.398, 0.339]
    training = [0.7, 0.58, 0.497, 0.44, 0.401, 0.372, 0.352, 0.336]
    score = [0.618, 0.652, 0.652, 0.698, 0.719, 0.757, 0.776, 0.839]
    falling = [0.6, 0.5, 0.42, 0.36, 0.31, 0.27, 0.24, 0.22]
    doubtful, clear = judge(plain(evaluation, training, score)), judge(plain(falling, falling, score))
    assert (doubtful.tone, "Ship it" in doubtful.advice) == ("warn", False)
    assert (clear.tone, "Ship it" in clear.advice) == ("good", True)


def test_without_training_loss_a_curve_is_still_judged() -> None:
    assert judge(dataclasses.replace(OVERFITTED, training=None)).verdict == "overfitting"


def test_without_a_score_a_curve_is_still_judged() -> None:
    assert judge(dataclasses.replace(OVERFITTED, score=None)).verdict == "overfitting"


def test_no_better_than_the_commonest_answer_is_said_beside_the_verdict() -> None:
    flat = judge(plain([0.69] * 6, [0.69] * 6, [0.676] * 6, majority=0.676, answer="always answering 'equivalent'"))
    assert flat.verdict == "not-learning"
    assert flat.baseline.startswith("No better than always answering 'equivalent' (67.6%)")
    assert judge(OVERFITTED).baseline == ""


def test_a_better_accuracy_counts_where_the_main_metric_hides_it() -> None:
    losses = [0.6, 0.55, 0.5, 0.46, 0.43, 0.40]
    f1 = [0.80, 0.81, 0.81, 0.82, 0.82, 0.82]
    hidden = run(losses, f1=f1, majority={"label": "yes", "f1": 0.812, "accuracy": 0.68})
    shown = run(losses, f1=f1, accuracy=[0.8] * 6, majority={"label": "yes", "f1": 0.812, "accuracy": 0.68})
    assert verdict_of(hidden).baseline != ""
    assert verdict_of(shown).baseline == ""


def run(losses: list[float], majority: dict[str, object], task: str = "binary", **metrics: list[float]) -> list[Record]:
    start = Start(
        step=0,
        total_steps=len(losses) * 10,
        steps_per_epoch=20,
        task=task,
        labels=["no", "yes"] if task == "binary" else [],
        rows={"train": 1000, "validation": 400},
        prior={"train": [0.32, 0.68], "validation": [0.32, 0.68]} if task == "binary" else {},
        metric=next(iter(metrics)),
        higher_is_better=True,
        majority=majority,
    )
    records: list[Record] = [start]
    for index, loss in enumerate(losses):
        records.append(Step(step=10 * (index + 1), epoch=0.5, loss=loss + 0.02, learning_rate=5e-5))
        scores = {name: values[index] for name, values in metrics.items()}
        records.append(
            Evaluation(step=10 * (index + 1), epoch=0.5, split="validation", loss=loss, metrics=scores, rows=400)
        )
    return records


@pytest.mark.parametrize("names", [["accuracy", "f1"], ["f1", "accuracy"]])
def test_the_order_of_the_metrics_does_not_matter(names: list[str]) -> None:
    scores = {"accuracy": [0.69, 0.75, 0.80, 0.83, 0.85, 0.87], "f1": [0.8, 0.84, 0.87, 0.88, 0.89, 0.9]}
    records = run([0.6, 0.5, 0.42, 0.36, 0.31, 0.27], {"accuracy": 0.68}, **{name: scores[name] for name in names})
    start = dataclasses.replace(records[0], metric="accuracy")  # type: ignore[call-arg]
    assert verdict_of([start, *records[1:]]).verdict == "healthy"


def test_regression_is_judged_against_the_mean() -> None:
    falling = [2.0, 1.5, 1.1, 0.8, 0.6, 0.5]
    learning = run(falling, {"mse": 2.2, "pearson": 0.0}, "regression", pearson=[0.2, 0.5, 0.65, 0.75, 0.8, 0.83])
    stuck = run([2.2] * 6, {"mse": 2.2, "pearson": 0.0}, "regression", pearson=[0.01] * 6)
    assert verdict_of(learning).verdict == "healthy"
    assert verdict_of(stuck).verdict == "not-learning"
    assert "the mean" in verdict_of(stuck).sentence


def test_several_labels_a_row_have_their_own_chance_loss() -> None:
    records = run([0.5] * 6, {}, micro_f1=[0.3] * 6)
    start = dataclasses.replace(records[0], task="multilabel", prior={"validation": [0.5, 0.1]})  # type: ignore[call-arg]
    expected = (entropy((0.5, 0.5)) + entropy((0.1, 0.9))) / 2
    assert verdict_of([start, *records[1:]]).numbers["chance_loss"] == pytest.approx(expected, abs=1e-5)


def test_a_run_that_stopped_on_a_bad_loss_has_diverged_before_any_evaluation() -> None:
    records = run([], {}, accuracy=[])
    found = verdict_of([*records, End(step=7, reason="diverged", best_step=-1)])
    assert (found.verdict, found.step) == ("diverging", 7)


def test_too_few_records_are_not_enough() -> None:
    assert verdict_of([]).verdict == "not-enough"


def test_every_verdict_that_can_be_called_is_listed() -> None:
    assert set(TRUTHS) | {"not-enough", "text-unknown", "beyond-this-model"} == set(VERDICTS)
    assert not_enough(CurveFeatures(OVERFITTED)) is None
    assert isinstance(judge(OVERFITTED), Verdict)


FLAT = plain([0.7] * 8, [0.7] * 8, [0.5] * 8, learning_rate=1e-7)


def test_text_that_the_model_does_not_know_is_blamed_and_not_the_rate() -> None:
    assert judge(FLAT).verdict == "rate-too-low"
    found = judge(dataclasses.replace(FLAT, unknown=0.97))
    assert found.verdict == "text-unknown"
    assert "97% of the tokens" in found.sentence
    assert "--lr" not in found.advice


def test_a_part_that_the_model_does_not_know_comes_first_in_the_advice() -> None:
    healthy = plain([0.6, 0.5, 0.4, 0.3, 0.25, 0.2], [0.6, 0.5, 0.4, 0.3, 0.25, 0.2], [0.7, 0.8, 0.9, 0.9, 0.9, 0.92])
    assert judge(healthy).advice.startswith("Ship it")
    found = judge(dataclasses.replace(healthy, unknown=0.24))
    assert found.verdict == judge(healthy).verdict
    assert found.advice.startswith("24% of the tokens are unknown to this model")


def test_the_first_record_says_how_much_is_unknown() -> None:
    start, *others = run([0.7] * 6, {"train": [0.5, 0.5]}, accuracy=[0.5] * 6)
    assert isinstance(start, Start)
    assert verdict_of([dataclasses.replace(start, unknown=0.9), *others]).verdict == "text-unknown"


def test_rank_correlation_knows_ties() -> None:
    assert rank_correlation(np.array([1.0, 2.0, 3.0])) == pytest.approx(1)
    assert rank_correlation(np.array([5.0, 5.0, 5.0])) == 0


U_TURN = (0.95, 0.60, 0.70, 0.95)


def judged(
    evaluation: tuple[float, ...], training: tuple[float, ...], score: tuple[float, ...], **more: Any
) -> Verdict:
    steps = np.arange(1, len(evaluation) + 1) * 10
    values = (np.array(each, float) * math.log(2) for each in (evaluation, training))
    losses = dict(zip(("evaluation", "training"), values, strict=True))
    settings = {"chance": math.log(2), "majority": 0.5, "rows": 1000, "metric": "accuracy", **more}
    return judge(CurveData(steps=steps, score=np.array(score, float), **losses, **settings))


def test_a_short_turn_upwards_is_overfitting() -> None:
    found = judged(U_TURN, (0.9, 0.5, 0.3, 0.1), (0.55, 0.75, 0.76, 0.75))
    assert (found.verdict, found.step) == ("overfitting", 20)


def test_a_restless_running_loss_is_no_sign_of_a_high_rate() -> None:
    flat = (1.0, 1.01, 1.0, 1.0, 1.01, 1.0, 1.0, 1.01)
    running = (1.12, 0.98, 1.15, 1.0, 1.13, 0.97, 1.1, 1.02)
    assert judged(flat, running, (0.5,) * 8, probe=False).verdict == "not-learning"


def test_a_collapse_to_chance_at_the_end_is_diverging() -> None:
    found = judged((0.9, 0.6, 0.3, 0.25, 0.5, 2.6), (0.9, 0.7, 0.4, 0.3, 0.4, 1.2), (0.6, 0.8, 0.85, 0.86, 0.8, 0.5))
    assert found.verdict == "diverging"
    assert "evaluation loss" in found.sentence


def test_the_epochs_advised_are_those_that_gave_the_score() -> None:
    """The last score is best by luck: the advice is the first that is as good."""
    rising = (0.9, 0.5, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65)
    found = judged(rising, (0.9, 0.5, 0.3, 0.2, 0.1, 0.08, 0.05, 0.03), (0.6, 0.8, 0.85, 0.85, 0.85, 0.85, 0.85, 0.855))
    assert "--epochs × 0.38" in found.advice


@pytest.mark.parametrize(("rate", "expected"), [(5e-6, "rate-too-low"), (5e-5, "not-learning")])
def test_weights_that_could_not_move_say_nothing_about_the_data(rate: float, expected: str) -> None:
    """Sixty steps: at the lower rate too little to learn anything, whatever the labels are."""
    flat = plain(
        [0.694, 0.696, 0.697, 0.698, 0.699, 0.699],
        [0.692, 0.686, 0.682, 0.680, 0.678, 0.677],
        [0.50, 0.50, 0.51, 0.50, 0.50, 0.50],
        learning_rate=rate,
    )
    found = judge(flat)
    assert found.verdict == expected
    assert "falls" not in found.sentence


def test_a_loss_on_its_way_down_to_chance_is_slow_also_at_a_usual_rate() -> None:
    slow = plain(
        [0.76, 0.75, 0.74, 0.73, 0.72, 0.715],
        [0.75, 0.74, 0.73, 0.72, 0.71, 0.705],
        [0.50] * 6,
        learning_rate=2e-5,
    )
    assert judge(slow).verdict == "rate-too-low"


SUDDEN = {
    "evaluation": [0.693, 0.693, 0.693, 0.684, 0.189, 0.024, 0.171, 0.008],
    "training": [0.69, 0.69, 0.69, 0.66, 0.15, 0.01, 0.01, 0.005],
    "score": [0.5, 0.5, 0.5, 0.81, 1.0, 1.0, 0.94, 1.0],
}


@pytest.mark.parametrize(("until", "wrong"), [(4, "rate-too-high"), (8, "erratic")])
def test_a_sudden_success_is_no_sickness(until: int, wrong: str) -> None:
    few = {name: values[:until] for name, values in SUDDEN.items()}
    assert judge(plain(**few, rows=16, learning_rate=1e-3, probe=True)).verdict != wrong


def test_what_is_no_better_than_one_answer_is_not_to_be_shipped() -> None:
    falling = [0.635, 0.55, 0.48, 0.42, 0.36, 0.31, 0.28, 0.25]
    found = judge(plain(falling, falling, [0.5] * 8))
    assert found.baseline
    assert "Ship it" not in found.advice


def test_a_run_says_itself_what_constants_are_for(tmp_path: Any) -> None:
    with pytest.raises(UsageError, match="is a run"):
        read_observed(tmp_path, Constants(rows=3))


@pytest.mark.parametrize(
    ("score", "kind"),
    [
        (OVERFITTED.score, "Overfitting (overconfident) "),
        ([0.7, 0.76, 0.85, 0.84, 0.78, 0.74, 0.72, 0.7], "Overfitting since"),
    ],
)
def test_overfitting_that_costs_no_score_is_called_overconfident(score: Any, kind: str) -> None:
    assert judge(dataclasses.replace(OVERFITTED, score=np.array(score))).sentence.startswith(kind)
