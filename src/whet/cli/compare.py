"""`whet compare RUN RUN …`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from whet.cli.terminal import shortened
from whet.utils.text import json_text

if TYPE_CHECKING:
    from whet.runs.compare import Comparison


MANY_RUNS = 6
"""From this many runs on, each run is a row with its settings and score, and one sentence summarises the tests."""
NARROWEST = 8
"""Smallest width of a column in characters."""


@click.command()
@click.argument("runs", metavar="RUN RUN …", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--split", type=click.Choice(["validation", "test"]), help="Rows to score [test if labelled].")
@click.option(
    "--html", metavar="FILE", type=click.Path(path_type=Path), help="Write the comparison as a page, with curves."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def compare(runs: tuple[Path, ...], split: str | None, html: Path | None, as_json: bool) -> None:
    """Compare runs with the first: settings that differ, scores with intervals, and which differences may be luck."""
    from whet.cli.terminal import columns, wrapped
    from whet.runs.compare import compare as compared

    comparison = compared(runs, split)
    if html is not None:
        from whet.runs.report.compare_html import write_comparison

        click.echo(f"{write_comparison(comparison, html)}", err=True)
    if as_json:
        click.echo(json_text(comparison.as_dict(), default=str))
        return
    for line in comparison_lines(comparison, columns(sys.stdout) if sys.stdout.isatty() else None):
        click.echo(line)
    few = len(comparison.entries) <= MANY_RUNS
    for sentence in [difference.sentence for difference in comparison.differences] if few else [comparison.summary()]:
        click.echo(wrapped(sentence, sys.stdout))


def comparison_lines(comparison: Comparison, most: int | None = None) -> list[str]:
    """Return the scores, then the settings that differ, within this width."""
    from whet.runs.progress import duration
    from whet.runs.score_words import score_text

    scores = [["run", f"{comparison.split} {comparison.metric}", "95% interval", "time", "verdict"]]
    for entry in comparison.entries:
        score, low, high = "–", "", ""
        if entry.score is not None:
            score, low, high = (
                score_text(comparison.metric, value) for value in (entry.score.value, entry.score.low, entry.score.high)
            )
        interval = f"{low} to {high}" if low else ""
        scores.append([entry.name, score, interval, duration(entry.seconds), entry.verdict.verdict])
    same = "All settings are the same."
    if len(comparison.entries) > MANY_RUNS:
        wide = [[*row, *cells] for row, cells in zip(scores, _settings_beside(comparison), strict=True)]
        ranked = table([wide[0], *_ranked(wide[1:], comparison)], most)
        return [*ranked, "", *([] if comparison.settings else [same, ""])]
    names = [entry.name for entry in comparison.entries]
    settings = [["setting", *names], *([n, *map(_shown, values)] for n, values in comparison.settings.items())]
    return [
        *table(scores, most),
        "",
        *(table(settings, most) if comparison.settings else [same]),
        "",
    ]


def _settings_beside(comparison: Comparison) -> list[list[str]]:
    """Return a header and one row per run: the settings that differ."""
    runs = range(len(comparison.entries))
    return [[*comparison.settings], *([_shown(values[run]) for values in comparison.settings.values()] for run in runs)]


def _ranked(rows: list[list[str]], comparison: Comparison) -> list[list[str]]:
    """Return the first run, which the others are compared with, and then those from the best score down."""
    from whet.metrics.scores import higher_is_better

    sign = -1 if higher_is_better(comparison.metric) else 1

    def place(run: int) -> tuple[bool, float]:
        score = comparison.entries[run].score
        return score is None, sign * score.value if score else 0.0

    return [rows[0], *(rows[run] for run in sorted(range(1, len(rows)), key=place))]


def table(rows: list[list[str]], most: int | None = None) -> list[str]:
    """Return a table with columns as wide as their contents; if it is too wide, the widest columns are cut."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    while most is not None and sum(widths) + 2 * (len(widths) - 1) > most and max(widths) > NARROWEST:
        widths[widths.index(max(widths))] -= 1
    return [
        "  ".join(shortened(cell, width).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:g}" if isinstance(value, float) else str(value)
