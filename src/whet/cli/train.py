"""`whet train SOURCE`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from whet.cli.options import resolve, settings_options
from whet.cli.processes import (
    ARGUMENTS,
    RememberingCommand,
    is_main,
    launch,
    refuse_other_number,
    report_exit_code_to_launcher,
)
from whet.utils.launcher import is_launched
from whet.utils.text import json_text

if TYPE_CHECKING:
    from whet.cli.terminal import Terminal
    from whet.config import Config


COMMON = (
    *(
        "text",
        "pair",
        "label",
        "drop",
        "validation",
        "test",
        "model",
        "max_length",
        "epochs",
        "learning_rate",
        "batch_size",
    ),
    *("patience", "run", "config_file", "processes", "live", "dry_run"),
)
"""The most common flags."""


@click.command(cls=RememberingCommand, common=COMMON)
@click.argument("source", required=False)
@settings_options("data", "model", "lora", "train", "evaluate", "run")
@click.option("--config", "config_file", metavar="FILE.toml", help="Read settings from a file.")
@click.option("--set", "assignments", multiple=True, metavar="NAME=VALUE", help="Any setting by its name.")
@click.option("--processes", type=click.IntRange(1), help="Train in so many processes of this machine [1].")
@click.option("--restarts", type=click.IntRange(0), default=0, help="How often to go on after a process died [0].")
@click.option("--accept-changes", is_flag=True, help="Resume although settings or data changed.")
@click.option("--live", is_flag=True, help="Show the run as a live page on this machine.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, and stop.")
@click.option("--quiet", is_flag=True, help="No progress, only the result.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def train(
    source: str | None,
    config_file: str | None,
    assignments: tuple[str, ...],
    processes: int | None,
    restarts: int,
    accept_changes: bool,
    live: bool,
    dry_run: bool,
    quiet: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Fine-tune a model on labelled text.

    SOURCE is a file, a folder of train/validation/test files, a hub name, or sample/pairs. Running the same command
    again resumes an interrupted run.
    """
    if source is not None:
        flags["source"] = source
    config = resolve(flags, config_file, assignments)
    if not config.data.source:
        raise click.UsageError("Missing SOURCE. Try: whet train sample/pairs")
    if ((processes or 1) > 1 or restarts) and not dry_run and not is_launched():
        given = click.get_current_context().meta[ARGUMENTS]
        raise click.exceptions.Exit(launch(given, processes or 1, restarts))

    refuse_other_number(processes)

    from whet.cli.terminal import Terminal, show_result

    terminal = Terminal(quiet=quiet or not is_main())
    if dry_run:
        from whet.training import run as training

        training.dry_run(config.data.source, config, echo=terminal.echo, accept_changes=accept_changes)
        return

    from whet.api import Run
    from whet.training.run import train_run

    with (
        report_exit_code_to_launcher(),
        terminal,
        _live_page(config, terminal) if live and is_main() else nullcontext(),
    ):
        folder = train_run(
            config.data.source,
            config,
            accept_changes=accept_changes,
            echo=terminal.echo,
            on_event=terminal.on_event,
        )
    if not is_main():
        return
    run = Run(folder.path, trust_remote_code=config.model.trust_remote_code)
    if as_json:
        click.echo(json_text(run.summary()))
    else:
        show_result(run)


@contextmanager
def _live_page(config: Config, terminal: Terminal) -> Iterator[None]:
    """Serve the page of the run's parent folder while it trains."""
    from whet.runs.live.server import start

    root = Path(config.run.run).parent if config.run.run else Path("runs")
    root.mkdir(parents=True, exist_ok=True)
    server = start(root)
    terminal.echo(f"Live page: {server.url}")
    terminal.echo(f"From another machine: {server.ssh_line}")
    try:
        yield
    finally:
        server.stop()
