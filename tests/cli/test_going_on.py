"""A refusal ends with the command that goes on, and the run that follows lists what it left out."""

from __future__ import annotations

import csv
import json
import shlex
from pathlib import Path

import pytest

from tests.data_files import as_csv, labelled, text, write
from whet.cli import main
from whet.cli.going_on import command_to_go_on
from whet.tools.selftest.tiny_run import train_arguments

ROWS = labelled(40)


@pytest.mark.parametrize(
    ("given", "flags", "expected"),
    [
        ("check a.csv", ("--drop", "leak"), "whet check a.csv --drop leak"),
        (
            "train a.csv --drop empty --lr 1e-4",
            ("--drop", "empty,leak"),
            "whet train a.csv --lr 1e-4 --drop empty,leak",
        ),
        ("train --drop=empty 'my file.csv'", ("--drop", "leak"), "whet train 'my file.csv' --drop leak"),
        ("predict run a.csv --drop-empty -o b.csv", ("--drop-empty",), "whet predict run a.csv -o b.csv --drop-empty"),
        ("predict run a.csv", ("--drop", "leak"), ""),
        ("nothing", ("--drop", "leak"), ""),
        ("", ("--drop", "leak"), ""),
    ],
)
def test_the_command_is_the_one_that_was_given(given: str, flags: tuple[str, ...], expected: str) -> None:
    assert command_to_go_on(shlex.split(given), flags) == expected


def test_following_it_leads_to_data_that_checks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "rows" / "train.csv", as_csv([*ROWS, ("", "bad"), (text(50), "")]))
    write(tmp_path / "rows" / "test.csv", as_csv([(text(60), "bad"), (text(61), "good"), ROWS[0]]))
    assert main(["check", str(tmp_path / "rows"), "--drop", "conflict"]) == 2
    last = capsys.readouterr().err.splitlines()[-1].strip()
    command = shlex.split(last.removeprefix("Go on: whet "))
    assert command == ["check", str(tmp_path / "rows"), "--drop", "conflict,empty,unlabelled,leak"]
    assert main(command) == 0


def test_a_run_lists_the_rows_that_it_left_out(
    tmp_path: Path, tiny_model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "rows.csv", as_csv([*ROWS, ("", "bad"), ROWS[3], (f"{text(50)} cafÃ©", "bad")]))
    config = write(tmp_path / "settings.toml", '[data]\ndrop = ["duplicate", "empty"]\nrepair = ["text"]\nfolds = 0\n')
    run = tmp_path / "run"
    assert main([*train_arguments(source, tiny_model_folder, run, max_steps=1), "--config", str(config)]) == 0
    origin = json.loads((run / "data.json").read_text())["origin"]
    assert origin["dropped"] == {"train": {r: {"rows": 1, "first": [n]} for r, n in [("empty", 41), ("duplicate", 42)]}}
    assert origin["repaired"] == {"train": {"rows": 1, "first": [43]}}
    with open(run / "dropped.csv", newline="") as file:
        listed = [(row["file"], row["row_in_file"], row["rule"]) for row in csv.DictReader(file)]
    assert listed == [("rows.csv", "41", "empty"), ("rows.csv", "42", "duplicate")]

    new = write(tmp_path / "new.csv", as_csv([ROWS[0], ROWS[0], ROWS[1]]))
    capsys.readouterr()
    assert main(["evaluate", str(run), str(new), "--drop", "duplicate", "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["splits"]["test"]["rows"] == 2
    assert "Rows left out (--drop): test 1 duplicate." in told.err


@pytest.mark.parametrize("command", ["check", "train"])
def test_rules_that_leave_too_little_write_nothing_and_name_a_way_on(
    command: str, tmp_path: Path, tiny_model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "rows.csv", as_csv([*ROWS, ("", "odd"), ("", "odd"), ROWS[0]]))
    flags = ["--write", str(tmp_path / "clean.csv")]
    if command == "train":
        flags = train_arguments(source, tiny_model_folder, tmp_path / "run")[2:]
    assert main([command, str(source), *flags, "--drop", "empty,duplicate"]) == 2
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "whet: rows.csv: --drop empty leaves no training row of 'odd'."
    assert told[-1].startswith(f"      Go on: whet {command} ")
    assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"]
    assert main(shlex.split(told[-1].strip().removeprefix("Go on: whet "))) == 0
    assert [*tmp_path.glob("clean.csv"), *tmp_path.glob("run")]
