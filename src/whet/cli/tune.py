"""`whet tune SOURCE`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from whet.cli.options import ShortHelpCommand, resolve, setting_option, settings_options
from whet.utils.text import json_text

if TYPE_CHECKING:
    from whet.experiments.outcome import Outcome, Tuning

SHOWN = 10
"""Number of trainings in the table on a terminal; the page has them all."""
SHORT = {
    "learning_rate": "rate",
    "batch_size": "batch",
    "weight_decay": "decay",
    "contrastive": "contrast",
}

COMMON = (
    *("minutes", "trials", "models", "run", "text", "pair", "label", "drop", "validation", "test", "model"),
    *("epochs", "learning_rate", "batch_size", "metric", "config_file", "as_json"),
)
"""The most common flags."""


@click.command(cls=ShortHelpCommand, common=COMMON)
@click.argument("source", required=False)
@click.option("--minutes", type=float, default=20.0, help="Time for the trainings [20].", metavar="X")
@click.option("--trials", type=int, help="Stop after so many trainings.", metavar="N")
@click.option("--models", help="Models to choose from, the default first, with commas.", metavar="NAME,NAME")
@click.option("--run", metavar="TEXT", help="Folder of the tuning (default: tuning/NAME-001, counting up).")
@settings_options("data", "model", "lora", "train", "evaluate")
@setting_option("run", "offline")
@click.option("--config", "config_file", metavar="FILE.toml", help="Read settings from a file.")
@click.option("--set", "assignments", multiple=True, metavar="NAME=VALUE", help="Any setting by its name.")
@click.option("--quiet", is_flag=True, help="No progress, only the result.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def tune(
    source: str | None,
    minutes: float,
    trials: int | None,
    models: str | None,
    config_file: str | None,
    assignments: tuple[str, ...],
    quiet: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Search for better settings than the recipe's, and test whether they are better.

    Rows are held out first. The first training is the default. At the end the winner is compared with it on the
    held-out rows. Settings that you give are kept. Running the same command again resumes an interrupted search.
    """
    if source is not None:
        flags["source"] = source
    config = resolve(flags, config_file, assignments)
    if not config.data.source:
        raise click.UsageError("Missing SOURCE. Try: whet tune sample/pairs --minutes 10")

    from whet.cli.terminal import Terminal
    from whet.experiments.tune import Asked, run_tuning

    asked = Asked(minutes=minutes, trials=trials, models=tuple(models.split(",")) if models else ())
    terminal = Terminal(quiet=quiet)
    with terminal:
        tuning = run_tuning(config.data.source, config, asked, echo=terminal.echo)
    if as_json:
        click.echo(json_text({"tuning": str(tuning.path), **tuning.outcome.as_dict()}))
    else:
        show_tuning(tuning)


def show_tuning(tuning: Tuning) -> None:
    """Print the table, the effect of the settings, the result, and how to use it."""
    from whet.cli.compare import table
    from whet.cli.terminal import columns, wrapped

    outcome, out = tuning.outcome, sys.stdout
    for line in table(trial_rows(outcome), columns(out) if out.isatty() else None):
        click.echo(line)
    if len(outcome.trials) > SHOWN:
        click.echo(f"… and {len(outcome.trials) - SHOWN} more.")
    click.echo("")
    if outcome.importance:
        finished = sum(line.state == "finished" for line in outcome.trials)
        parts = ", ".join(f"{name} {share:.0%}" for name, share in outcome.importance.items())
        click.echo(wrapped(f"What explains the differences, from {finished} trainings: {parts}.", out))
    click.echo(wrapped(outcome.sentence, out))
    click.echo(f"Use it:  whet predict {tuning.path / outcome.shipped} new.csv")
    click.echo(f"Page:    {tuning.page}")
    click.echo(f"Curves:  whet watch {tuning.path}")


def trial_rows(outcome: Outcome) -> list[list[str]]:
    """Return a header and one row per training, best first; the default is always among them."""
    from whet.experiments.folder import DEFAULT
    from whet.runs.progress import duration

    ranked = outcome.ranked()
    shown = ranked[:SHOWN]
    if all(line.name != DEFAULT for line in shown):
        shown = [*shown[:-1], *(line for line in ranked if line.name == DEFAULT)]
    names = list(ranked[0].settings)
    rows = [["run", outcome.metric, "time", *(SHORT.get(name, name) for name in names)]]
    for line in shown:
        score = "–" if line.score is None else f"{line.score:.4f}"
        ended = score if line.state == "finished" else line.state
        rows.append([line.name, ended, duration(line.seconds), *(_shown(line.settings[name]) for name in names)])
    return rows


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
