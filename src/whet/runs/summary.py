"""Summarises the runs in a folder for `whet runs`, one line each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.errors import WhetError
from whet.records import Record, shipped_evaluation
from whet.runs.curves import curves, sparkline
from whet.runs.folder import CONFIG, RECORDS, RunFolder, is_run
from whet.runs.progress import progress
from whet.runs.thinned import thinned_records
from whet.runs.verdict.judge import verdict_name


@dataclass(frozen=True, kw_only=True)
class Line:
    """The summary of a run."""

    name: str
    path: str
    state: str
    """`finished`, `patience`, `interrupted`, …; `running or killed` without an end; `damaged`."""
    share: float
    """Finished share of the planned steps."""
    metric: str = ""
    score: float | None = None
    verdict: str = ""
    seconds: float = 0.0
    spark: str = ""
    """The evaluation loss from start to end."""

    def as_dict(self) -> dict[str, Any]:
        return dict(self.__dict__)


def list_runs(root: Path, spark_width: int = 10) -> list[Line]:
    """Return every run directly in a folder (or the folder itself), oldest first."""
    candidates = [root] if is_run(root) else sorted(root.iterdir()) if root.is_dir() else []
    found = [path for path in candidates if is_run(path)]
    return [_line(path, spark_width) for path in sorted(found, key=_began)]


def _began(path: Path) -> tuple[float, str]:
    """Return when the run was created: its settings are written once, at the start."""
    first = path / CONFIG if (path / CONFIG).is_file() else path / RECORDS
    return first.stat().st_mtime, path.name


def _line(path: Path, spark_width: int) -> Line:
    try:
        return line_of(path, thinned_records(RunFolder.open(path).path), spark_width)
    except WhetError:
        return damaged_line(path)


def damaged_line(path: Path) -> Line:
    """Return the line of a run whose records cannot be read."""
    return Line(name=path.resolve().name, path=str(path), state="damaged", share=0.0)


def line_of(path: Path, records: Sequence[Record], spark_width: int = 10) -> Line:
    """Return the summary of a run from its records."""
    seen, now = curves(records), progress(records)
    best = shipped_evaluation(records, seen.split)
    metric = seen.start.metric if seen.start else ""
    return Line(
        name=path.resolve().name,
        path=str(path),
        state=now.ended or "running or killed",
        share=now.share,
        metric=metric,
        score=best.metrics.get(metric, best.loss if metric == "loss" else None) if best else None,
        verdict=verdict_name(records),
        seconds=seen.end.seconds if seen.end else now.seconds,
        spark=sparkline(seen.evaluation.values, spark_width),
    )
