"""Writes `docs/reference/` from the code, for `make docs`."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import click

import whet
from whet import errors, records
from whet.cli.commands import COMMANDS, root
from whet.config import CHOSEN_BY_RECIPE, SECTIONS
from whet.data.audit.audit import CODES

FOLDER = Path(__file__).parent.parent / "reference"
TITLES = {
    "data": "Data",
    "model": "Model",
    "lora": "LoRA",
    "train": "Training",
    "evaluate": "Evaluation",
    "run": "Run folder",
}


def pages() -> dict[str, str]:
    """Markdown by the name of the page."""
    return {
        name: "\n".join(make()) + "\n"
        for name, make in (
            ("cli", command_line),
            ("settings", settings),
            ("python", python_names),
            ("findings", findings),
            ("exit-codes", exit_codes),
            ("records", record_kinds),
        )
    }


def table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> Iterator[str]:
    columns = list(head)
    yield "| " + " | ".join(columns) + " |"
    yield "|" + "---|" * len(columns)
    for row in rows:
        yield "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in row) + " |"
    yield ""


def command_line() -> Iterator[str]:
    yield "# Command line\n"
    yield "`whet COMMAND --help` says the same in the terminal.\n"
    group = click.Context(root, info_name="whet")
    for name in COMMANDS:
        command = root.get_command(group, name)
        assert command is not None
        context = click.Context(command, info_name=name, parent=group)
        yield f"## whet {name}\n"
        yield f"```\n{command.get_usage(context).removeprefix('Usage: ')}\n```\n"
        yield inspect.cleandoc(command.help or "") + "\n"
        flags = [param.get_help_record(context) for param in command.get_params(context)]
        yield from table(("flag", "meaning"), ((f"`{record[0]}`", record[1]) for record in flags if record))


def settings() -> Iterator[str]:
    yield "# Settings\n"
    yield "Each setting has one name: in Python (`whet.fit(source, NAME=VALUE)`), in TOML (`--config`), in"
    yield "`--set NAME=VALUE`, and in the environment as `WHET_NAME`. A flag wins over the environment, the"
    yield "environment over a file, a file over the default. `[recipe]` marks defaults that the"
    yield "[recipe](../recipe.md) replaces unless you set them.\n"
    for section, kind in SECTIONS.items():
        yield f"## {TITLES[section]}\n\n{kind.__doc__}\n"
        hints = get_type_hints(kind)
        yield from table(
            ("name", "flag", "type", "default", "meaning"),
            (
                (
                    f"`{field.name}`",
                    f"`{field.metadata['flag']}`" if field.metadata["flag"] else "",
                    type_words(hints[field.name]),
                    f"`{field.default!r}`" + (" [recipe]" if field.name in CHOSEN_BY_RECIPE else ""),
                    field.metadata["help"],
                )
                for field in dataclasses.fields(kind)
            ),
        )


def type_words(hint: Any) -> str:
    """A type as a reader would say it."""
    if get_origin(hint) is tuple:
        return "list"
    parts = [part for part in get_args(hint) if part is not type(None)]
    if not parts:
        return {int: "whole number", float: "number", bool: "true or false", str: "text"}.get(hint, str(hint))
    return " or ".join(type_words(part) if isinstance(part, type) or get_args(part) else f"`{part}`" for part in parts)


def python_names() -> Iterator[str]:
    yield "# Python\n"
    yield "Names are loaded when they are first used, so `import whet` takes milliseconds.\n"
    inside_engines = {"ray.Predictor": whet.ray.Predictor, "spark.predict_udf": whet.spark.predict_udf}
    named = {name: getattr(whet, name) for name in whet.__all__} | inside_engines
    for name in sorted(named, key=str.lower):
        found = named[name]
        if not found.__module__.startswith("whet"):
            yield f"## `{name}`\n\nThat of `{found.__module__.split('.')[0]}`, unchanged.\n"
            continue
        yield f"## `{name}`\n\n```python\n{signature(name, found)}\n```\n\n{inspect.getdoc(found) or ''}\n"
        for member, value in own_methods(found):
            yield f"### `{name}.{member}`\n\n```python\n{signature(member, value)}\n```\n\n{inspect.getdoc(value)}\n"


def own_methods(found: Any) -> Iterator[tuple[str, Any]]:
    """Public methods with a docstring that the class itself defines."""
    for member, value in vars(found).items() if inspect.isclass(found) else ():
        if not member.startswith("_") and inspect.isfunction(value) and value.__doc__:
            yield member, value


def signature(name: str, found: Any) -> str:
    try:
        text = str(inspect.signature(found)).replace("'", "")
    except (TypeError, ValueError):
        text = "(…)"
    return f"{name}{text}"


def findings() -> Iterator[str]:
    yield "# Audit findings\n"
    yield "`whet check` and `whet train` print them, `data.json` keeps them, `--allow NAME` lets one stand."
    yield "[Data](../data.md#the-audit) says from when on each is a note, a warning or an error.\n"
    yield from table(("finding", "meaning"), ((f"`{code}`", meaning) for code, meaning in CODES.items()))


def exit_codes() -> Iterator[str]:
    yield "# Errors and exit codes\n"
    yield "An error is one line with a hint. `--debug` shows the traceback.\n"
    kinds = [each for each in vars(errors).values() if inspect.isclass(each) and issubclass(each, errors.WhetError)]
    rows = [(each.exit_code, f"`{each.__name__}`", each.__doc__) for each in kinds if each is not errors.WhetError]
    yield from table(("exit code", "in Python", "meaning"), [(0, "", "Done."), *sorted(rows, key=lambda row: row[0])])


def record_kinds() -> Iterator[str]:
    yield "# Records of a run\n"
    yield "`records.jsonl` has one JSON object per line; `kind` says which of these it is.\n"
    kinds = [each for each in vars(records).values() if inspect.isclass(each) and issubclass(each, records.Record)]
    for kind in kinds:
        if kind.kind:
            yield f"## `{kind.kind}`\n\n{inspect.getdoc(kind)}\n"
            yield from table(
                ("field", "type"), ((f"`{field.name}`", f"`{field.type}`") for field in dataclasses.fields(kind))
            )


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, page in pages().items():
        (FOLDER / f"{name}.md").write_text(page, encoding="utf-8")
