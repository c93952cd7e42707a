"""Builds the command that continues after a refusal: the given one with the flags that the error names."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

import click


def command_to_go_on(arguments: Sequence[str], flags: Sequence[str]) -> str:
    """Return the command quoted for a shell; None if it has no such flag."""
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
    """Return the arguments without these flags and their values: the added ones include the earlier values."""
    left = iter(arguments)
    for argument in left:
        name, equals, _ = argument.partition("=")
        if name not in flags:
            yield argument
        elif not equals and name != "--drop-empty":
            next(left, None)
