"""Leaves out or merges labels with too few rows to be learnt or measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from whet.config import DataConfig
from whet.data.columns import label_columns
from whet.data.label_reader import LEFT_OUT, LabelReader
from whet.data.labels import check_classes
from whet.data.readers.raw_table import RawSplit
from whet.errors import UsageError, shortened_list
from whet.task import Task
from whet.utils.text import neutral

FEWEST = 3
"""Rows that a label needs for training, validation and test; the limit of `--rare` alone."""


def without_rare(reader: LabelReader, train: RawSplit, config: DataConfig) -> tuple[LabelReader, str]:
    """Return the reader with rare labels left out or merged, and a line about it."""
    if not (config.min_rows or config.rare) or not reader.task.labels:
        return reader, ""
    fewest = config.min_rows or FEWEST
    counts = label_counts(reader, train)
    rare = {label: count for label, count in counts.items() if count < fewest}
    kept = [label for label in reader.task.labels if label not in rare]
    if rare and config.rare is not None and config.rare not in kept:
        rare.pop(config.rare, None)  # it exists already and has few rows itself
        kept.append(config.rare)
    names = tuple(kept)
    task = Task(_kind(reader.task.kind, names), names)
    check_classes(task, train, reader.column, config)
    if not rare:
        return reader, ""
    target = LEFT_OUT if config.rare is None else names.index(config.rare)
    places = {label: names.index(label) if label in names else target for label in reader.task.labels}
    said = _said(rare, len(counts), config, fewest)
    return dataclasses.replace(reader, task=task, places=places, rare=rare), said


def label_counts(reader: LabelReader, split: RawSplit) -> dict[str, int]:
    """Return the rows of each label of the task."""
    totals = np.zeros(len(reader.task.labels), np.int64)
    before = 0
    for batch in split.read(label_columns(split, reader.column)):
        totals += _totals(reader.read(split, "train", batch, before), len(totals))
        before += batch.num_rows
    return {label: int(count) for label, count in zip(reader.task.labels, totals, strict=True)}


def _totals(labels: Any, outputs: int) -> Any:
    import pyarrow as pa

    present = labels.drop_null()
    if pa.types.is_list(labels.type):
        return present.flatten().to_numpy().reshape(-1, outputs).sum(axis=0).astype(np.int64)
    return np.bincount(present.to_numpy(), minlength=outputs)


def _kind(kind: str, names: tuple[str, ...]) -> str:
    return kind if kind == "multilabel" else "binary" if len(names) == 2 else "multiclass"


def _said(rare: Mapping[str, int], total: int, config: DataConfig, fewest: int) -> str:
    listed = shortened_list([f"{neutral(label)!r} ({count:,})" for label, count in rare.items()], 20, quoted=False)
    done = "left out" if config.rare is None else f"merged into {neutral(config.rare)!r}"
    many = f"{len(rare):,} of {total:,}"
    return f"Labels with fewer than {fewest} training rows, {many}, are {done} (--min-rows --rare): {listed}."


def for_known_labels(reader: LabelReader, config: DataConfig) -> LabelReader:
    """Return the reader for a trained model, which treats unknown labels as merged ones."""
    if config.min_rows:
        raise UsageError(f"min_rows is {config.min_rows}, and the model's labels are settled.", "Leave --min-rows out.")
    if config.rare is None or reader.switches:
        return reader
    if config.rare not in reader.task.labels:
        raise UsageError(f"rare is {config.rare!r}, which the model has no label of.", "Leave --rare out.")
    return dataclasses.replace(reader, others=reader.task.labels.index(config.rare))
