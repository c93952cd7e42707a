"""Writes a comparison of runs as one HTML file: scores with intervals, differing settings, overlaid curves."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.records import Record
from whet.runs.compare import Comparison
from whet.runs.curves import Curves, Series, curves
from whet.runs.many import default_values, in_short
from whet.runs.progress import duration
from whet.runs.report.charts import Chart, Line, Mark, line, metric_words
from whet.runs.report.content import plain
from whet.runs.report.html import render_page, write_whole
from whet.runs.score_words import is_share, score_text
from whet.runs.thinned import thinned_records

DRAWN_RUNS = 6
"""Largest number of runs with distinguishable colours."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One run in the table of scores."""

    place: int
    name: str
    role: str
    score: str
    interval: str
    best_step: int
    time: str
    verdict: str
    sentence: str


@dataclass(frozen=True, kw_only=True)
class Lead:
    """The lead text above a comparison: the result of a tuning."""

    title: str
    sentences: tuple[str, ...]
    shares: dict[str, float]
    """Share of the differences explained by each setting; empty if unknown."""
    shares_title: str = ""


def write_comparison(comparison: Comparison, path: Path, lead: Lead | None = None) -> Path:
    """Write the page and return its path. The runs are read again for their curves."""
    records = [thinned_records(Path(entry.path)) for entry in comparison.entries]
    seen = [curves(each) for each in records]
    few = len(seen) <= DRAWN_RUNS
    page = render_page(
        "compare.html.jinja",
        overlaid(comparison, seen),
        ("report.css",),
        many={"runs": _in_short(comparison, records), "defaults": default_values(), "charts": not few},
        lead=lead,
        comparison=comparison,
        sentences=[each.sentence for each in comparison.differences] if few else [comparison.summary()],
        all_sentences=[] if few else [each.sentence for each in comparison.differences],
        metric=metric_words(comparison.metric),
        rows=_rows(comparison),
        settings={name: [plain(value) for value in values] for name, values in comparison.settings.items()},
        few=few,
        left_out=max(0, len(seen) - DRAWN_RUNS),
    )
    write_whole(path, page)
    return path


def _in_short(comparison: Comparison, records: Sequence[Sequence[Record]]) -> list[dict[str, Any]]:
    """Return the runs for `templates/many.js`, with the scores of the comparison."""
    lines = []
    for entry, seen in zip(comparison.entries, records, strict=True):
        score = entry.score
        ranged = score is not None and score.low < score.high
        lines.append(
            {
                **in_short(Path(entry.path), seen),
                "name": entry.name,
                "score": score.value if score else None,
                "low": score.low if score and ranged else None,
                "high": score.high if score and ranged else None,
                "words": metric_words(comparison.metric),
                "percent": is_share(comparison.metric),
                "sentence": entry.verdict.sentence if len(records) <= DRAWN_RUNS else "",
            }
        )
    return lines


def overlaid(comparison: Comparison, seen: Sequence[Curves]) -> list[Chart]:
    """Return the curves that distinguish the runs, one line per run."""
    named = list(zip([entry.name for entry in comparison.entries], seen, strict=True))[:DRAWN_RUNS]
    best = tuple(
        Mark(x=run_curves.best_step, kind="save", text=f"best of {name}, step {run_curves.best_step}")
        for name, run_curves in named
        if run_curves.best_step is not None and run_curves.best_step >= 0
    )
    charts = [
        _overlay("eval_loss", "Evaluation loss", named, lambda run_curves: run_curves.evaluation, style="points"),
        _overlay(
            "main",
            metric_words(comparison.metric).capitalize(),
            named,
            lambda run_curves: run_curves.main,
            percent=is_share(comparison.metric),
            style="points",
        ),
        _overlay("train_loss", "Training loss, smoothed", named, lambda run_curves: run_curves.smoothed),
        _overlay("learning_rate", "Learning rate", named, lambda run_curves: run_curves.learning_rate),
    ]
    first = dataclasses.replace(charts[0], marks=best)
    return [chart for chart in (first, *charts[1:]) if any(each.x for each in chart.lines)]


def _overlay(
    chart_id: str,
    title: str,
    named: Sequence[tuple[str, Curves]],
    pick: Callable[[Curves], Series],
    percent: bool = False,
    **looks: Any,
) -> Chart:
    lines: tuple[Line, ...] = tuple(
        line(name, f"{chart_id}-{place}", str(place + 1), pick(run_curves), **looks)
        for place, (name, run_curves) in enumerate(named)
    )
    drawn = tuple(each for each in lines if each.x)
    last = max((each.x[-1] for each in drawn), default=1.0)
    return Chart(id=chart_id, title=title, lines=drawn, percent=percent, x_range=(0.0, float(last)))


def _rows(comparison: Comparison) -> list[Row]:
    rows = []
    for place, entry in enumerate(comparison.entries):
        score, metric = entry.score, comparison.metric
        has_range = score is not None and score.low < score.high
        rows.append(
            Row(
                place=place,
                name=entry.name,
                role=str(place + 1) if place < DRAWN_RUNS else "level",
                score=score_text(metric, score.value) if score is not None else "–",
                interval=f"{score_text(metric, score.low)} to {score_text(metric, score.high)}"
                if score and has_range
                else "–",
                best_step=entry.best_step,
                time=duration(entry.seconds),
                verdict=entry.verdict.verdict,
                sentence=entry.verdict.sentence,
            )
        )
    return rows
