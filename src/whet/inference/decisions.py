"""Fits decisions on rows that the model was not trained on, and applies them to logits."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from whet.errors import ArtifactError, UsageError, nearest
from whet.metrics.calibration import usable_temperature
from whet.metrics.conformal import covered, in_set, nonconformity, quantile_for
from whet.metrics.intervals import Interval, wilson
from whet.metrics.scores import predicted, probabilities
from whet.metrics.thresholds import (
    Goal,
    across_folds,
    choose_confidence,
    choose_threshold,
    expected_abstention,
    expected_of,
    parse_goal,
)
from whet.runs.decisions import FILE, Decisions, read_decisions
from whet.runs.folder import SUMS, RunFolder, sum_of
from whet.runs.report.mistakes import PredictedRows, read_answers
from whet.task import Task
from whet.utils.arrays import Array
from whet.utils.untrusted_files import replace_file


@dataclass(frozen=True)
class Decided:
    """Logits of some rows, turned into answers by the decisions."""

    answers: Array
    """Class numbers [rows], 0/1 columns [rows, labels], or numbers [rows]."""
    chances: Array
    """Calibrated probabilities [rows, labels]; for regression the numbers."""
    abstain: Array | None
    """Which rows are left unanswered; None without that decision."""
    candidates: list[list[Any]] | None
    """The conformal set of each row: labels, or the low and high end of a number."""


def read_logits(task: Task, logits: Array, decisions: Decisions) -> Decided:
    """Return labels, probabilities and sets for these logits."""
    chances = probabilities(task.kind, _scaled(task.kind, logits, decisions.temperature))
    answers = _answers(task, logits, chances, decisions.thresholds)
    abstain = candidates = None
    if decisions.confidence is not None:
        abstain = confidence_of(task.kind, chances) < decisions.confidence
    if decisions.limit is not None:
        candidates = _candidates(task, chances, decisions.limit)
    return Decided(answers, chances, abstain, candidates)


def confidence_of(kind: str, chances: Array) -> Array:
    """Return the confidence of each row: of its most likely label; with several labels per row, of the least certain
    one."""
    if kind == "multilabel":
        return np.asarray(np.maximum(chances, 1 - chances).min(axis=1))
    return np.asarray(chances.max(axis=1))


def _scaled(kind: str, logits: Array, temperature: float) -> Array:
    values = np.asarray(logits, np.float64)
    return values if kind == "regression" else values / temperature


def _answers(task: Task, logits: Array, chances: Array, thresholds: dict[str, float]) -> Array:
    if not thresholds:
        return predicted(task.kind, logits)
    if task.kind == "multilabel":
        return (chances >= np.array([thresholds.get(label, 0.5) for label in task.labels])).astype(np.int64)
    ((label, threshold),) = thresholds.items()
    place = task.labels.index(label)
    others = chances.copy()
    others[:, place] = -1.0
    return np.where(chances[:, place] >= threshold, place, others.argmax(axis=1))


def _candidates(task: Task, chances: Array, limit: float) -> list[list[Any]]:
    if task.kind == "regression":
        return [[float(value) - limit, float(value) + limit] for value in chances[:, 0]]
    held, order = in_set(chances, limit), np.argsort(-chances, axis=1, kind="stable")
    return [[task.labels[k] for k in places if row[k]] for row, places in zip(held, order, strict=True)]


# Deciding ------------------------------------------------------------------------------------------


def decide(
    run: Path | str,
    *,
    goal: str | None = None,
    positive: str | None = None,
    abstain: float | None = None,
    coverage: float | None = None,
) -> Decisions:
    """Fit the temperature and the requested decisions on the run's validation rows, and write them to its model
    folder.

    Other decisions stay as they were.
    """
    folder = RunFolder.open(run)
    task, answers = _validation(folder)
    before = read_decisions(folder.model)
    temperature, why = (
        (1.0, "") if task.kind == "regression" else usable_temperature(task.kind, answers.logits, answers.labels)
    )
    decisions = dataclasses.replace(
        before, temperature=temperature, calibrated_on={"split": "validation", "rows": len(answers.labels), "why": why}
    )
    # All decisions were fitted on probabilities of one temperature.
    wanted = goal or before.goal or None
    if goal is None and before.thresholds and task.kind != "multilabel":
        positive = next(iter(before.thresholds))
    abstain, coverage = (
        before.abstain if abstain is None else abstain,
        before.coverage if coverage is None else coverage,
    )
    if wanted is not None:
        decisions = _with_goal(decisions, task, answers, parse_goal(wanted), positive)
    elif positive is not None:
        raise UsageError("--positive names the label of a goal, and there is no --goal.")
    if abstain is not None:
        decisions = _with_abstention(decisions, task, answers, abstain)
    if coverage is not None:
        decisions = _with_sets(decisions, task, answers, coverage)
    write_decisions(folder, decisions)
    return decisions


def clear(run: Path | str) -> Decisions:
    """Remove all decisions but the temperature."""
    folder = RunFolder.open(run)
    before = read_decisions(folder.model)
    decisions = Decisions(before.temperature, before.calibrated_on)
    write_decisions(folder, decisions)
    return decisions


def write_decisions(folder: RunFolder, decisions: Decisions) -> None:
    """Replace whet.json in the run's model folder, and its recorded SHA-256.

    The SHA-256 is removed first: in between, the file is unverified, and the model does not count as damaged.
    """
    if not folder.model.is_dir():
        raise ArtifactError(f"The run {str(folder.path)!r} has no model yet: it is not finished.")
    with folder.locked():
        folder.refuse_changed_model()
        sums = folder.read_json(SUMS)
        if sums:
            folder.write_json(SUMS, {name: value for name, value in sums.items() if name != FILE})
        replace_file(folder.model / FILE, decisions.to_json().encode())
        if sums:
            folder.write_json(SUMS, {**sums, FILE: sum_of(folder.model / FILE)})


def _validation(folder: RunFolder) -> tuple[Task, PredictedRows]:
    data = folder.data
    task = Task(str(data.get("task", "")), tuple(data.get("labels", ())))
    answers = read_answers(folder, "validation", task.kind, task.labels) if task.kind else None
    if answers is None:
        raise UsageError(
            f"The run {str(folder.path)!r} has no predictions on labelled validation rows.",
            "Decisions are made on rows that the model was not trained on: finish the run first.",
        )
    return task, answers


def _with_goal(decisions: Decisions, task: Task, answers: PredictedRows, goal: Goal, positive: str | None) -> Decisions:
    if task.kind == "regression":
        raise UsageError("A goal is for labels, and this model predicts a number.", "--coverage gives it an interval.")
    chances = probabilities(task.kind, _scaled(task.kind, answers.logits, decisions.temperature))
    thresholds: dict[str, float] = {}
    expected: dict[str, Any] = {}
    failed: UsageError | None = None
    for place in _places(task, positive):
        label = task.labels[place]
        truth = answers.labels[:, place] > 0 if task.kind == "multilabel" else answers.labels == place
        try:
            thresholds[label] = choose_threshold(goal, truth, chances[:, place])
        except UsageError as error:
            if task.kind != "multilabel":
                raise
            failed, expected[label] = error, {"kept": 0.5, "why": error.message}
            continue
        measured = expected_of(goal, truth, chances[:, place])
        expected[label] = {
            "precision": _plain(measured.precision),
            "recall": _plain(measured.recall),
            "f1": _plain(measured.f1),
            "cost": measured.cost,
            "share": measured.chosen,
        }
    if failed is not None and not thresholds:
        raise failed
    return dataclasses.replace(
        decisions, goal=str(goal), thresholds=thresholds, expected={**decisions.expected, "goal": expected}
    )


def _places(task: Task, positive: str | None) -> list[int]:
    """Return the labels that get a threshold: all in a multi-label task, else the positive one."""
    if positive is not None and positive not in task.labels:
        raise UsageError(f"There is no label {positive!r}.", nearest(positive, task.labels))
    if positive is not None and task.kind == "multilabel":
        raise UsageError("--positive is for one label per row; with several each label has its own threshold.")
    if task.kind == "multilabel":
        return list(range(len(task.labels)))
    if positive is not None:
        return [task.labels.index(positive)]
    if task.kind == "multiclass":
        raise UsageError("A goal among several classes is one class's.", "Name it with --positive.")
    return [1]


def _with_abstention(decisions: Decisions, task: Task, answers: PredictedRows, error: float) -> Decisions:
    if task.kind == "regression":
        raise UsageError("Abstaining goes by probabilities, and this model predicts a number.")
    read = read_logits(task, answers.logits, decisions)
    right, sure = read.answers == answers.labels, confidence_of(task.kind, read.chances)
    right = right.all(axis=1) if right.ndim == 2 else right
    confidence = choose_confidence(error, right, sure)
    left = expected_abstention(error, right, sure)
    expected = {"error": _plain(left.error), "answered": _plain(left.answered)}
    return dataclasses.replace(
        decisions, abstain=error, confidence=confidence, expected={**decisions.expected, "abstain": expected}
    )


def _with_sets(decisions: Decisions, task: Task, answers: PredictedRows, coverage: float) -> Decisions:
    chances = probabilities(task.kind, _scaled(task.kind, answers.logits, decisions.temperature))
    strange = nonconformity(task.kind, chances, answers.labels)
    limit = quantile_for(coverage, strange)

    def covered_by_others(kept: Array, left: Array) -> Array:
        try:
            here = quantile_for(coverage, strange[kept])
        except UsageError:
            here = limit
        return covered(task.kind, chances[left], answers.labels[left], here)

    held = across_folds(len(strange), covered_by_others)
    expected: dict[str, Any] = {"covered": _plain(wilson(int(held.sum()), len(held)))}
    if task.kind != "regression":
        sizes = in_set(chances, limit).sum(axis=1)
        expected |= {"mean_size": float(sizes.mean()), "empty": float((sizes == 0).mean())}
    expected = {**decisions.expected, "coverage": expected}
    return dataclasses.replace(decisions, coverage=coverage, limit=limit, expected=expected)


def _plain(interval: Interval) -> dict[str, float]:
    return {"value": interval.value, "low": interval.low, "high": interval.high}
