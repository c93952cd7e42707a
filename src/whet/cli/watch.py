"""`whet watch [RUN]`."""

from __future__ import annotations

import threading
from pathlib import Path

import click

USUAL_PORT = 8788


@click.command()
@click.argument("run", type=click.Path(path_type=Path), default=Path("runs"))
@click.option("--port", type=click.IntRange(0, 65535), help=f"Port on 127.0.0.1 [{USUAL_PORT}, or a free one].")
@click.option("--open", "open_browser", is_flag=True, help="Open the page in a browser.")
def watch(run: Path, port: int | None, open_browser: bool) -> None:
    """Show the live page of a run, or of all runs in a folder [runs]. Ends with Ctrl-C."""
    from whet.errors import EnvironmentFault
    from whet.runs.live.server import start

    try:
        server = start(run, USUAL_PORT if port is None else port)
    except EnvironmentFault:
        if port is not None:
            raise
        server = start(run)
    try:
        click.echo(f"Watching {run}: {server.url}")
        click.echo(f"From another machine: {server.ssh_line}  and open the same address there.", err=True)
        click.echo("Ctrl-C ends it; the run goes on.", err=True)
        if open_browser:
            click.launch(server.url)
        # In short waits: a signal just before a wait does not end it.
        while not threading.Event().wait(0.2):
            pass
    except KeyboardInterrupt:
        server.stop()
