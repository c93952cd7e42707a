"""Odd but real layouts: each checks without a flag, or with the one command that its refusal ends with."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.data_files import load
from whet.cli import main

LAYOUTS = Path(__file__).parents[1] / "layouts"
FIRST = "After one wash the shirt had lost its colour."
EXPECTED: dict[str, dict[str, Any]] = {
    "bare_commas.csv": {
        "labels": ("neg", "pos"),
        "first": ("After one wash, the shirt had lost its colour.", "neg"),
        "flags": {"quoting": "loose"},
    },
    "exported_report.csv": {"labels": ("neg", "pos"), "first": (FIRST, "neg")},
    "numbered_pipes.txt": {"labels": ("neg", "pos"), "first": (FIRST, "neg")},
    "rows_by_name.json": {"labels": ("neg", "pos"), "first": (FIRST, "neg")},
    "two_tables.sqlite": {"labels": ("neg", "pos"), "first": (FIRST, "neg"), "flags": {"sheet": "tickets"}},
    "SMSCollection": {"labels": ("ham", "spam"), "first": (FIRST, "spam")},
    "classes": {
        "labels": ("complaint", "praise"),
        "first": ("The soup was cold and the waiter never came back.", None),
    },
    "feelings": {"labels": ("anger", "joy"), "first": (FIRST.lower(), "anger"), "rows": (28, 6, 6)},
    "grammar.tsv": {"labels": ("0", "1"), "first": (FIRST, "0")},
    "helpdesk.sqlite": {"labels": ("complaint", "praise"), "first": (FIRST, "complaint")},
    "intents.json": {"labels": ("complaint", "praise"), "first": (FIRST, "complaint"), "rows": (28, 6, 6)},
    "news_classes.csv": {"labels": ("1", "2"), "first": (FIRST, "2"), "flags": {"text": "column_3"}},
    "newsgroups": {"labels": ("rec.praise", "talk.complaints"), "rows": (14,)},
    "pandas_index.csv": {"labels": ("neg", "pos"), "first": (FIRST, "neg")},
    "polarity": {"labels": ("neg", "pos"), "first": ("The soup was cold and the waiter never came back.", "neg")},
    "posts.jsonl": {"labels": ("keep", "remove"), "first": (FIRST, "remove")},
    "questions.label": {"first": ("How far is it from Oslo to Bergen ?", "NUM:dist"), "rows": (27,)},
    "reviews.ft.txt": {"labels": ("1", "2"), "first": (FIRST, "1")},
    "semicolons.csv": {"labels": ("Lob", "Tadel"), "first": (FIRST, "Tadel"), "flags": {"label": "Urteil"}},
    "server_rows.json": {"labels": ("0", "1"), "first": (FIRST, "0")},
    "shop_labelled.txt": {"labels": ("0", "1"), "first": (f"{FIRST}  ", "0")},
    "spam.csv": {"labels": ("ham", "spam"), "first": (FIRST, "spam"), "flags": {"encoding": "cp1252"}},
    "tagged.txt": {"labels": ("culture", "food", "goods", "neg", "pos", "travel")},
    "tweets140.csv": {"labels": ("0", "4"), "first": (FIRST, "0"), "flags": {"text": "column_6"}},
}


def test_every_layout_is_expected() -> None:
    assert sorted(path.name for path in LAYOUTS.iterdir()) == sorted(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_layout_is_understood(name: str) -> None:
    expected = EXPECTED[name]
    examples = load(LAYOUTS / name, validation_share=0, test_share=0, **expected.get("flags", {}))
    assert tuple(map(len, examples.rows.values())) == expected.get("rows", (40,))
    assert examples.task.labels == expected.get("labels", examples.task.labels)
    if "first" in expected:
        row = examples.rows["train"].row(0)
        words, label = expected["first"]
        assert row["text"] == words
        assert label in (None, examples.task.labels[row["label"]])


@pytest.mark.parametrize("name", EXPECTED)
def test_one_suggested_command_is_enough(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["check", str(LAYOUTS / name)])
    said = capsys.readouterr().err.splitlines()
    assert bool(code) == ("flags" in EXPECTED[name]), said
    if code:
        command = said[-1].strip().removeprefix("Go on: whet ")
        assert main(shlex.split(command)) == 0, command
