"""The folder of a tuning: its rows, its trials as ordinary run folders, its journal and what came of it.

tuning/reviews-001/
    tuning.json        what was asked for
    rows/              train.jsonl and validation.jsonl: all that a trial sees
    held-out/          rows.jsonl: what no trial sees
    default/           the run of the recipe's own settings
    trial-001/ …       the other runs
    journal.log        the trials, for going on after a kill
    result.json, tuning.html
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from whet.config import Config, DataConfig, settings_that_change
from whet.data.example_files import SplitRows
from whet.data.examples import Examples
from whet.data.splits import TRAIN, assign
from whet.data.text_hashes import row_keys
from whet.errors import EnvironmentFault, UsageError
from whet.runs.folder import RunFolder, next_run_path, run_name
from whet.task import Task
from whet.utils.files import replacing

HELD_OUT_SHARE = 0.2
"""Share of the training rows, if there are no labelled test rows."""
ASKED, RESULT, PAGE, JOURNAL = "tuning.json", "result.json", "tuning.html", "journal.log"
DEFAULT = "default"
GIVEN, DRAWN = "test", "drawn"
"""Origin of the held-out rows: the source's own test rows, or drawn from all rows."""


@dataclass(frozen=True)
class TuningFolder:
    """One tuning on disk."""

    path: Path

    @property
    def rows(self) -> Path:
        return self.path / "rows"

    @property
    def held_out(self) -> Path:
        return self.path / "held-out" / "rows.jsonl"

    @property
    def files(self) -> RunFolder:
        """The same folder, for atomic reads and writes and for its lock."""
        return RunFolder(self.path)

    def run(self, number: int) -> Path:
        """Return the run folder of a trial; the first one is the default."""
        return self.path / (f"trial-{number:03d}" if number else DEFAULT)

    @property
    def asked(self) -> dict[str, Any]:
        return self.files.read_json(ASKED)

    @property
    def result(self) -> dict[str, Any]:
        """The result; empty before the end."""
        return self.files.read_json(RESULT)


def what_was_asked(config: Config, models: tuple[str, ...], examples: Examples) -> dict[str, Any]:
    """Return the requested settings, which identify a tuning."""
    free = settings_that_change("nothing")
    settings = {name: value for name, value in config.flat().items() if name not in free}
    asked = {"settings": settings, "models": models, "data": examples.fingerprint}
    return dict(json.loads(json.dumps(asked)))


def find_folder(root: Path, config: Config, asked: dict[str, Any]) -> tuple[TuningFolder, bool]:
    """Return the folder of this tuning, and whether it was started already."""
    if config.run.run is not None:
        path = Path(config.run.run)
        folder = TuningFolder(path)
        if (path / ASKED).is_file():
            _refuse_other(folder, asked)
            return folder, True
        if path.is_symlink() or (path.exists() and (not path.is_dir() or any(path.iterdir()))):
            raise EnvironmentFault(
                f"{str(path)!r} holds something else.", "Choose another one with --run; nothing was touched."
            )
        return folder, False
    name = run_name(config.data.source)
    following = next_run_path(root, name)
    number = int(following.name.rpartition("-")[2]) - 1
    newest = TuningFolder(root / f"{name}-{number:03d}")
    before = newest.asked
    if number and not newest.result and {key: before.get(key) for key in asked} == asked:
        return newest, True
    return TuningFolder(following), False


def _refuse_other(folder: TuningFolder, asked: dict[str, Any]) -> None:
    before = folder.asked
    old, new = before.get("settings", {}), asked["settings"]
    changed = [f"{name} was {old.get(name)}, is {new[name]}" for name in new if old.get(name) != new[name]]
    if before.get("models") != asked["models"]:
        changed.append(f"models was {before.get('models')}, is {asked['models']}")
    if before.get("data") != asked["data"]:
        changed.append("the data has changed")
    if changed:
        raise UsageError(
            f"The tuning {str(folder.path)!r} was started with other settings: {'; '.join(changed)}.",
            "Choose another --run.",
        )


@contextmanager
def prepared(folder: TuningFolder, asked: dict[str, Any], examples: Examples, seed: int) -> Iterator[TuningFolder]:
    """Return the folder with its rows under a temporary name, which is renamed after all checks."""
    try:
        with replacing(folder.path) as scratch:
            scratch.mkdir(parents=True)
            made = TuningFolder(scratch)
            train, held_out, source = _held_out(examples, seed)
            _write_rows(made.rows / "train.jsonl", train, examples)
            _write_rows(made.rows / "validation.jsonl", examples.rows["validation"], examples)
            _write_rows(made.held_out, held_out, examples)
            made.files.write_json(ASKED, {**asked, "held_out": source, "held_out_rows": len(held_out)})
            yield made
            if folder.path.is_dir():
                folder.path.rmdir()  # an empty one created for it
    except OSError as error:
        raise EnvironmentFault(
            f"Cannot write to {str(folder.path)!r}: {error.strerror or error}.",
            "Choose another folder with --run, or make room and permissions there.",
        ) from None
    finally:
        with contextlib.suppress(OSError):
            folder.path.parent.rmdir()  # created for it, and empty


def data_settings(folder: TuningFolder, examples: Examples, given: DataConfig) -> DataConfig:
    """Return settings for reading the folder's rows, without any automatic choice."""
    names = _names(examples)
    return DataConfig(
        source=str(folder.rows),
        text=names["text"],
        pair=names.get("pair"),
        label=names["label"],
        task=examples.task.kind,  # type: ignore[arg-type]
        folds=0,
        allow=given.allow,
        max_field_mb=given.max_field_mb,
        split_seed=given.split_seed,
    )


def _held_out(examples: Examples, seed: int) -> tuple[SplitRows, SplitRows, str]:
    """Return training rows, held-out rows, and the origin of those: labelled test rows, or a share of the training."""
    train, test = examples.rows["train"], examples.rows.get("test")
    if test is not None:
        labelled = np.flatnonzero([label is not None for label in test.column("label")])
        if len(labelled):
            drawn = examples.origin["splits"].get("test") == "made"
            return train, test.taken(labelled), DRAWN if drawn else GIVEN
    pairs = train.table.column("pair").combine_chunks() if examples.pairs else None
    keys = row_keys(train.table.column("text").combine_chunks(), pairs)
    labels = np.asarray(train.column("label"))
    sides = assign(keys, labels, examples.task, validation_share=0.0, test_share=HELD_OUT_SHARE, seed=seed)
    return train.taken(np.flatnonzero(sides == TRAIN)), train.taken(np.flatnonzero(sides != TRAIN)), DRAWN


def _names(examples: Examples) -> dict[str, str]:
    """Keep the columns' names, so that the shipped model finds them in new files."""
    columns = examples.columns
    found = {"text": columns.text, "label": str(columns.label), **({"pair": columns.pair} if columns.pair else {})}
    simple = len(set(found.values())) == len(found) and not any(
        mark in name for name in found.values() for mark in ",.*"
    )
    return found if simple else {name: name for name in found}


def _write_rows(path: Path, rows: SplitRows, examples: Examples) -> None:
    names = _names(examples)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        for batch in rows.table.select(list(names)).to_batches():
            for row in batch.to_pylist():
                row["label"] = _label(row["label"], examples.task)
                file.write(json.dumps({names[key]: value for key, value in row.items()}) + "\n")


def _label(value: Any, task: Task) -> Any:
    if task.kind == "regression":
        return value
    if task.kind == "multilabel":
        return [task.labels[place] for place, on in enumerate(value) if on]
    return task.labels[value]


def with_data(config: Config, data: DataConfig) -> Config:
    """Return these settings with the rows that a tuning has written."""
    return dataclasses.replace(config, data=data)
