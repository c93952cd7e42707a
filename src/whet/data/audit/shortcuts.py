"""Finds shortcuts to the label: another column of the source, or a word of the text."""

from __future__ import annotations

from typing import Any

from whet.data.columns import Columns, column_kind, first_rows, label_columns
from whet.data.label_reader import LabelReader
from whet.data.readers.raw_table import RawSplit
from whet.task import Task

MIN_ROWS = 20


def shortcut_columns(split: RawSplit, columns: Columns, reader: LabelReader) -> list[str]:
    """Return columns that the model does not read but whose value determines the label, in the first rows."""
    used = {*columns.texts, *label_columns(split, reader.column)}
    others = [name for name in split.columns if name not in used and _countable(split, name)]
    if not others or reader.task.kind not in ("binary", "multiclass"):
        return []
    table = first_rows(split)
    labels = table.column(reader.column).to_pylist()
    return [name for name in others if _settles(table.column(name).to_pylist(), labels)]


def _countable(split: RawSplit, name: str) -> bool:
    return column_kind(split.schema.field(name).type) not in ("list", "other")


def _settles(values: list[Any], labels: list[Any]) -> bool:
    """Return whether each value has one label only, and few values cover many rows."""
    seen: dict[Any, Any] = {}
    for value, label in zip(values, labels, strict=True):
        if seen.setdefault(value, label) != label:
            return False
    return len(values) >= MIN_ROWS and len(set(seen.values())) > 1 and len(seen) <= len(values) // 5


def telling_words(texts: Any, labels: Any, task: Task) -> dict[str, str]:
    """Return label names that occur in nearly all texts of that label and in nearly no other: label to word."""
    import numpy as np
    import pyarrow.compute as pc

    found = {}
    for place, name in enumerate(task.labels[:100]):
        word = name.strip().casefold()
        own = labels == place
        if len(word) < 3 or own.sum() < MIN_ROWS:
            continue
        there = np.asarray(pc.match_substring(texts, word).to_numpy(zero_copy_only=False), bool)
        if there[own].mean() >= 0.9 and there[~own].mean() <= 0.1:
            found[name] = word
    return found


def telling_ends(texts: Any, labels: Any) -> list[str]:
    """Return `first` or `last` if the word at that end of the text determines the label, as in `spam: win a prize`."""
    import pyarrow.compute as pc

    patterns = {"first": r"^(?P<word>\S+).*$", "last": r"^.*?(?P<word>\S+)$"}
    if len(labels) < MIN_ROWS:
        return []
    found = []
    for end, pattern in patterns.items():
        words = pc.struct_field(pc.extract_regex(texts, pattern), "word").to_pylist()
        if _settles(words, labels.tolist()):
            found.append(end)
    return found
