"""What a run says of its curves while it trains: seldom, and only when it is sure."""

from __future__ import annotations

import dataclasses

import pytest

from tests.synthetic_curves import draw
from whet.records import Evaluation, Finding, Record, Start
from whet.runs.verdict.judge import PROBLEM_VERDICTS, SURE_ENOUGH, early_verdict, verdict_of


def records(truth: str, seed: int) -> list[Record]:
    """The first record and the evaluations of a run whose curve is of this kind."""
    curve = draw(truth, seed, noise=1.5, evaluations=14)
    shares = {"train": list(curve.prior), "validation": list(curve.prior)}
    start = Start(
        step=0,
        total_steps=int(curve.steps[-1]),
        steps_per_epoch=int(curve.steps[-1]),
        task="binary",
        labels=["no", "yes"],
        rows={"train": 1000, "validation": curve.rows},
        prior=shares,
        metric="accuracy",
        higher_is_better=True,
        majority={"label": "no", "accuracy": max(curve.prior)},
    )
    points = zip(curve.steps, curve.eval_loss, curve.metric, curve.train_loss, strict=True)
    return [
        start,
        *(
            Evaluation(
                step=int(step),
                epoch=1.0,
                split="validation",
                loss=float(loss),
                metrics={"accuracy": float(score)},
                rows=curve.rows,
                probe_loss=float(probe),
            )
            for step, loss, score, probe in points
        ),
    ]


def told(found: list[Record]) -> list[str]:
    """The verdicts that a run with these records tells on its way."""
    so_far: list[Record] = []
    for record in found:
        so_far.append(record)
        finding = early_verdict(so_far, record.step) if isinstance(record, Evaluation) else None
        so_far += [finding] if finding else []
    return [record.details["verdict"] for record in so_far if isinstance(record, Finding)]


def test_that_a_run_has_not_learnt_all_yet_is_not_told() -> None:
    assert "underfitting" in {verdict_of(records("underfitting", seed)).verdict for seed in range(6)}
    assert not [
        verdict for seed in range(6) for verdict in told(records("underfitting", seed)) if verdict == "underfitting"
    ]


@pytest.mark.parametrize("truth", ["healthy", "plateau"])
def test_that_all_is_well_is_not_told(truth: str) -> None:
    found = records(truth, 0)
    assert verdict_of(found).verdict == truth
    assert told(found) == []


def test_a_bad_verdict_is_told_once() -> None:
    assert told(records("overfitting", 0)) == ["overfitting"]


def test_a_doubtful_verdict_is_not_told() -> None:
    runs = [records(truth, seed) for truth in ("erratic", "underfitting") for seed in range(4)]
    beginnings = [run[:end] for run in runs for end in range(4, len(run))]
    doubtful = [part for part in beginnings if verdict_of(part).confidence < SURE_ENOUGH]
    assert {verdict_of(part).verdict for part in doubtful} & PROBLEM_VERDICTS
    assert [early_verdict(part, 1) for part in doubtful] == [None] * len(doubtful)


def test_a_recovery_is_told() -> None:
    before = Finding(step=1, about="verdict", sentence="Overfitting.", details={"verdict": "overfitting"})
    finding = early_verdict([*records("healthy", 0), before], 7)
    assert finding is not None
    assert finding.details == {"verdict": "healthy"}


def test_how_long_it_took_changes_nothing() -> None:
    found = records("overfitting", 0)
    slower = [
        dataclasses.replace(record, seconds=9.0) if isinstance(record, Evaluation) else record for record in found
    ]
    assert early_verdict(slower, 7) == early_verdict(found, 7) is not None
