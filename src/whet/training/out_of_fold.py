"""Out-of-fold answers for the training rows of a run that had none: k short trainings, in the run's own folder."""

from __future__ import annotations

import dataclasses
from typing import Any

from whet.config import Config
from whet.data.cache import fingerprint
from whet.data.examples import Examples, load_examples
from whet.data.folds import FEW_ROWS, fold_numbers
from whet.errors import DataError, UsageError
from whet.runs.folder import RunFolder
from whet.runs.label_errors import MADE_NOW
from whet.training.recipe import whole_below
from whet.training.recorder import EventHandler
from whet.training.run import ignore, train_run
from whet.utils.text import Echo

MAX_EPOCHS = 3.0
"""Of a thousand rows or more: the folds together cost several trainings. Fewer rows need the epochs of the run."""


def measure_out_of_fold(folder: RunFolder, echo: Echo = ignore, on_event: EventHandler = ignore) -> RunFolder:
    """The folds of the run's training rows, trained to their end. Called again, it goes on where it was interrupted."""
    config = folder.config
    examples = _training_rows(folder, config)
    numbers, count = fold_numbers(examples, "auto", config.data.split_seed)
    echo(f"Each of {len(numbers):,} training rows is judged by a model that did not learn from it: {count} folds.")
    path = folder.path / MADE_NOW
    return train_run(
        examples, _short(config, len(numbers), count, str(path)), measure_only=True, echo=echo, on_event=on_event
    )


def _training_rows(folder: RunFolder, config: Config) -> Examples:
    """The rows that the run was trained on, read again from its source and proven to be the same."""
    source = config.data.source
    if source in ("", "-"):
        raise UsageError(
            f"The rows of {str(folder.path)!r} did not come from a file, and cannot be read again.",
            "Train with --folds 5: such a run keeps what its folds held out.",
        )
    examples = load_examples(source, config.data, whole_below=whole_below(config))
    if examples.fingerprint != folder.data.get("fingerprint"):
        raise DataError(
            f"{source!r} does not hold the rows that {str(folder.path)!r} was trained on.",
            "Put them back, or train again and look for label errors in the new run.",
        )
    return dataclasses.replace(
        examples,
        rows={"train": examples.rows["train"]},
        fingerprint=fingerprint(examples.fingerprint, "training rows alone"),
        messages=(),
    )


def _short(config: Config, rows: int, folds: int, path: str) -> Config:
    """The settings of the run, for folds that are measured once at their end."""
    changes: dict[str, Any] = {
        "folds": folds,
        "validation": None,
        "test": None,
        "seeds": 1,
        "shard": False,
        "patience": None,
        "evaluations": 1,
        "eval_every": None,
        "probe_rows": 0,
        "run": path,
        "report_to": (),
        "max_minutes": None,
    }
    if rows >= FEW_ROWS:
        changes["epochs"] = min(config.train.epochs, MAX_EPOCHS)
    return config.replaced(changes)
