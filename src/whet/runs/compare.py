"""Compares runs: differing settings, scores with intervals, and whether the differences are significant.

Two runs are compared row by row on the rows that both predicted, which shows differences that separate intervals
hide.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from whet.config import settings_that_change
from whet.errors import UsageError, shortened_list
from whet.metrics import Interval, Paired, bootstrap, higher_is_better, paired, smallest_visible, wilson
from whet.metrics.intervals import PROPORTIONS
from whet.metrics.scores import MAIN_METRIC, evidence
from whet.records import End, Evaluation, Record, Start, shipped_evaluation, start_of
from whet.runs.folder import CONFIG, RunFolder
from whet.runs.predictions import labelled_rows
from whet.runs.score_words import is_share, score_text
from whet.runs.thinned import thinned_records
from whet.runs.verdict.judge import Verdict, verdict_of
from whet.utils.arrays import Array


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One run of a comparison."""

    name: str
    path: str
    score: Interval | None
    """None if the run has no evaluation yet."""
    verdict: Verdict
    best_step: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A run against the first one on the same rows; `test` is None if they have none in common."""

    a: str
    b: str
    sentence: str
    test: Paired | None = None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The differences between runs and their results."""

    metric: str
    split: str
    entries: tuple[Entry, ...]
    settings: dict[str, tuple[Any, ...]]
    """Settings that differ, with one value per run; None if a run has no settings file."""
    differences: tuple[Difference, ...]

    def summary(self) -> str:
        """The number of runs that differ from the first one, if there are too many for a sentence each."""
        first, tests = self.entries[0].name, [each.test for each in self.differences if each.test is not None]
        if not tests:
            others = f"None of {len(self.differences)} other runs"
            return f"{others} answers the {self.split} rows of {first}: there is nothing to test."
        apart = [test for test in tests if test.visible]
        better = sum((test.difference > 0) == higher_is_better(self.metric) for test in apart)
        by_chance = max(1, round(0.05 * len(tests)))
        return (
            f"Of {len(tests)} other runs, {better} are better than {first} on the same {self.split} rows and "
            f"{len(apart) - better} are worse (p < 0.05 each). Of so many tests about {by_chance} would find that by "
            "chance."
        )

    def as_dict(self) -> dict[str, Any]:
        content = dataclasses.asdict(self)
        for entry, shown in zip(self.entries, content["entries"], strict=True):
            shown["verdict"] = entry.verdict.as_dict()
        return content


@dataclass(frozen=True, eq=False)
class Predicted:
    """The predictions of a run on one split."""

    keys: list[Hashable]
    labels: Array
    evidence: Array


def compare(paths: Sequence[Path], split: str | None = None) -> Comparison:
    """Compare runs with the first one, on test rows if all have labelled ones, else on validation rows."""
    if len(paths) < 2:
        raise UsageError(f"A comparison takes at least 2 runs, and {len(paths)} was given.")
    folders = [RunFolder.open(path) for path in paths]
    _refuse_twice(folders)
    names = _names(folders)
    records = [thinned_records(folder.path) for folder in folders]
    starts = [_start(folder, of_run) for folder, of_run in zip(folders, records, strict=True)]
    _refuse_other_task(names, starts)
    split = split or _shared_split(records)
    task, metric = starts[0].task, score_metric(starts[0].metric, starts[0].task)
    answers = [read_predictions(folder, split, task, metric) for folder in folders]
    return Comparison(
        metric=metric,
        split=split,
        entries=tuple(
            _entry(name, folder, of_run, answer, metric, split)
            for name, folder, of_run, answer in zip(names, folders, records, answers, strict=True)
        ),
        settings=differing_settings(folders),
        differences=tuple(
            difference(names[0], names[other], answers[0], answers[other], metric, split)
            for other in range(1, len(folders))
        ),
    )


def _refuse_twice(folders: Sequence[RunFolder]) -> None:
    seen = Counter(folder.path.resolve() for folder in folders)
    for folder in folders:
        if seen[folder.path.resolve()] > 1:
            raise UsageError(f"The run {str(folder.path)!r} is given twice.", "A run cannot differ from itself.")


def _refuse_other_task(names: Sequence[str], starts: Sequence[Start]) -> None:
    """Raise unless all runs have the same task, labels and metric."""
    first, hint = starts[0], "Only runs of the same task can be compared."
    for name, start in zip(names, starts, strict=True):
        if start.task != first.task:
            raise UsageError(f"{names[0]} is a {first.task} task and {name} a {start.task} one.", hint)
        if start.labels != first.labels:
            own, other = (shortened_list(each.labels) for each in (first, start))
            raise UsageError(f"{names[0]} has the labels {own} and {name} has {other}.", hint)
        if start.metric != first.metric:
            raise UsageError(
                f"{names[0]} is judged by {first.metric} and {name} by {start.metric}.",
                "Only runs with the same --metric can be compared.",
            )


def differing_settings(folders: Sequence[RunFolder]) -> dict[str, tuple[Any, ...]]:
    """Settings of the training that are not the same in all runs."""
    others = settings_that_change("nothing", "records")
    flat = [folder.config.flat() if (folder.path / CONFIG).is_file() else {} for folder in folders]
    names = dict.fromkeys(name for one in flat for name in one if name not in others)
    values = {name: tuple(one.get(name) for one in flat) for name in names}
    return {name: of_runs for name, of_runs in values.items() if any(value != of_runs[0] for value in of_runs)}


def read_predictions(folder: RunFolder, split: str, task: str, metric: str) -> Predicted | None:
    """Return the labelled rows of a split, or None if the run has not predicted any."""
    table = labelled_rows(folder, split)
    if table is None:
        return None
    columns = table.to_pydict()
    labels, logits = np.array(columns["label"]), np.array(columns["logits"], np.float64)
    texts = zip(columns["row"], columns["text"], columns.get("pair", [None] * len(labels)), strict=True)
    keys: list[Hashable] = [(*text, str(label)) for text, label in zip(texts, labels.tolist(), strict=True)]
    return Predicted(keys, labels, evidence(task, metric, logits))


def score_metric(metric: str, task: str) -> str:
    """Return the metric that predictions are scored by: the task's own if the run is judged by loss."""
    return MAIN_METRIC[task] if metric == "loss" else metric


def score_of(answer: Predicted, metric: str) -> Interval:
    if metric in PROPORTIONS and answer.labels.ndim == 1:
        return wilson(int((answer.labels == answer.evidence).sum()), len(answer.labels))
    return bootstrap(metric, answer.labels, answer.evidence)


def difference(
    a: str, b: str, first: Predicted | None, second: Predicted | None, metric: str, split: str
) -> Difference:
    """Compare the second run with the first one on the rows that both predicted."""
    if first is None or second is None:
        missing = a if first is None else b
        return Difference(a=a, b=b, sentence=f"{missing} has no predictions on labelled {split} rows to compare.")
    one, two = _same_rows(first, second)
    if len(one) < 2:
        different = f"{a} and {b} were not scored on the same {split} rows"
        return Difference(a=a, b=b, sentence=f"{different}: what their scores differ by may come from the rows.")
    test = paired(first.labels[one], first.evidence[one], second.evidence[two], metric)
    shared = len(one) < max(len(first.keys), len(second.keys))
    sentence = _sentence(a, b, test, metric, f"{split} rows that both have" if shared else f"{split} rows")
    if metric == "accuracy" and not test.visible:
        right = first.evidence[one] == first.labels[one], second.evidence[two] == second.labels[two]
        # At least one row differs: two runs that agree on all rows here would not agree on all others.
        apart = max(float(np.mean(right[0] != right[1])), 1 / test.n)
        noise = smallest_visible(test.n, (test.a + test.b) / 2, disagreement=apart)
        sentence = f"{sentence[:-1]}; for these two, under {noise:.1f} points is noise."
    return Difference(a=a, b=b, sentence=sentence, test=test)


def _sentence(a: str, b: str, test: Paired, metric: str, rows: str) -> str:
    scale, unit = (100, " points") if is_share(metric) else (1, "")
    digits = 1 if unit else 3
    if test.visible:
        winner, loser = (b, a) if (test.difference > 0) == higher_is_better(metric) else (a, b)
        size, half = abs(test.difference) * scale, (test.high - test.low) / 2 * scale
        return (
            f"{winner} is better than {loser} by {size:.{digits}f} ± {half:.{digits}f}{unit} "
            f"({metric}, {test.n} {rows}, p = {test.p_value:.2g})."
        )
    return (
        f"No difference between {a} and {b} that {test.n} {rows} can show "
        f"({metric} {score_text(metric, test.a)} and {score_text(metric, test.b)}, "
        f"p = {test.p_value:.2g})."
    )


def _same_rows(first: Predicted, second: Predicted) -> tuple[Array, Array]:
    """Return the indices of rows in both runs, by number, text and label; repeated rows one by one."""
    where = {key: index for index, key in enumerate(_numbered(second.keys))}
    both = [(i, where[key]) for i, key in enumerate(_numbered(first.keys)) if key in where]
    return np.array([i for i, _ in both], int), np.array([j for _, j in both], int)


def _numbered(keys: Sequence[Hashable]) -> list[Hashable]:
    seen: Counter[Hashable] = Counter()
    result: list[Hashable] = []
    for key in keys:
        result.append((key, seen[key]))
        seen[key] += 1
    return result


def _entry(
    name: str, folder: RunFolder, records: list[Record], answer: Predicted | None, metric: str, split: str
) -> Entry:
    end = next((record for record in reversed(records) if isinstance(record, End)), None)
    best = shipped_evaluation(records, split)
    return Entry(
        name=name,
        path=str(folder.path),
        score=score_of(answer, metric) if answer is not None else _score_from(best, metric),
        verdict=verdict_of(records),
        best_step=end.best_step if end else (best.step if best else 0),
        seconds=end.seconds if end else max((getattr(r, "seconds", 0.0) for r in records), default=0.0),
    )


def _score_from(best: Evaluation | None, metric: str) -> Interval | None:
    """Without predictions: a proportion still has an interval, other scores have none."""
    if best is None or metric not in best.metrics:
        return None
    value = best.metrics[metric]
    if metric in PROPORTIONS and best.rows:
        return wilson(round(value * best.rows), best.rows)
    return Interval(value, value, value, best.rows)


def _start(folder: RunFolder, records: list[Record]) -> Start:
    start = start_of(records)
    if start is None:
        raise UsageError(f"The run {str(folder.path)!r} has not started to train.", "There is nothing to compare.")
    return start


def _shared_split(runs: Sequence[Sequence[Record]]) -> str:
    """Return `test` if every run has labelled test rows: validation rows chose the best step, so their score is too
    good."""
    return "test" if all(map(_has_test, runs)) else "validation"


def _has_test(records: Sequence[Record]) -> bool:
    return any(isinstance(record, Evaluation) and record.split == "test" for record in records)


def _names(folders: Sequence[RunFolder]) -> list[str]:
    """Return the folders' names, or as much of their paths as distinguishes them."""
    names = [folder.path.resolve().name for folder in folders]
    return names if len(set(names)) == len(names) else [str(folder.path) for folder in folders]
