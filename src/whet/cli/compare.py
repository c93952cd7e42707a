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


NARROWEST = 8
"""Characters that a column keeps, however many there are."""


@click.command()
@click.argument("runs", metavar="RUN RUN …", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--split", type=click.Choice(["validation", "test"]), help="Rows to score [test if labelled].")
@click.option(
    "--html", metavar="FILE", type=click.Path(path_type=Path), help="Write the comparison as a page, with curves."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def compare(runs: tuple[Path, ...], split: str | None, html: Path | None, as_json: bool) -> None:
    """Compare runs with the first: settings that differ, scores with intervals, and what may be luck."""
    from whet.cli.terminal import columns, wrapped
    from whet.runs.compare import compare as compared

    found = compared(runs, split)
    if html is not None:
        from whet.runs.report.compare_html import write_comparison

        click.echo(f"{write_comparison(found, html)}", err=True)
    if as_json:
        click.echo(json_text(found.as_dict(), default=str))
        return
    for line in comparison_lines(found, columns(sys.stdout) if sys.stdout.isatty() else None):
        click.echo(line)
    for difference in found.differences:
        click.echo(wrapped(difference.sentence, sys.stdout))


def comparison_lines(found: Comparison, most: int | None = None) -> list[str]:
    """Scores, then the settings that differ; lines at most so wide."""
    from whet.runs.compare import describe
    from whet.runs.progress import duration

    scores = [["run", f"{found.split} {found.metric}", "95% interval", "time", "verdict"]]
    for entry in found.entries:
        score, low, high = "–", "", ""
        if entry.score is not None:
            score, low, high = (
                describe(found.metric, value) for value in (entry.score.value, entry.score.low, entry.score.high)
            )
        interval = f"{low} to {high}" if low else ""
        scores.append([entry.name, score, interval, duration(entry.seconds), entry.verdict.verdict])
    names = [entry.name for entry in found.entries]
    settings = [["setting", *names], *([n, *map(_shown, values)] for n, values in found.settings.items())]
    same = "All settings are the same."
    return [
        *table(scores, most),
        "",
        *(table(settings, most) if found.settings else [same]),
        "",
    ]


def table(rows: list[list[str]], most: int | None = None) -> list[str]:
    """Columns as wide as what they hold; where that is too wide together, the widest are cut."""
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
