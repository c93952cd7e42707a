"""The command that goes on after a refusal: the one that was given, with the flags that the error names."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

import click


def command_to_go_on(arguments: Sequence[str], flags: Sequence[str]) -> str:
    """The whole command as a shell takes it; nothing where this command has no such flag."""
    if not arguments or not flags:
        return ""
    from whet.cli.commands import root

    command = root.get_command(click.Context(root), arguments[0])
    known = {name for option in (command.params if command else ()) for name in option.opts}
    added = {flag for flag in flags if flag.startswith("--")}
    if not added <= known:
        return ""
    return shlex.join(["whet", *_without(arguments, added), *flags])


def _without(arguments: Sequence[str], flags: set[str]) -> Iterator[str]:
    """The arguments but for these flags and their values: what is added holds the earlier values, too."""
    left = iter(arguments)
    for argument in left:
        name, equals, _ = argument.partition("=")
        if name not in flags:
            yield argument
        elif not equals and name != "--drop-empty":
            next(left, None)
