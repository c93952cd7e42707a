"""The rows that a tuning writes mean what they meant in the source, for every task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.data_files import write
from whet.config import make_config
from whet.data.examples import load_examples
from whet.experiments.folder import TuningFolder, data_settings, prepared

SOURCES: dict[str, list[str]] = {
    "binary": ["text,other,label", *(f"word {n} a,word {n} b,{'yes' if n % 2 else 'no'}" for n in range(60))],
    "multiclass": ["text,label", *(f"word {n},{n % 3}" for n in range(60))],
    "multilabel": ["text,label", *(f"word {n},{('a', 'b', 'a|b')[n % 3]}" for n in range(60))],
    "regression": ["text,label", *(f"word {n},{n / 7:.3f}" for n in range(60))],
}


@pytest.mark.parametrize("task", SOURCES)
def test_written_rows_are_read_as_they_were(task: str, tmp_path: Path) -> None:
    source = write(tmp_path / "rows.csv", "\n".join(SOURCES[task]) + "\n")
    pair: dict[str, Any] = {"pair": "other"} if task == "binary" else {}
    delimiter: dict[str, Any] = {"label_delimiter": "|"} if task == "multilabel" else {}
    config = make_config({"folds": 0, "task": task, "label": "label", **pair, **delimiter})
    examples = load_examples(str(source), config.data)
    folder = TuningFolder(tmp_path / "tuning")
    with prepared(folder, {}, examples, 1):
        pass
    settings = data_settings(folder, examples, config.data)
    again = load_examples(str(folder.rows), settings)
    assert again.task == examples.task
    assert again.columns == examples.columns
    for split in ("train", "validation"):
        for column in ("text", "pair", "label"):
            assert again.rows[split].column(column) == examples.rows[split].column(column)
    held_out = load_examples(str(folder.held_out), settings, labelled=False, task=examples.task).rows["test"]
    assert held_out.column("label") == examples.rows["test"].column("label")
    assert held_out.column("text") == examples.rows["test"].column("text")
