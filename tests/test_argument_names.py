"""Errors name arguments in Python and flags on the command line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import whet
from tests.cli.test_hints import SOURCE, flags_in
from tests.data_files import as_csv, labelled, write
from whet.argument_names import in_python
from whet.cli import main
from whet.config import SETTINGS, SHORT_NAMES
from whet.errors import UsageError


@pytest.mark.parametrize(
    "flags, arguments",
    [
        ("Try --epochs 5, or --drop-empty.", "Try epochs=5, or drop_empty=True."),
        ("a tenth of the rate (--lr)", "a tenth of the rate (learning_rate)"),
        ("Use --task multiclass or --task regression.", "Use task='multiclass' or task='regression'."),
        ("Raise --max-field-mb if that is right.", "Raise max_field_mb if that is right."),
        ("left out (--min-rows --rare): 'a'", "left out (min_rows, rare): 'a'"),
        ("Use --label sport,food or --label-delimiter '|'.", "Use label='sport,food' or label_delimiter='|'."),
        ("for pairs --text title --pair description", "for pairs text='title', pair='description'"),
        ("another --run, or --accept-changes to go on", "another run, or accept_changes=True to go on"),
        ("leave rare labels out (--min-rows N)", "leave rare labels out (min_rows=N)"),
        ("`whet cache --clear`, --restarts 3, a--epochs", "`whet cache --clear`, --restarts 3, a--epochs"),
    ],
)
def test_flags_become_arguments(flags: str, arguments: str) -> None:
    assert in_python(flags) == arguments
    assert in_python(arguments) == arguments


def test_no_flag_of_a_setting_stays_in_any_message() -> None:
    settings = {f"--{name.replace('_', '-')}" for name in (*SHORT_NAMES, *SETTINGS)}
    for path in SOURCE.rglob("*.py"):
        for flag in flags_in(path) & settings:
            assert not re.match("--", in_python(flag)), flag


def test_the_same_mistake_is_told_in_the_words_of_each_door(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.csv", as_csv([*labelled(20), ("", "bad")]))
    with pytest.raises(UsageError) as caught:
        whet.fit(path)
    assert "leave them out with drop_empty=True." in str(caught.value)
    assert main(["train", str(path)]) == 2
    assert "leave them out with --drop-empty." in capsys.readouterr().err
