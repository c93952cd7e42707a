"""The list of commands; each is loaded when it is called."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import click

from whet import __version__

COMMANDS = {
    "train": ("whet.cli.train:train", "Fine-tune a model on labelled text."),
    "tune": ("whet.cli.tune:tune", "Search better settings, with proof on held-out rows."),
    "predict": ("whet.cli.predict:predict", "Label new texts with a trained model."),
    "evaluate": ("whet.cli.evaluate:evaluate", "Score a trained model on labelled text."),
    "decide": ("whet.cli.decide:decide", "Choose thresholds, rows for a person, sets of labels."),
    "serve": ("whet.cli.serve:serve", "Answer HTTP requests with a trained model."),
    "export": ("whet.cli.export:export", "Write a model for onnxruntime, with proof."),
    "check": ("whet.cli.check:check", "Show what is in a data source and what is wrong with it."),
    "runs": ("whet.cli.runs:runs", "List the runs in a folder."),
    "verdict": ("whet.cli.verdict:verdict", "Explain what the learning curves of a run mean."),
    "labels": ("whet.cli.labels:labels", "List labels that look wrong, and review them on a page."),
    "compare": ("whet.cli.compare:compare", "Compare runs: settings, scores, significance."),
    "report": ("whet.cli.report:report", "Write the report of a run."),
    "watch": ("whet.cli.watch:watch", "Show runs as a live page."),
    "bench": ("whet.cli.bench:bench", "Run the stock library and whet side by side on this machine."),
    "selftest": ("whet.cli.selftest:selftest", "Kill, resume and corrupt a small run here, and compare to the bit."),
    "cache": ("whet.cli.cache:cache", "Show or clear the cache."),
}


class LazyGroup(click.Group):
    """Imports a command's module only when that command is called, so that `--help` is fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        from whet.errors import nearest

        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"There is no command {args[0]!r}. {nearest(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        from whet.cli.app import interrupted

        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            # click would answer with an empty line.
            raise interrupted(error) from None


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="whet sharpens a pretrained transformer on your labelled text.",
    epilog="Start with: whet train sample/pairs",
)
@click.version_option(__version__, prog_name="whet")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def root(debug: bool) -> None:
    if debug:
        os.environ["WHET_DEBUG"] = "1"
