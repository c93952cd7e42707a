"""A hint that names a flag names one that the command has."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import click
import pytest

from tests.data_files import as_csv, labelled, write
from whet.cli import main
from whet.cli.commands import COMMANDS, root

SOURCE = Path(__file__).parent.parent.parent / "src" / "whet"
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+")
FOREIGN = {"--no-deps"}
"""Flags of other programs that a message names: pip's."""
READERS = (
    *sorted((SOURCE / "data" / "readers").glob("*.py")),
    SOURCE / "data" / "split_writer.py",
    SOURCE / "data" / "export.py",
)
"""Modules whose errors every command that reads a file may print."""


def options(command: str) -> set[str]:
    found = root.get_command(click.Context(root), command)
    assert found is not None
    return {name for parameter in [*found.params, *root.params] for name in parameter.opts} | {"--help", "--version"}


def flags_in(path: Path) -> set[str]:
    """Flags that the module's strings name, docstrings aside."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and id(n) not in said]
    return {flag for text in texts if isinstance(text, str) for flag in FLAG.findall(text)}


def test_every_flag_that_a_message_names_belongs_to_a_command() -> None:
    known = set.union(*map(options, COMMANDS))
    strange = {path.name: flags_in(path) - known - FOREIGN for path in SOURCE.rglob("*.py")}
    assert {name: flags for name, flags in strange.items() if flags} == {}


@pytest.mark.parametrize("command", ["check", "train", "evaluate", "predict"])
def test_every_command_that_reads_a_file_has_the_flags_of_its_readers(command: str) -> None:
    for module in READERS:
        assert flags_in(module) <= options(command), module


@pytest.mark.parametrize("module", ["columns", "labels", "splits", "examples"])
def test_evaluate_has_the_flags_of_what_understands_the_labels(module: str) -> None:
    assert flags_in(SOURCE / "data" / f"{module}.py") <= options("evaluate")


BROKEN = {
    "header": "yes,no\nno,yes\n",
    "encoding": b"text\ncaf\xe9\n",
    "quote": 'text,label\n"never closed,a\nb,c\n',
    "empty": "text,label\n,a\nb,c\n",
    "field": "text\n" + "x" * 1_100_000 + "\n",
    "columns": as_csv([(row[0], row[0][::-1]) for row in labelled()], header=("title", "description")),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_flags_that_predict_advises_are_its_own(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "new.csv", BROKEN[kind])
    assert main(["predict", "run", str(path)]) == 2
    advised = set(FLAG.findall(capsys.readouterr().err))
    assert advised
    assert advised <= options("predict")
