"""Computes the progress of a run and the remaining time from its records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from whet.records import End, Evaluation, Part, Record, Start, Step, start_of


@dataclass(frozen=True)
class Progress:
    """The progress of a run. `eta_seconds` includes remaining evaluations; None while unknown."""

    step: int
    total: int
    seconds: float
    eta_seconds: float | None
    ended: str = ""

    @property
    def share(self) -> float:
        return self.step / self.total if self.total else 0.0


def progress(records: Sequence[Record]) -> Progress:
    """Compute the progress from valid records (see `records.replay`)."""
    start = start_of(records)
    parts = {(record.name, record.number): record for record in records if isinstance(record, Part)}
    if start is not None and start.all_steps:
        return _over_parts(records, start, list(parts.values()))
    total = start.total_steps if start else 0
    steps = [record for record in records if isinstance(record, Step)]
    evaluations = [r for r in records if isinstance(r, Evaluation) and r.split == "validation"]
    ended = next((record.reason for record in records if isinstance(record, End)), "")
    if not steps:
        return Progress(0, total, 0.0, None, ended)
    last = steps[-1]
    if ended:
        return Progress(last.step, total, last.seconds, 0.0, ended)
    evaluating = sum(record.seconds for record in evaluations if record.step < last.step)
    a_step = max(0.0, last.seconds - evaluating) / max(1, last.step)
    an_evaluation = max((record.seconds for record in evaluations[-3:]), default=a_step)
    to_come = max(0, (start.evaluations if start else 0) - len(evaluations))
    eta = (total - last.step) * a_step + to_come * an_evaluation
    return Progress(last.step, total, last.seconds, eta, ended)


def _over_parts(records: Sequence[Record], start: Start, parts: Sequence[Part]) -> Progress:
    """Add up the steps of several trainings; evaluations are included in the time of a step."""
    others = [part for part in parts if part.name != "final"]
    last = next((record for record in reversed(records) if isinstance(record, Step)), None)
    if len(others) == len(parts):
        last = None  # curves of a part that was counted already
    step = sum(part.steps for part in others) + (last.step if last else 0)
    seconds = sum(part.seconds for part in others) + (last.seconds if last else 0.0)
    ended = next((record.reason for record in records if isinstance(record, End)), "")
    left = max(0, start.all_steps - step) * seconds / step if step else None
    return Progress(step, start.all_steps, seconds, 0.0 if ended else left, ended)


def duration(seconds: float | None) -> str:
    """Format a duration: 42 s, 3 min 5 s, 2 h 10 min."""
    if seconds is None:
        return "?"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole % 60 and whole < 600 else f"{whole // 60} min"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
