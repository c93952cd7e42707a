"""Summaries of up to some hundred runs, for the live page and comparisons."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from whet.config import Config, settings_that_change
from whet.errors import WhetError
from whet.metrics.intervals import PROPORTIONS, wilson
from whet.records import Baselines, Record, shipped_evaluation
from whet.runs.curves import Curves, Series, curves, downsample
from whet.runs.folder import RunFolder
from whet.runs.report.charts import metric_words, rounded
from whet.runs.score_words import is_share
from whet.runs.summary import Line, damaged_line, line_of
from whet.runs.thinned import thinned_records
from whet.utils.text import neutral_lines

POINTS = 120
"""Points per line when hundreds of lines overlap."""


def run_in_short(path: Path) -> dict[str, Any]:
    """Return one run for the table, the curves and the scatter plot; memory and time hardly depend on its length."""
    try:
        records = thinned_records(RunFolder.open(path).path)
    except WhetError:
        return {**_row(damaged_line(path), None), "settings": {}, "curves": {}}
    return in_short(path, records)


def in_short(path: Path, records: Sequence[Record]) -> dict[str, Any]:
    """Return the same from records."""
    seen = curves(records)
    line = line_of(path, records)
    found = _row(line, _interval(line, seen, records))
    return {**found, "settings": set_values(path), "curves": _curves(seen)}


def set_values(path: Path) -> dict[str, Any]:
    """Return settings that differ from the defaults, as text or numbers, except where the run is stored."""
    try:
        chosen, defaults = RunFolder(path).config.flat(), Config().flat()
    except WhetError:
        return {}
    others = settings_that_change("nothing", "records")
    return {name: _plain(value) for name, value in chosen.items() if value != defaults[name] and name not in others}


def default_values() -> dict[str, Any]:
    """Return the defaults of the settings that change a training."""
    others = settings_that_change("nothing", "records")
    return {name: _plain(value) for name, value in Config().flat().items() if name not in others}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return neutral_lines(value) if isinstance(value, str) else value


def _row(line: Line, interval: tuple[float, float] | None) -> dict[str, Any]:
    low, high = interval or (None, None)
    shown = {name: neutral_lines(value) if isinstance(value, str) else value for name, value in line.as_dict().items()}
    if line.score is not None and not math.isfinite(line.score):
        shown["score"] = None
    words = metric_words(line.metric) if line.metric else ""
    return {**shown, "low": low, "high": high, "words": words, "percent": is_share(line.metric)}


def _interval(line: Line, seen: Curves, records: Sequence[Record]) -> tuple[float, float] | None:
    """Return the interval that the records allow: for proportions from the number of rows, for others from the
    baselines."""
    best = shipped_evaluation(records, seen.split)
    if line.score is None or best is None or not math.isfinite(line.score):
        return None
    if line.metric in PROPORTIONS and best.rows:
        found = wilson(round(line.score * best.rows), best.rows)
        return found.low, found.high
    for record in records:
        if not isinstance(record, Baselines) or record.of_rows or not record.interval:
            continue
        if (record.split, record.metric) == (best.split, line.metric):
            return record.interval[0], record.interval[1]
    return None


def _curves(seen: Curves) -> dict[str, Any]:
    found = {"score": seen.main, "eval_loss": seen.evaluation, "train_loss": seen.smoothed}
    return {name: _points(series) for name, series in found.items() if len(series)}


def _points(series: Series) -> list[list[Any]]:
    steps, values = downsample(series.steps, series.values, POINTS)
    return [steps.tolist(), rounded(values)]
