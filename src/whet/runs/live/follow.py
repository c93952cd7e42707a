"""Follows a run's records while they are written: reads only new lines, and returns what a client has not seen."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from whet.errors import WhetError
from whet.records import End, Evaluation, Finding, Record, Resume, Step, from_line, replay
from whet.runs.curves import SMOOTHING, Curves, curves, downsample
from whet.runs.folder import RECORDS, RunFolder
from whet.runs.progress import progress
from whet.runs.report.charts import charts_of, marks_of, rounded
from whet.runs.report.content import STATES, plain
from whet.utils.text import neutral_lines
from whet.utils.untrusted_files import MAX_LINE

POINTS = 4000
"""Points per line that are sent at first; zooming in requests more."""
_STEP_SERIES = ("loss", "learning_rate", "grad_norm", "rows_per_second", "memory_mb")
_NAMES = {"loss": "train_loss"}


@dataclass(frozen=True)
class Cursor:
    """What one client has seen."""

    generation: int = -1
    count: int = 0
    series: frozenset[str] = frozenset()


class Tail:
    """One run that is followed. Threads may share it: every method takes the lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.generation = 0
        """Increases if sent data became invalid: a resume voided records, or a new file began."""
        self.records: list[Record] = []
        self.damaged = 0
        self._others: list[Record] = []
        self._last_step: Step | None = None
        self._offset = 0
        self._judged = -1
        self._verdict: dict[str, Any] | None = None
        self._lock = Lock()

    def grown(self) -> bool:
        """Return whether there may be new data, by the file's size."""
        return self._size() != self._offset

    def poll(self) -> None:
        """Read the complete new lines; a half-written one is left for later."""
        with self._lock:
            size = self._size()
            if size < self._offset:
                self._restart([])
                self._offset, self._judged = 0, -1
            if size <= self._offset:
                return
            with open(self.path / RECORDS, "rb") as file:
                file.seek(self._offset)
                while content := file.read(min(size - self._offset, MAX_LINE)):
                    whole = content.rfind(b"\n") + 1
                    if not whole and len(content) < MAX_LINE:
                        return
                    if not whole:  # no record is that long, so the rest is not read
                        self._offset, self.damaged = size, self.damaged + 1
                        return
                    self._offset += whole
                    self._take(content[:whole].split(b"\n")[:-1])
                    file.seek(self._offset)

    def since(self, cursor: Cursor) -> tuple[str, dict[str, Any], Cursor] | None:
        """Return the event for a client: `snapshot` or `records`, its content, the new cursor; None if there is
        nothing new."""
        with self._lock:
            if cursor.generation == self.generation:
                new = self.records[cursor.count :]
                if not new:
                    return None
                added = _series(new, self._split())
                if set(added) <= cursor.series:
                    return "records", self._delta(new, added), self._now(cursor.series)
            content, names = self._snapshot()
            return "snapshot", content, self._now(names)

    def snapshot(self) -> dict[str, Any]:
        with self._lock:
            return self._snapshot()[0]

    def part(self, low: float, high: float, smoothing: float) -> dict[str, Any]:
        """Return the step series between two steps at screen resolution, smoothed over the whole run."""
        with self._lock:
            steps = [record for record in self.records if isinstance(record, Step)]
        seen = curves(steps, smoothing=smoothing)
        found = {}
        for name, series in seen.named().items():
            inside = (series.steps >= low) & (series.steps <= high)
            x, y = downsample(series.steps[inside], series.values[inside], POINTS)
            found[name] = [x.tolist(), rounded(y)]
        return {"series": found}

    def _size(self) -> int:
        try:
            return (self.path / RECORDS).stat().st_size
        except OSError:
            return 0

    def _take(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            try:
                record = from_line(line.decode("utf-8"))
            except (ValueError, TypeError, AttributeError, RecursionError):
                self.damaged += 1
                continue
            if isinstance(record, Resume) or (record is not None and self._stands_for_another(record)):
                self._restart(list(replay([*self.records, record])))
            elif record is not None:
                self._add(record)

    def _stands_for_another(self, record: Record) -> bool:
        """Return whether a drawn point moves: each fold adds rows to the evaluations of the same steps."""
        if not isinstance(record, Evaluation) or not record.out_of_fold:
            return False
        return any(isinstance(old, Evaluation) and old.step == record.step for old in self._others)

    def _add(self, record: Record) -> None:
        self.records.append(record)
        if isinstance(record, Step):
            self._last_step = record
        else:
            self._others.append(record)

    def _restart(self, records: list[Record]) -> None:
        self.records, self._others, self._last_step = [], [], None
        self.generation += 1
        for record in records:
            self._add(record)

    def _now(self, series: frozenset[str]) -> Cursor:
        return Cursor(self.generation, len(self.records), series)

    def _snapshot(self) -> tuple[dict[str, Any], frozenset[str]]:
        seen = curves(self.records)
        content = {
            "name": self.path.resolve().name,
            "charts": [chart.as_dict() for chart in charts_of(seen, POINTS)],
            "thinned": len(seen.loss) > POINTS,
            "smoothing": SMOOTHING,
            "metric": seen.start.metric if seen.start else "",
            "majority": seen.start.majority if seen.start else {},
            "labels": seen.start.labels if seen.start else [],
            "settings": self._settings(),
            **self._state(self.records, seen),
        }
        return clean_dict(content), frozenset(seen.named())

    def _delta(self, new: Sequence[Record], added: dict[str, Any]) -> dict[str, Any]:
        return clean_dict({"series": added, **self._state(new, curves(self._others))})

    def _state(self, new: Sequence[Record], seen: Curves) -> dict[str, Any]:
        """Return the small data that is sent in full: progress and marks, and a new verdict or evaluation."""
        steps = [record for record in new if isinstance(record, Step)]
        # Earlier steps do not affect the progress, and there may be very many of them.
        now = progress([*self._others, *([self._last_step] if self._last_step else [])])
        end = seen.end
        content: dict[str, Any] = {
            "state": STATES.get(end.reason, (end.reason, "warn")) if end else ("running", "live"),
            "progress": {
                "step": now.step,
                "total": now.total,
                "share": now.share,
                "seconds": end.seconds if end else now.seconds,
                "eta_seconds": now.eta_seconds,
            },
            "marks": [mark.__dict__ for mark in marks_of(seen)],
            "findings": [record.sentence for record in self._others if isinstance(record, Finding)][-20:],
            "damaged": self.damaged,
        }
        if steps:
            content["last"] = {"loss": steps[-1].loss, "rows_per_second": steps[-1].rows_per_second}
        if any(isinstance(record, Evaluation | End) for record in new):
            content["verdict"] = self._judge()
            content["evaluation"] = self._evaluation()
        return content

    def _judge(self) -> dict[str, Any] | None:
        from whet.runs.verdict.judge import verdict_of

        if self._judged != len(self.records):
            try:
                self._verdict = verdict_of(self.records).as_dict()
            except (WhetError, ArithmeticError, ValueError):  # a page must survive an odd curve
                self._verdict = None
            self._judged = len(self.records)
        return self._verdict

    def _evaluation(self) -> dict[str, Any] | None:
        split = self._split()
        last = next((r for r in reversed(self._others) if isinstance(r, Evaluation) and r.split == split), None)
        return dict(last.__dict__) if last is not None else None

    def _split(self) -> str:
        seen = [record.split for record in self._others if isinstance(record, Evaluation)]
        return "validation" if "validation" in seen or not seen else seen[0]

    def _settings(self) -> list[tuple[str, str, bool]]:
        from whet.config import Config

        try:
            chosen, defaults = RunFolder(self.path).config.flat(), Config().flat()
        except WhetError:
            return []
        return [(name, plain(value), value != defaults[name]) for name, value in chosen.items()]


def _series(new: Sequence[Record], split: str) -> dict[str, Any]:
    """Return the points of new records, by series name."""
    found: dict[str, tuple[list[int], list[float | None]]] = {}

    def add(name: str, step: int, value: float | None) -> None:
        if value is not None:
            steps, values = found.setdefault(name, ([], []))
            steps.append(step)
            values.extend(rounded([value]))

    for record in new:
        if isinstance(record, Step):
            for name in _STEP_SERIES:
                value = getattr(record, name)
                # A zero speed or memory in a record means that it was not measured.
                unknown = value == 0 and name in ("rows_per_second", "memory_mb")
                add(_NAMES.get(name, name), record.step, None if unknown else value)
        elif isinstance(record, Evaluation) and record.split == split:
            add("eval_loss", record.step, record.loss)
            add("probe_loss", record.step, record.probe_loss)
            for name, value in record.metrics.items():
                add(name, record.step, value)
    return found


def clean(value: Any) -> Any:
    """Return the same with None for numbers that JSON lacks, and with safe texts."""
    if isinstance(value, str):
        return neutral_lines(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {neutral_lines(str(key)): clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean(item) for item in value]
    return value


def clean_dict(content: dict[str, Any]) -> dict[str, Any]:
    return {key: clean(value) for key, value in content.items()}


def as_json(content: Any) -> str:
    return json.dumps(content, ensure_ascii=True, separators=(",", ":"), allow_nan=False, default=str)
