"""`whet report RUN`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="FILE.html or FILE.md [report.html and report.md in the run folder].",
)
def report(run: Path, output: Path | None) -> None:
    """Write the report of a run: one HTML file that opens from disk, and Markdown with its plots."""
    from whet.runs.folder import RunFolder
    from whet.runs.report.html import write_markdown, write_report

    folder = RunFolder.open(run)
    if output is None:
        written = [write_report(folder), write_markdown(folder)]
    elif output.suffix.lower() in (".md", ".markdown"):
        written = [write_markdown(folder, output)]
    elif output.suffix.lower() in (".html", ".htm"):
        written = [write_report(folder, output)]
    else:
        raise click.UsageError(f"-o {output} ends in neither .html nor .md.")
    for path in written:
        click.echo(path)
