"""A page on this machine that a command shows until Ctrl-C."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from whet.utils.web_server import Server


def show_page(
    start: Callable[[int], Server], title: str, ending: str, *, usual_port: int, port: int | None, open_browser: bool
) -> None:
    """Serve on the port that was asked for, else on the usual one, or on a free one where that is taken."""
    from whet.errors import EnvironmentFault

    try:
        server = start(usual_port if port is None else port)
    except EnvironmentFault:
        if port is not None:
            raise
        server = start(0)
    try:
        click.echo(f"{title}: {server.url}")
        click.echo(f"From another machine: {server.ssh_line}  and open the same address there.", err=True)
        click.echo(ending, err=True)
        if open_browser:
            click.launch(server.url)
        # In short waits: a signal that comes right before a wait does not end that wait.
        while not threading.Event().wait(0.2):
            pass
    except KeyboardInterrupt:
        server.stop()
