"""Formats scores with their intervals, next to the scores of a constant answer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from whet.errors import shortened_list
from whet.metrics.intervals import PROPORTIONS, Interval, absent_classes, score_intervals, smallest_visible, wilson
from whet.metrics.scores import FROM_MARGINS, TASK_METRICS, higher_is_better, metric_named
from whet.records import Baselines, Evaluation, Record, Start, shipped_evaluation, start_of
from whet.runs.curves import Curves
from whet.runs.parts import parts_sentence
from whet.runs.report.charts import metric_words
from whet.runs.report.mistakes import PredictedRows
from whet.runs.score_words import always_giving, is_number, is_share, metric_of, score_text
from whet.utils.arrays import Array

MANY_ROWS = 5000
"""Above this the bootstrap uses fewer draws: the interval is narrow, and the report is faster."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """One metric on one split, ready to print."""

    metric: str
    words: str
    split: str
    value: str
    interval: str
    """`76.8% to 84.4%`, or empty if there is none."""
    majority: str
    rows: int


@dataclass(frozen=True, kw_only=True)
class Scores:
    main: Score | None = None
    table: list[Score] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    """What the numbers mean compared with the constant answer and with chance."""

    @property
    def splits(self) -> list[str]:
        return list(dict.fromkeys(score.split for score in self.table))

    @property
    def mains(self) -> list[Score]:
        """The main metric on every split that has it."""
        return [score for score in self.table if self.main is not None and score.metric == self.main.metric]

    def rows(self) -> list[list[Score | None]]:
        """One row per metric, one column per split."""
        metrics = dict.fromkeys(score.metric for score in self.table)
        by_place = {(score.metric, score.split): score for score in self.table}
        return [[by_place.get((metric, split)) for split in self.splits] for metric in metrics]


def scores_of(curves: Curves, records: Sequence[Record], answers: Mapping[str, PredictedRows]) -> Scores:
    """Return every metric of the saved model, from the predictions if there are any, else as recorded."""
    start = curves.start
    if start is None:
        return Scores()
    table: list[Score] = []
    intervals: dict[str, Interval] = {}
    for split in ("validation", "test"):
        intervals_of_split = _intervals(answers[split]) if split in answers else _recorded(records, split)
        constants = _constant(start.majority, answers.get(split), split)
        if start.metric in intervals_of_split and not intervals:
            intervals = intervals_of_split
        order = sorted(intervals_of_split, key=lambda name: name != start.metric)
        table += [_score(name, split, intervals_of_split[name], constants.get(name), start) for name in order]
    main = next((score for score in table if score.metric == start.metric), None)
    remarks = _remarks(start, intervals.get(start.metric), main)
    remarks += [line for split, given in answers.items() if (line := _unmeasured(given, split))]
    remarks += [said] if (said := parts_sentence(records)) else []
    return Scores(main=main, table=table, remarks=remarks)


def main_intervals(
    records: Sequence[Record], evaluations: Mapping[str, Evaluation | None]
) -> dict[tuple[str, str], tuple[float, float]]:
    """Return the intervals of the main metric in these evaluations, by split and metric, if their rows allow one."""
    start = start_of(records)
    whole = [line for line in records if isinstance(line, Baselines) and not line.of_rows]
    made = {(line.split, line.metric): line for line in whole}
    edges: dict[tuple[str, str], tuple[float, float]] = {}
    for split, record in evaluations.items():
        if start is None or record is None or start.metric not in record.metrics:
            continue
        name, value, beside = start.metric, record.metrics[start.metric], made.get((split, start.metric))
        if name in PROPORTIONS and record.rows:
            own = wilson(round(value * record.rows), record.rows)
            edges[split, name] = own.low, own.high
        elif beside is not None and beside.interval is not None:
            edges[split, name] = beside.interval[0], beside.interval[1]
    return edges


def _intervals(answers: PredictedRows) -> dict[str, Interval]:
    resamples = 1000 if len(answers) <= MANY_ROWS else 200
    return score_intervals(answers.task, answers.logits, answers.labels, resamples=resamples)


def _recorded(records: Sequence[Record], split: str) -> dict[str, Interval]:
    """Return scores without predictions: only a proportion has an interval."""
    best = shipped_evaluation(records, split)
    if best is None:
        return {}
    return {
        name: wilson(round(value * best.rows), best.rows)
        if name in PROPORTIONS and best.rows and 0 <= value <= 1
        else Interval(value, math.nan, math.nan, best.rows)
        for name, value in best.metrics.items()
    }


def _constant(majority: Mapping[str, Any], answers: PredictedRows | None, split: str) -> dict[str, float]:
    """Return the constant answer's scores on a split; the record has them for validation only."""
    if split == "validation":
        return {
            name: float(value)
            for name, value in majority.items()
            if is_number(value) and math.isfinite(value) and name != "value"
        }
    if answers is None or "label" not in majority:
        return {}
    answer = _always(majority["label"], answers)
    names = [name for name in TASK_METRICS[answers.task] if name not in FROM_MARGINS]
    return {name: metric_named(name)(answers.labels, answer) for name in names}


def _always(label: Any, answers: PredictedRows) -> Array:
    """Return the constant answer, repeated for all rows."""
    if answers.task == "regression":
        return np.full(len(answers), float(label))
    if answers.task == "multilabel":
        return np.tile([float(name in label) for name in answers.names], (len(answers), 1))
    return np.full(len(answers), answers.names.index(label))


def _score(name: str, split: str, score: Interval, constant: float | None, start: Start) -> Score:
    # If all rows are right, a bootstrap interval has no width, which would suggest certainty.
    known = math.isfinite(score.low) and math.isfinite(score.high) and score.low < score.high
    return Score(
        metric=name,
        words=metric_of(name, start.task, start.labels).replace(name, metric_words(name), 1),
        split=split,
        value=score_text(name, score.value),
        interval=f"{score_text(name, score.low)} to {score_text(name, score.high)}" if known else "",
        majority=score_text(name, constant) if constant is not None else "",
        rows=score.n,
    )


def _remarks(start: Start, score: Interval | None, main: Score | None) -> list[str]:
    if score is None or main is None:
        return []
    metric, majority, remarks = start.metric, start.majority, []
    constant = majority.get(metric)
    if constant is not None and is_number(constant) and math.isfinite(constant):
        remarks.append(
            _against_constant(metric, float(constant), always_giving(start.task, majority.get("label")), score)
        )
    if metric == "accuracy" and score.n:
        points = smallest_visible(score.n, score.value)
        remarks.append(
            f"With {score.n:,} rows, differences between two models under about {points:.1f} points are noise."
        )
    return remarks


def _unmeasured(answers: PredictedRows, split: str) -> str:
    """Name the labels without rows in the split: its averages leave them out."""
    names = [answers.names[index] for index in absent_classes(answers.task, answers.labels, len(answers.names))]
    if not names:
        return ""
    return f"Not measured, for no {split} row has them: {shortened_list(names)}."


def _against_constant(metric: str, constant: float, answer: str, score: Interval) -> str:
    reached = f"({score_text(metric, constant)})"
    lower = higher_is_better(metric)
    edge = score.low if lower else score.high
    if not math.isfinite(edge):
        edge = score.value
    if (edge <= constant) if lower else (edge >= constant):
        return f"No better than {answer} {reached}, as far as {score.n:,} rows can tell."
    if not is_share(metric):
        return f"Better than {answer} {reached}."
    return f"{100 * abs(score.value - constant):.1f} points better than {answer} {reached}."
