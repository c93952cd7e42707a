"""`whet labels RUN`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import click

from whet.utils.text import isolated, json_text, neutral

if TYPE_CHECKING:
    from whet.runs.folder import RunFolder
    from whet.runs.label_errors import Suspect, Suspects

USUAL_PORT = 8789
WIDTH = 80
LABEL_WIDTH = 14


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--review", is_flag=True, help="Show the rows one by one on a page of this machine, to decide them.")
@click.option("--port", type=click.IntRange(0, 65535), help=f"Port of the page [{USUAL_PORT}, or a free one].")
@click.option("--open", "open_browser", is_flag=True, help="Open the page in a browser.")
@click.option("--quiet", is_flag=True, help="No progress, only the result.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def labels(run: Path, review: bool, port: int | None, open_browser: bool, quiet: bool, as_json: bool) -> None:
    """List the training rows whose label looks wrong, the most suspicious first.

    Each row is judged by a model that did not learn from it: that of a fold. A run without folds trains short ones
    first; the same command goes on with them after an interruption. The list is kept as label_errors.csv in the run.
    """
    from whet.errors import UsageError
    from whet.runs.folder import RunFolder
    from whet.runs.label_errors import find_suspects, refuse_other_tasks, write_list

    if review and as_json:
        raise UsageError("--review shows a page, and --json prints a list.", "Give one of them.")
    if (port is not None or open_browser) and not review:
        raise UsageError("--port and --open are for the page of --review.", "Add --review.")
    folder = RunFolder.open(run)
    refuse_other_tasks(folder)
    if not folder.finished:
        raise UsageError(f"The run {str(run)!r} is not finished.", "Run the command that began it again.")
    _judge_rows(folder, quiet or as_json)
    suspects = find_suspects(folder)
    assert suspects is not None
    path, written = write_list(folder, suspects)
    if as_json:
        rows = [dataclasses.asdict(suspect) for suspect in suspects.rows]
        click.echo(json_text({"run": str(run), "rows": suspects.looked_at, "list": str(path), "found": rows}))
        return
    for line in table_lines(suspects):
        click.echo(line)
    kept = "" if written else " (it holds decisions, and stays as it was)"
    click.echo(f"\nlist       {path}{kept}")
    if not suspects.rows:
        return
    if review:
        _review(folder, suspects, port, open_browser)
    else:
        click.echo(f"review     whet labels {run} --review")
        click.echo(f"use it     whet train SOURCE --labels-from {path}")


def table_lines(suspects: Suspects) -> list[str]:
    """The first rows within 80 columns: number, given and likely label, probability, the beginning of the text."""
    if not suspects.rows:
        return [suspects.sentence()]
    rows = [("row", "given", "likely", "p")]
    for suspect in suspects.shown:
        names = (isolated(_cut(suspect.given, LABEL_WIDTH)), isolated(_cut(suspect.likely, LABEL_WIDTH)))
        rows.append((str(suspect.row), *names, f"{suspect.probability:.2f}"))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    room = WIDTH - sum(widths) - 8
    texts = ["text", *(_beginning(suspect, room) for suspect in suspects.shown)]
    lines = [suspects.sentence(), ""]
    for (number, given, likely, probability), text in zip(rows, texts, strict=True):
        cells = (number.rjust(widths[0]), given.ljust(widths[1]), likely.ljust(widths[2]), probability.rjust(widths[3]))
        lines.append("  ".join((*cells, text)))
    more = len(suspects.rows) - len(suspects.shown)
    return [*lines, f"… and {more:,} more in the list."] if more else lines


def _beginning(suspect: Suspect, room: int) -> str:
    """The text; of a pair the beginning of each."""
    if suspect.pair is None:
        return isolated(_cut(suspect.text, room))
    half = (room - 3) // 2
    return f"{isolated(_cut(suspect.text, half))} / {isolated(_cut(suspect.pair, half))}"


def _cut(text: str, room: int) -> str:
    shown = neutral(" ".join(text.split()))
    return shown if len(shown) <= room else shown[: room - 1] + "…"


def _judge_rows(folder: RunFolder, quiet: bool) -> None:
    """Train the folds of a run that has none, and put what they found into its report."""
    from whet.runs.label_errors import has_out_of_fold

    if has_out_of_fold(folder):
        return
    from whet.cli.terminal import Terminal
    from whet.runs.report.html import write_report_quietly
    from whet.training.out_of_fold import measure_out_of_fold

    with Terminal(quiet=quiet) as terminal:
        measure_out_of_fold(folder, terminal.echo, terminal.on_event)
        write_report_quietly(folder, terminal.echo)


def _review(folder: RunFolder, suspects: Suspects, port: int | None, open_browser: bool) -> None:
    from whet.cli.pages import show_page
    from whet.runs.review.decisions import REVIEWED, Decisions
    from whet.runs.review.server import start

    path = folder.path / REVIEWED
    with folder.locked():
        decisions = Decisions(path, suspects.rows)
        show_page(
            lambda port: start(folder.path.resolve().name, suspects, decisions, port),
            "review",
            f"Ctrl-C ends it. Every decision is kept in {path}; train with --labels-from {path}.",
            usual_port=USUAL_PORT,
            port=port,
            open_browser=open_browser,
        )
