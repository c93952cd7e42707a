"""What is shipped: no lottery among scores that the rows cannot tell apart, and a function of the records."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import whet
from tests.training.test_run import settings, write_rows
from whet.metrics.intervals import standard_error
from whet.records import AVERAGED, Evaluation, Finding, Resume, replay, shipped_evaluation
from whet.training.choice import Rule, best_of, choose
from whet.training.loop import _judged
from whet.training.plan import Plan, State

STEADY, HIGHEST = Rule("accuracy", steady=True), Rule("accuracy")


def evaluation(step: int, score: float, loss: float = 0.5, error: float = 0.05, **more: Any) -> Evaluation:
    scored = {"split": "validation", "metrics": {"accuracy": score}, "loss": loss, "error": error, "rows": 80}
    return Evaluation(step=step, epoch=0, **{**scored, **more})


def steps(*scored: tuple[float, float]) -> list[Evaluation]:
    """(score, loss) of the evaluations at steps 1, 2, …"""
    return [evaluation(step, score, loss) for step, (score, loss) in enumerate(scored, start=1)]


def best(rule: Rule, records: list[Evaluation]) -> int:
    found = best_of(records, rule)
    return found.step if found else -1


def test_of_scores_alike_the_lower_loss_is_the_best() -> None:
    records = steps((0.80, 0.60), (0.82, 0.50), (0.78, 0.40), (0.81, 0.45))
    assert best(STEADY, records) == 3
    assert best(HIGHEST, records) == 2


def test_of_equal_scores_and_losses_the_later_is_the_best() -> None:
    records = steps((0.8, 0.5), (0.8, 0.5), (0.8, 0.5))
    assert best(STEADY, records) == 3
    assert best(HIGHEST, records) == 1  # as in the course


def test_a_clearly_better_score_wins_whatever_its_loss() -> None:
    assert best(STEADY, steps((0.70, 0.4), (0.76, 0.9))) == 2


def test_a_clearly_worse_score_loses_whatever_its_loss() -> None:
    assert best(STEADY, steps((0.76, 0.9), (0.70, 0.4))) == 1


def test_where_less_is_better_the_signs_are_turned() -> None:
    rule = Rule("mae", higher_is_better=False, steady=True)
    records = [evaluation(n, 0, loss, metrics={"mae": mae}) for n, (mae, loss) in enumerate([(3, 1), (2, 2), (2.5, 1)])]
    assert best(rule, records) == 1


def test_without_an_error_only_equal_scores_are_alike() -> None:
    records = [dataclasses.replace(record, error=None) for record in steps((0.8, 0.9), (0.79, 0.1), (0.8, 0.5))]
    assert best(STEADY, records) == 3


def end_of(rule: Rule, records: list[Evaluation], averaged: float) -> tuple[int, bool]:
    """The choice where the averaged weights, after step 9, have this score."""
    marked, state = [], State()
    plan = Plan(9, bool, bool, bool, metric=rule.metric, steady=rule.steady)
    for record in records:
        state.step = record.step
        marked.append(_judged(record, state, plan))
    choice = choose([*marked, evaluation(9, averaged, split=AVERAGED)], rule, 9)
    assert state.best_step == best(rule, records)
    return choice.step, choice.averaged


@pytest.mark.parametrize(
    "rule, score, shipped",
    [
        (STEADY, 0.86, (9, True)),
        (STEADY, 0.80, (9, True)),
        (STEADY, 0.76, (9, True)),
        (STEADY, 0.74, (2, False)),
        (HIGHEST, 0.81, (9, True)),
        (HIGHEST, 0.80, (2, False)),
        (HIGHEST, 0.76, (2, False)),
    ],
)
def test_averaged_weights_are_shipped_unless_clearly_worse(rule: Rule, score: float, shipped: tuple[int, bool]) -> None:
    assert end_of(rule, steps((0.6, 0.9), (0.8, 0.5), (0.7, 0.6)), score) == shipped


def test_without_averaged_weights_the_best_step_is_shipped() -> None:
    records = [evaluation(1, 0.5, best=True), evaluation(2, 0.9, best=True), evaluation(3, 0.8)]
    assert choose(records, STEADY, 3).step == 2
    assert choose([], STEADY, 3).step == 3


def test_the_sentence_says_what_and_why() -> None:
    records = [evaluation(4, 0.8, best=True), evaluation(9, 0.78, split=AVERAGED)]
    assert choose(records, STEADY, 9).sentence == (
        "Shipped: the averaged weights of the last steps, as good as step 4 as far as 80 rows can tell "
        "(accuracy 0.7800 and 0.8000)."
    )
    assert choose(records, HIGHEST, 9).sentence.startswith("Shipped: step 4. The averaged weights of the last steps")


def test_resuming_takes_the_choice_back() -> None:
    averaged, said = evaluation(9, 0.8, split=AVERAGED, best=True), Finding(step=9, about="choice", sentence="")
    kept = list(replay([evaluation(9, 0.7, best=True), averaged, said, Resume(step=9, path="")]))
    assert [type(record) for record in kept] == [Evaluation, Resume]


def test_the_shipped_evaluation_is_that_of_the_averaged_weights_if_they_are_shipped() -> None:
    records = [evaluation(1, 0.7, best=True), evaluation(2, 0.6)]
    for shipped in (True, False):
        averaged = evaluation(2, 0.65, split=AVERAGED, best=shipped)
        found = shipped_evaluation([*records, averaged])
        assert found is (averaged if shipped else records[0])
    assert shipped_evaluation([records[1]]) is records[1]
    assert shipped_evaluation(records, "test") is None


@pytest.mark.parametrize("rows", [20, 200])
def test_the_standard_error_is_the_spread_over_draws_of_rows(rows: int) -> None:
    labels = np.arange(rows) % 2
    logits = np.eye(2)[np.where(np.arange(rows) % 5 == 0, 1 - labels, labels)]  # four of five are right
    spread = np.random.default_rng(0).binomial(rows, 0.8, 2000).std() / rows
    assert standard_error("binary", logits, labels, "accuracy") == pytest.approx(spread, rel=0.1)
    assert standard_error("binary", logits, labels, "matthews") == pytest.approx(2 * spread, rel=0.2)
    assert standard_error("binary", np.eye(2)[labels], labels, "accuracy") > 0  # all right on few rows is not certain


def test_a_run_ships_what_it_chose(tmp_path: Path, tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = write_rows(tmp_path / "reviews.csv")
    run = whet.fit(source, **settings(tiny_model_folder, average=0.9, choice="steady"))
    last, chosen = run.records[-1].step, next(r for r in run.records if isinstance(r, Finding) and r.about == "choice")
    assert chosen.details == {"step": last, "averaged": True}
    assert run.best is not None
    assert run.best.split == AVERAGED
    import pyarrow.parquet as pq
    from safetensors.numpy import load_file

    table = pq.read_table(run.path / "predictions.parquet").to_pylist()
    answers = [row for row in table if row["split"] == "validation"]
    assert run.metrics["accuracy"] == np.mean([row["label"] == row["predicted"] for row in answers])
    again = [max(run.predict(row["text"]).probabilities.values()) for row in answers]
    assert again == pytest.approx([row["probability"] for row in answers], abs=1e-3)  # bf16
    saved = run.path / "checkpoints" / f"step-{last:06d}"
    shipped, mean = load_file(run.path / "model" / "model.safetensors"), load_file(saved / "average.safetensors")
    assert all(np.array_equal(shipped[name], value) for name, value in mean.items())


@pytest.mark.parametrize("rule", [STEADY, HIGHEST])
def test_an_evaluation_without_the_metric_neither_wins_nor_loses(rule: Rule) -> None:
    without = evaluation(1, 0.0, metrics={})
    assert rule.gain(without, evaluation(2, 0.5)) is rule.gain(evaluation(2, 0.5), without) is None
    assert best(rule, [without, evaluation(2, 0.5), evaluation(3, 0.0, loss=0.1, metrics={})]) == 2
    assert not rule.keeps_average(without, evaluation(2, 0.5))
