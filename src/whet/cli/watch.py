"""`whet watch [RUN]`."""

from __future__ import annotations

from pathlib import Path

import click

USUAL_PORT = 8788


@click.command()
@click.argument("run", type=click.Path(path_type=Path), default=Path("runs"))
@click.option("--port", type=click.IntRange(0, 65535), help=f"Port on 127.0.0.1 [{USUAL_PORT}, or a free one].")
@click.option("--open", "open_browser", is_flag=True, help="Open the page in a browser.")
def watch(run: Path, port: int | None, open_browser: bool) -> None:
    """Show the live page of a run, or of all runs in a folder [runs]. Ends with Ctrl-C."""
    from whet.cli.pages import show_page
    from whet.runs.live.server import start

    show_page(
        lambda port: start(run, port),
        f"Watching {run}",
        "Ctrl-C ends it; the run goes on.",
        usual_port=USUAL_PORT,
        port=port,
        open_browser=open_browser,
    )
