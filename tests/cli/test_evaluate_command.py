"""`whet evaluate` compares labels by name, and says which rows it left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.data_files import as_csv, text, write
from whet.cli import main

TOPICS = ("sport", "food", "money", "travel")
ROWS = [
    {"text": text(n), **{topic: int((n + place) % 3 == 0) for place, topic in enumerate(TOPICS)}} for n in range(24)
]


@pytest.fixture(scope="module")
def model(tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    from whet.config import ModelConfig
    from whet.models.pretrained import load_model, load_tokenizer, save_model
    from whet.task import Task

    folder = tmp_path_factory.mktemp("topics")
    loaded = load_model(str(tiny_model_folder), Task("multilabel", TOPICS), ModelConfig(), seed=0)
    save_model(loaded.model, load_tokenizer(str(tiny_model_folder), ModelConfig()), folder)
    return str(folder)


def table(path: Path, names: tuple[str, ...]) -> str:
    return str(write(path, as_csv([[row[name] for name in names] for row in ROWS], header=names)))


def scores(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["evaluate", *arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)["splits"]["test"]
    return found


def test_the_order_of_label_columns_changes_no_score(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = table(tmp_path / "a.csv", ("text", *TOPICS))
    other = table(tmp_path / "b.csv", ("food", "travel", "text", "money", "sport"))
    expected = scores(capsys, model, one, "--label", "sport,food,money,travel")["metrics"]
    assert scores(capsys, model, one, "--label", "travel,food,money,sport")["metrics"] == expected
    assert scores(capsys, model, other)["metrics"] == expected


def test_a_missing_label_column_is_named_in_one_line(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = table(tmp_path / "a.csv", ("text", *TOPICS))
    assert main(["evaluate", model, path, "--label", "sport,food,money"]) == 2
    error = capsys.readouterr().err.splitlines()
    assert error[0] == "whet: a.csv: no column is named for the model's label 'travel'."
    assert error[1].strip() == "Use --label sport,food,money,travel"


def test_rows_with_none_of_the_labels_are_scored_and_unknown_ones_left_out(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = ["sport|food", "", "money", "chess|opera", "travel", "sport|chess"] * 3
    path = write(tmp_path / "a.csv", as_csv([(text(n), cell) for n, cell in enumerate(cells)]))
    found = scores(capsys, model, str(path))
    assert (found["rows"], found["unknown_labels"], found["unlabelled"]) == (12, 6, 0)
    assert main(["evaluate", model, str(path)]) == 0
    assert "left out: 6 rows with a label that is unknown to the model" in capsys.readouterr().out
