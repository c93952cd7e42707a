"""Draws a chart as SVG text, for Markdown, notebooks, and reports that are printed or read without scripts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape as escape_markup

from whet.runs.report.charts import Chart, Line
from whet.utils.text import neutral


def escape(text: str, quote: bool = True) -> str:
    """Escape text for XML, which allows no control characters."""
    return escape_markup(neutral(text), quote)


COLOURS = {
    "train": "#2a78d6",
    "probe": "#1b9e77",
    "evaluation": "#e0662f",
    "level": "#8a8a8a",
    "1": "#2a78d6",
    "2": "#e0662f",
    "3": "#1b9e77",
    "4": "#8d6cd9",
    "5": "#c48a00",
    "6": "#d6497c",
}
"""Medium tones that are readable on light and on dark: a notebook does not tell which it is."""

_TOP, _RIGHT, _BOTTOM, _LEFT = 46, 14, 34, 52
_FONT = "font-family='system-ui,-apple-system,Segoe UI,Helvetica,Arial,Noto Sans,DejaVu Sans,sans-serif'"


@dataclass(frozen=True)
class Frame:
    """Maps data to positions in the drawing."""

    x: tuple[float, float]
    y: tuple[float, float]
    width: int
    height: int

    def px(self, value: float) -> float:
        return _LEFT + (value - self.x[0]) / (self.x[1] - self.x[0]) * (self.width - _LEFT - _RIGHT)

    def py(self, value: float) -> float:
        share = (value - self.y[0]) / (self.y[1] - self.y[0])
        return self.height - _BOTTOM - share * (self.height - _TOP - _BOTTOM)


def render(chart: Chart, width: int = 640, height: int = 280, *, standalone: bool = False) -> str:
    """Return the SVG of a chart; `standalone` adds text colours for light and dark."""
    lines = [line for line in chart.lines if line.x and not line.hidden]
    frame = _frame(chart, lines, width, height)
    opening = (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' class='chart-svg' role='img' "
        f"aria-label='{escape(chart.title, quote=True)}' {_FONT} font-size='11' fill='currentColor'>"
    )
    parts = [
        opening,
        _OWN_COLOURS if standalone else "",
        f"<text x='{_LEFT}' y='16' font-size='13' font-weight='600'>{escape(chart.title)}</text>",
        *_axes(chart, frame),
        *_marks(chart, frame),
        *(part for line in lines for part in _line(line, frame)),
        *_legend(lines, width),
        "</svg>",
    ]
    return "".join(parts)


_OWN_COLOURS = (
    "<style>svg{color:#24292f;background:#fff}"
    "@media (prefers-color-scheme:dark){svg{color:#d7dde4;background:#14181d}}</style>"
)


def _frame(chart: Chart, lines: Sequence[Line], width: int, height: int) -> Frame:
    xs = [x for line in lines for x in line.x]
    ys = [y for line in lines for y in (*line.y, *line.low, *line.high) if y is not None]
    ys += [level.y for level in chart.levels]
    return Frame(
        x=chart.x_range or padded(xs, 0.0),
        y=chart.y_range or padded(ys, 0.06),
        width=width,
        height=height,
    )


def padded(values: Sequence[float], share: float) -> tuple[float, float]:
    """Return the range of values, widened a little; never empty."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    if low == high:
        return low - (abs(low) * 0.1 or 0.5), high + (abs(high) * 0.1 or 0.5)
    return low - share * (high - low), high + share * (high - low)


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Return round numbers in a range, with steps of 1, 2 or 5."""
    raw = (high - low) / max(1, about)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * multiple for multiple in (1, 2, 5, 10) if power * multiple >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round((first + place) * step, 12) for place in range(int((high + 1e-9 * step) / step - first) + 1)]


def number(value: float, percent: bool = False) -> str:
    """Format the number of a tick."""
    if percent:
        return f"{100 * value:.4g}%"
    if value != 0 and (abs(value) < 1e-3 or abs(value) >= 1e6):
        return f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:,.5g}" if abs(value) < 1e4 else f"{value:,.0f}"


def _axes(chart: Chart, frame: Frame) -> Iterator[str]:
    bottom, right = frame.height - _BOTTOM, frame.width - _RIGHT
    for tick in ticks(*frame.y):
        y = frame.py(tick)
        yield f"<path d='M{_LEFT} {y:.1f}H{right}' stroke='currentColor' stroke-opacity='.13'/>"
        yield (
            f"<text x='{_LEFT - 7}' y='{y + 3.5:.1f}' text-anchor='end' fill-opacity='.7'>"
            f"{number(tick, chart.percent)}</text>"
        )
    for tick in ticks(*frame.x, about=6):
        yield (
            f"<text x='{frame.px(tick):.1f}' y='{bottom + 16}' text-anchor='middle' fill-opacity='.7'>"
            f"{number(tick, chart.percent and chart.square)}</text>"
        )
    yield f"<path d='M{_LEFT} {bottom}H{right}' stroke='currentColor' stroke-opacity='.4'/>"
    yield (f"<text x='{right}' y='{bottom + 30}' text-anchor='end' fill-opacity='.7'>{escape(chart.x_title)}</text>")


def _marks(chart: Chart, frame: Frame) -> Iterator[str]:
    bottom = frame.height - _BOTTOM
    for mark in chart.marks:
        x = frame.px(mark.x)
        title = f"<title>{escape(mark.text)}</title>"
        if mark.kind == "best":
            yield (
                f"<path d='M{x:.1f} {_TOP - 4}V{bottom}' stroke='currentColor' stroke-opacity='.55' "
                f"stroke-dasharray='2 3'>{title}</path>"
            )
            anchor = "end" if x > frame.width * 0.8 else "start"
            yield (
                f"<text x='{x + (4 if anchor == 'start' else -4):.1f}' y='{_TOP + 6}' text-anchor='{anchor}' "
                f"fill-opacity='.8'>best</text>"
            )
        else:
            shape = "-3 5h6z" if mark.kind == "save" else "-4 8h8z"
            yield (f"<path d='M{x:.1f} {bottom - 5}l{shape}' fill='currentColor' fill-opacity='.5'>{title}</path>")
    for level in chart.levels:
        y = frame.py(level.y)
        yield (
            f"<path d='M{_LEFT} {y:.1f}H{frame.width - _RIGHT}' stroke='{COLOURS['level']}' stroke-width='1.5' "
            f"stroke-dasharray='6 4'/><text x='{frame.width - _RIGHT}' y='{y - 5:.1f}' text-anchor='end' "
            f"fill-opacity='.75'>{escape(level.text)}</text>"
        )


def _line(line: Line, frame: Frame) -> Iterator[str]:
    colour = COLOURS[line.role]
    places = [(frame.px(x), frame.py(y)) if y is not None else None for x, y in zip(line.x, line.y, strict=True)]
    if line.style != "dots":
        width = 1 if line.style == "faint" else 2
        dash = " stroke-dasharray='6 4'" if line.style == "dashed" else ""
        yield (
            f"<path d='{_path(places)}' fill='none' stroke='{colour}' stroke-width='{width}'{dash} "
            f"stroke-linejoin='round' stroke-opacity='{0.35 if line.style == 'faint' else 1}'/>"
        )
    for x, low, high in zip(line.x, line.low, line.high, strict=False):
        yield (
            f"<path d='M{frame.px(x):.1f} {frame.py(low):.1f}V{frame.py(high):.1f}' stroke='{colour}' "
            f"stroke-opacity='.5'/>"
        )
    if line.style == "dots" or (line.style == "points" and len(places) <= 60):
        opacity = 0.35 if line.style == "dots" else 1
        for place in places:
            if place is not None:
                yield (
                    f"<circle cx='{place[0]:.1f}' cy='{place[1]:.1f}' r='2.6' fill='{colour}' "
                    f"fill-opacity='{opacity}'/>"
                )


def _path(places: Sequence[tuple[float, float] | None]) -> str:
    """Return a straight path through the points, with gaps for values that are not finite."""
    parts, pen = [], "M"
    for place in places:
        if place is None:
            pen = "M"
        else:
            parts.append(f"{pen}{place[0]:.1f} {place[1]:.1f}")
            pen = "L"
    return "".join(parts)


def _legend(lines: Sequence[Line], width: int) -> Iterator[str]:
    if len(lines) < 2:
        return
    x = float(_LEFT)
    for line in lines:
        taken = 26 + 6.1 * len(line.name)
        if x + taken > width and x > _LEFT:
            break
        opacity = 0.4 if line.style == "faint" else 1
        yield (
            f"<path d='M{x:.0f} 30h14' stroke='{COLOURS[line.role]}' stroke-width='2.5' stroke-opacity='{opacity}'/>"
            f"<text x='{x + 19:.0f}' y='34' fill-opacity='.8'>{escape(line.name)}</text>"
        )
        x += taken + 8
