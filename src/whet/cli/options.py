"""Makes flags from the settings, so that each setting is described once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import click

from whet.config import CHOSEN_BY_RECIPE, SECTIONS, Config, from_environment, make_config, read_toml
from whet.errors import UsageError

Command = Callable[..., Any]
HELP_ALL = "whet.help_all"
TITLES = {
    "": "Command",
    "data": "Data",
    "model": "Model",
    "lora": "LoRA",
    "train": "Training",
    "evaluate": "Evaluation",
    "run": "Run folder",
}
"""Titles of the groups of `--help-all` by section of the settings; flags that are not settings come first."""


def settings_options(*sections: str) -> Callable[[Command], Command]:
    """Add a flag for every setting of these sections that has one. Values arrive as text and are checked later."""

    def decorate(command: Command) -> Command:
        for section in reversed(sections):
            for field in reversed(dataclasses.fields(SECTIONS[section])):
                if field.metadata["flag"]:
                    command = setting_option(section, field.name)(command)
        return command

    return decorate


def setting_option(section: str, name: str) -> Callable[[Command], Command]:
    """Add the flag of this setting alone."""
    field = next(each for each in dataclasses.fields(SECTIONS[section]) if each.name == name)
    return _option(section, field, get_type_hints(SECTIONS[section])[name])


class SettingOption(click.Option):
    """The flag of a setting, with the setting's section."""

    def __init__(self, *arguments: Any, section: str, **others: Any) -> None:
        super().__init__(*arguments, **others)
        self.section = section


class ShortHelpCommand(click.Command):
    """A command with many flags: `--help` shows the common ones, `--help-all` all of them in groups."""

    def __init__(self, *arguments: Any, common: Collection[str] = (), **others: Any) -> None:
        """`common` names the parameters that `--help` shows."""
        super().__init__(*arguments, **others)
        self.common = common
        self.params.append(
            click.Option(
                ["--help-all"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_show_all_flags,
                help="Show all flags, in groups.",
            )
        )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        flags = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        if ctx.meta.get(HELP_ALL):
            groups = {
                title: [flag for flag in flags if _group(flag) == title] for title in dict.fromkeys(TITLES.values())
            }
        else:
            by_name = {flag.name: flag for flag in flags}
            groups = {"Options": [by_name[name] for name in (*self.common, "help_all")]}
        for title, members in groups.items():
            with formatter.section(title):
                formatter.write_dl([record for flag in members if (record := flag.get_help_record(ctx))])


def _show_all_flags(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta[HELP_ALL] = True
        click.echo(ctx.get_help())
        ctx.exit()


def _group(flag: click.Option) -> str:
    return TITLES[flag.section if isinstance(flag, SettingOption) else ""]


def _option(section: str, field: dataclasses.Field[Any], hint: Any) -> Callable[[Command], Command]:
    flag, text = field.metadata["flag"], _sentence(field.metadata["help"])
    option = partial(click.option, flag, field.name, cls=SettingOption, section=section)
    if hint is bool:
        return option(is_flag=True, default=None, help=text)
    if get_origin(hint) is tuple:
        return option(multiple=True, help=text, metavar="NAME")
    default = "" if field.default in (None, "") else f" [{_shown(field)}]"
    if get_origin(hint) is Literal:
        return option(type=click.Choice(get_args(hint)), help=text + default)
    kinds = {int: "N", float: "X", str: "TEXT"}
    metavar = next(kinds[arg] for arg in (get_args(hint) or (hint,)) if arg in kinds)
    return option(metavar=metavar, help=text + default)


def _shown(field: dataclasses.Field[Any]) -> str:
    if field.name in CHOSEN_BY_RECIPE:
        return "chosen from the rows"
    return f"{field.default:g}" if isinstance(field.default, float) else str(field.default)


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."


def resolve(flags: dict[str, Any], config_file: str | None, assignments: tuple[str, ...]) -> Config:
    """Return the settings: flags override the environment, the file and the defaults, in this order."""
    given = {name: value for name, value in flags.items() if value not in (None, ())}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise UsageError(f"--set was given {assignment!r}.", "It must be name=value.")
        given[name.strip().rpartition(".")[2]] = value
    from_file = read_toml(Path(config_file)) if config_file else {}
    return make_config(from_file, from_environment(), given)
