"""`--help` shows what most people need, `--help-all` everything."""

from __future__ import annotations

import dataclasses

import pytest
from click.testing import CliRunner

from whet.cli.commands import root
from whet.cli.train import COMMON
from whet.config import CHOSEN_BY_RECIPE, SECTIONS
from whet.task import Task
from whet.training.recipe import chosen_settings

FLAGS = [field.metadata["flag"] for kind in SECTIONS.values() for field in dataclasses.fields(kind)]


def printed(*arguments: str) -> str:
    result = CliRunner().invoke(root, [*arguments])
    assert result.exit_code == 0
    return result.output


def flags_of(text: str) -> list[str]:
    return [line.split()[0].rstrip(",") for line in text.splitlines() if line.startswith("  -")]


def test_help_shows_the_common_flags_and_the_way_to_the_others() -> None:
    flags = flags_of(printed("train", "--help"))
    assert len(flags) == len(COMMON) + 1
    assert {"--text", "--model", "--epochs", "--help-all"} <= set(flags)
    assert "--beta1" not in flags
    assert "--quoting" not in flags


def test_help_all_shows_every_setting_under_its_section() -> None:
    text = printed("train", "--help-all")
    assert {flag for flag in FLAGS if flag} <= set(flags_of(text))
    assert text.index("Data:") < text.index("--quoting") < text.index("Model:") < text.index("Training:")
    assert text.index("Training:") < text.index("--schedule") < text.index("Evaluation:")


def test_all_commands_fit_eighty_columns() -> None:
    assert max(len(line) for line in printed("train", "--help-all").splitlines()) <= 80


@pytest.mark.parametrize("name", ["--epochs", "--lr", "--batch-size"])
def test_a_default_that_the_recipe_replaces_is_not_shown(name: str) -> None:
    text = " ".join(printed("train", "--help").split())
    assert "[chosen from the rows]" in text[text.index(f"{name} ") :].split(" --", 2)[0]


def test_the_recipe_chooses_what_help_says() -> None:
    assert set(chosen_settings(100, Task("binary", ("a", "b")), 384)) == CHOSEN_BY_RECIPE
