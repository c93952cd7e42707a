"""Describes charts as plain data: the same chart becomes SVG in Python and is interactive in a browser.

A chart has no pixels and no colours. `svg.render` draws it for Markdown, notebooks and printing; `templates/chart.js`
draws it with hover and zoom for the report and the live page.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from whet.metrics.scores import higher_is_better
from whet.runs.curves import Curves, Series, downsample
from whet.runs.score_words import answer, is_share

POINTS = 1500
"""Largest number of points per line: more than a screen's width, always with the peaks."""

_WORDS = {
    "f1": "F1",
    "macro_f1": "macro F1",
    "micro_f1": "micro F1",
    "weighted_f1": "weighted F1",
    "roc_auc": "ROC-AUC",
    "mse": "MSE",
    "mae": "MAE",
    "r2": "R²",
}


@dataclass(frozen=True, kw_only=True)
class Line:
    """One series in a chart."""

    name: str
    series: str
    """Its name in `Curves.named()`, by which new points find their line."""
    role: str
    """Its meaning, which decides the colour: `train`, `probe`, `evaluation`, or `1` to `6`."""
    x: list[float] = field(default_factory=list)
    y: list[float | None] = field(default_factory=list)
    style: str = "line"
    """`line`, `faint` (behind the others), `points` (joined), `dots` (not joined) or `dashed`."""
    smooth_of: str = ""
    """The series that this one smooths, if any: a browser can smooth it again."""
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    """Ends of a whisker at each point, if any."""
    hidden: bool = False
    """Hidden until it is selected in the legend."""


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A step marked by a vertical line: `kind` is `best`, `save` or `resume`."""

    x: float
    kind: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Level:
    """A horizontal line for comparison."""

    y: float
    text: str


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Lines over one x axis."""

    id: str
    title: str
    lines: tuple[Line, ...]
    marks: tuple[Mark, ...] = ()
    levels: tuple[Level, ...] = ()
    x_title: str = "step"
    percent: bool = False
    """Whether values from 0 to 1 are shown as 0% to 100%."""
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    square: bool = False
    minor: bool = False
    """Whether the chart is drawn small."""

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def charts_of(curves: Curves, points: int = POINTS) -> list[Chart]:
    """Return the charts of a run, most important first, without empty ones."""
    total = curves.start.total_steps if curves.start else 0
    x_range = (0.0, float(total)) if total else None
    found = [
        _loss_chart(curves, points),
        *_metric_charts(curves, points),
        _single(curves.learning_rate, "learning_rate", "Learning rate", points),
        _single(curves.grad_norm, "grad_norm", "Gradient norm", points),
        _single(curves.rows_per_second, "rows_per_second", "Rows per second", points),
        _single(curves.memory_mb, "memory_mb", "Memory (MB)", points),
    ]
    return [dataclasses.replace(chart, x_range=x_range) for chart in found if any(line.x for line in chart.lines)]


def metric_words(name: str) -> str:
    """Return the display name of a metric."""
    return _WORDS.get(name, name.replace("_", " "))


def marks_of(curves: Curves) -> tuple[Mark, ...]:
    """Return marks for the best step, saves and resumes; the best step's own save is left out."""
    saves = sorted({step for step in curves.saves if step != curves.best_step})
    marks = [Mark(x=step, kind="save", text=f"saved at step {step}") for step in saves]
    marks += [Mark(x=step, kind="resume", text=f"resumed from step {step}") for step in curves.resumes]
    if curves.best_step is not None and curves.best_step >= 0:
        marks.append(Mark(x=curves.best_step, kind="best", text=f"best, step {curves.best_step}"))
    return tuple(marks)


def line(name: str, series_name: str, role: str, series: Series, points: int = POINTS, **looks: Any) -> Line:
    """Return a line of a series, reduced to screen resolution."""
    steps, values = downsample(series.steps, series.values, points)
    return Line(name=name, series=series_name, role=role, x=steps.tolist(), y=rounded(values), **looks)


def rounded(values: Iterable[float]) -> list[float | None]:
    """Round to six significant digits, which keeps the page small; None if JSON has no such number."""
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values]


def reliability_chart(bins: Sequence[Any], title: str = "Reliability") -> Chart:
    """Return a chart of accuracy by confidence, with the range that the number of rows allows."""
    from whet.metrics.intervals import wilson

    ranges = [wilson(round(item.accuracy * item.n), item.n) for item in bins]
    perfect = Line(name="perfectly calibrated", series="perfect", role="level", x=[0, 1], y=[0, 1], style="dashed")
    seen = Line(
        name="this model",
        series="reliability",
        role="1",
        x=[item.confidence for item in bins],
        y=[item.accuracy for item in bins],
        low=[item.low for item in ranges],
        high=[item.high for item in ranges],
        style="points",
    )
    low = math.floor(min((item.low for item in bins), default=0.0) * 10) / 10
    return Chart(
        id="reliability",
        title=title,
        lines=(perfect, seen),
        x_title="confidence",
        percent=True,
        x_range=(low, 1.0),
        y_range=(0.0, 1.0),
        square=True,
    )


def scatter_chart(labels: Sequence[float], predicted: Sequence[float], points: int = POINTS) -> Chart:
    """Predicted against true numbers."""
    truth, said = np.asarray(labels, np.float64), np.asarray(predicted, np.float64)
    if len(truth) > points:
        chosen = np.random.default_rng(0).choice(len(truth), points, replace=False)
        truth, said = truth[chosen], said[chosen]
    low, high = float(min(truth.min(), said.min())), float(max(truth.max(), said.max()))
    perfect = Line(name="equal", series="equal", role="level", x=[low, high], y=[low, high], style="dashed")
    seen = Line(name="rows", series="rows", role="1", x=truth.tolist(), y=rounded(said), style="dots")
    return Chart(
        id="scatter",
        title="Predicted and true",
        lines=(perfect, seen),
        x_title="true",
        square=True,
    )


def _loss_chart(curves: Curves, points: int) -> Chart:
    lines = (
        line("training", "train_loss", "train", curves.loss, points, style="faint"),
        line(
            "training, smoothed",
            "train_loss_smoothed",
            "train",
            curves.smoothed,
            points,
            smooth_of="train_loss",
        ),
        line("training rows, dropout off", "probe_loss", "probe", curves.probe, points, style="points"),
        line(curves.split or "evaluation", "eval_loss", "evaluation", curves.evaluation, points, style="points"),
    )
    shown = tuple(drawn for drawn in lines if drawn.x)
    return Chart(id="loss", title="Loss", lines=shown, marks=marks_of(curves))


def _metric_charts(curves: Curves, points: int) -> list[Chart]:
    """Return scores in one chart, and errors, which have other units, in charts of their own."""
    main = curves.start.metric if curves.start else ""
    names = sorted(curves.metrics, key=lambda name: name != main)
    scores = [name for name in names if higher_is_better(name)]
    charts = []
    if scores:
        lines = tuple(
            line(
                metric_words(name),
                name,
                str(place % 6 + 1),
                curves.metrics[name],
                points,
                style="points",
                hidden=place > 1,
            )
            for place, name in enumerate(scores)
        )
        charts.append(
            Chart(
                id="scores",
                title="Scores",
                lines=lines,
                marks=tuple(mark for mark in marks_of(curves) if mark.kind == "best"),
                levels=_majority_level(curves, scores[0]),
                percent=all(is_share(name) for name in scores[:1]),
            )
        )
    for name in names:
        if name not in scores:
            charts.append(
                _single(curves.metrics[name], name, metric_words(name), points, style="points", minor=name != main)
            )
    return charts


def _majority_level(curves: Curves, name: str) -> tuple[Level, ...]:
    majority = curves.start.majority if curves.start else {}
    value = majority.get(name)
    if not isinstance(value, int | float) or not math.isfinite(value):
        return ()
    return (Level(y=float(value), text=f"always {answer(majority.get('label'))}"),)


def _single(series: Series, name: str, title: str, points: int, style: str = "line", minor: bool = True) -> Chart:
    return Chart(id=name, title=title, lines=(line(title, name, "1", series, points, style=style),), minor=minor)
