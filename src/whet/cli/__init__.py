"""The command line: one thin function a command, loaded when it is called. Nothing imports this package."""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from typing import Any

import click

from whet import __version__
from whet.errors import EnvironmentFault, Interrupted, WhetError

COMMANDS = {
    "train": ("whet.cli.train:train", "Fine-tune a model on labelled text."),
    "predict": ("whet.cli.predict:predict", "Label new texts with a trained model."),
    "evaluate": ("whet.cli.evaluate:evaluate", "Score a trained model on labelled text."),
    "check": ("whet.cli.check:check", "Say what is in a data source and what is wrong with it."),
    "runs": ("whet.cli.runs:runs", "List the runs there are."),
    "verdict": ("whet.cli.verdict:verdict", "Say what the learning curves of a run mean."),
    "compare": ("whet.cli.compare:compare", "Compare runs: settings, scores, significance."),
    "report": ("whet.cli.report:report", "Write the report of a run."),
    "watch": ("whet.cli.watch:watch", "Show runs as a live page."),
    "bench": ("whet.cli.bench:bench", "Run the stock library and whet side by side on this machine."),
    "selftest": ("whet.cli.selftest:selftest", "Kill, resume and corrupt a small run here, and compare to the bit."),
    "cache": ("whet.cli.cache:cache", "Show or clear what was kept for next time."),
}


class LazyGroup(click.Group):
    """Imports a command's module only when that command is called, so `--help` stays instant."""

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


def main(arguments: list[str] | None = None) -> int:
    """Run a command; errors of ours become one line and an exit code that scripts can trust."""
    try:
        left_with = root.main(args=arguments, prog_name="whet", standalone_mode=False)
        return left_with if isinstance(left_with, int) else 0
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.Abort:
        return Interrupted.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except WhetError as error:
        return _report(error)
    except SystemExit as error:
        # The library leaves with 1 when the reader of our output went away (`whet runs | head`): nothing failed.
        closed = type(sys.stdout).__name__ == "PacifyFlushWrapper"
        return 0 if closed else int(error.code or 0)
    except KeyboardInterrupt:
        return Interrupted.exit_code
    except BrokenPipeError:
        # The reader of our output went away (`whet runs | head`): nothing is left to say to it.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        return 0
    except MemoryError:
        return _report(EnvironmentFault("Out of memory.", "Try a smaller --batch-size or --max-length."))
    except OSError as error:
        where = f" {error.filename!r}" if error.filename else ""
        return _report(EnvironmentFault(f"The system refused{where}: {error.strerror or error}."))


def _report(error: WhetError) -> int:
    if os.environ.get("WHET_DEBUG"):
        import traceback

        traceback.print_exc()
    rank = int(os.environ.get("RANK") or "0")
    if error.copied or (rank and error.rank is None):
        return error.exit_code  # another process says it
    who = f"whet (rank {rank})" if rank else "whet"
    click.echo(f"{who}: {error.message}", err=True)
    if error.hint:
        click.echo(f"      {error.hint}", err=True)
    return error.exit_code


def leave_when_terminated() -> None:
    """SIGTERM like Ctrl-C, from the first moment on; a run sets handlers of its own while it has something to save."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def entry() -> None:
    from whet.cli.processes import exit_code

    try:
        leave_when_terminated()
        sys.exit(exit_code(main()))
    except KeyboardInterrupt:  # between two lines of main
        sys.exit(Interrupted.exit_code)
