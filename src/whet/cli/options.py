"""Flags made from the settings, so that each setting is described once, where it is defined."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import click

from whet.config import SECTIONS, Config, from_environment, make_config, read_toml
from whet.errors import UsageError

Command = Callable[..., Any]


def settings_options(*sections: str) -> Callable[[Command], Command]:
    """Adds a flag for every setting of these sections that has one. Values arrive as text and are checked later."""

    def decorate(command: Command) -> Command:
        for section in reversed(sections):
            for field in reversed(dataclasses.fields(SECTIONS[section])):
                if field.metadata["flag"]:
                    command = setting_option(section, field.name)(command)
        return command

    return decorate


def setting_option(section: str, name: str) -> Callable[[Command], Command]:
    """The flag of this setting alone."""
    field = next(each for each in dataclasses.fields(SECTIONS[section]) if each.name == name)
    return _option(field.metadata["flag"], field, get_type_hints(SECTIONS[section])[name])


def _option(flag: str, field: dataclasses.Field[Any], hint: Any) -> Callable[[Command], Command]:
    text = field.metadata["help"]
    if hint is bool:
        return click.option(flag, field.name, is_flag=True, default=None, help=_sentence(text))
    if get_origin(hint) is tuple:
        return click.option(flag, field.name, multiple=True, help=_sentence(text), metavar="NAME")
    default = "" if field.default in (None, "") else f" [{_shown(field.default)}]"
    if get_origin(hint) is Literal:
        return click.option(flag, field.name, type=click.Choice(get_args(hint)), help=_sentence(text) + default)
    kinds = {int: "N", float: "X", str: "TEXT"}
    kind = next(kinds[arg] for arg in (get_args(hint) or (hint,)) if arg in kinds)
    return click.option(flag, field.name, metavar=kind, help=_sentence(text) + default)


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."


def resolve(flags: dict[str, Any], config_file: str | None, assignments: tuple[str, ...]) -> Config:
    """Flag over environment over file over default."""
    given = {name: value for name, value in flags.items() if value not in (None, ())}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise UsageError(f"--set was given {assignment!r}.", "It must be name=value.")
        given[name.strip().rpartition(".")[2]] = value
    from_file = read_toml(Path(config_file)) if config_file else {}
    return make_config(from_file, from_environment(), given)
