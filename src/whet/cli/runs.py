"""`whet runs [DIR]`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from whet.cli.terminal import shortened
from whet.utils.text import json_text

if TYPE_CHECKING:
    from whet.runs.summary import Line

WIDTH = 80


@click.command()
@click.argument("folder", metavar="[DIR]", default="runs", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list.")
def runs(folder: Path, as_json: bool) -> None:
    """List the runs in a folder, oldest first: score, verdict, time, and a line of the evaluation loss."""
    from whet.errors import UsageError
    from whet.runs.summary import list_runs

    if not folder.is_dir() and folder != Path("runs"):
        raise UsageError(
            f"There is no folder {str(folder)!r}.", "Runs are stored in runs/ unless --run names another folder."
        )
    found = list_runs(folder)
    if as_json:
        click.echo(json_text([line.as_dict() for line in found]))
    elif not found:
        click.echo(f"No runs in {folder}/. Start one with: whet train sample/pairs")
    else:
        for line in listing_lines(found):
            click.echo(line)


def listing_lines(found: list[Line]) -> list[str]:
    """Return a header and one line per run; long names are shortened to fit 80 columns."""
    from whet.runs.progress import duration

    rest = [("score", "time", "eval loss", "verdict")]
    for line in found:
        score = "–" if line.score is None else f"{line.metric} {line.score:.3f}"
        ended = line.verdict if line.state in ("finished", "patience") else f"{line.verdict} ({_state(line)})"
        rest.append((score, duration(line.seconds), line.spark, ended.strip()))
    widths = [max(len(row[column]) for row in rest) for column in range(3)]
    verdicts = max(len(row[3]) for row in rest)
    room = max(8, WIDTH - sum(widths) - verdicts - 8)
    names = [shortened(name, room) for name in ("run", *(line.name for line in found))]
    width = max(map(len, names))
    return [
        f"{name:<{width}}  "
        + "  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=False))
        + f"  {row[3]}"
        for name, row in zip(names, rest, strict=True)
    ]


def _state(line: Line) -> str:
    return f"{line.share:.0%}" if line.state == "running or killed" else line.state
