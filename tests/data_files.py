"""Files and rows for the tests of whet.data."""

from __future__ import annotations

import csv
import io
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from whet.config import DataConfig
from whet.data.examples import Examples, load_examples

Rows = list[tuple[str, ...]]
WORDS = ["ash", "birch", "cedar", "elm", "fir", "hazel", "larch", "maple", "oak", "pine", "rowan", "spruce"]


def text(number: int) -> str:
    """A sentence that no other number has, and that is not almost another one."""
    picks = random.Random(number).sample(WORDS, 6)
    return " ".join(f"{word} {number}{place}" for place, word in enumerate(picks[:5])) + f" {picks[5]}"


def labelled(count: int = 40, labels: Sequence[str] = ("bad", "good")) -> Rows:
    return [(text(number), labels[number % len(labels)]) for number in range(count)]


def as_csv(rows: Iterable[Sequence[Any]], header: Sequence[str] = ("text", "label"), **options: Any) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n", **options)
    if header:
        writer.writerow(header)
    writer.writerows(rows)
    return out.getvalue()


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def load(source: Any, **settings: Any) -> Examples:
    return load_examples(source, DataConfig(**settings))


def everything(examples: Examples) -> Rows:
    """(text, label name) of all splits in the order of the source."""
    rows = [row for split in examples.splits.values() for row in split]
    names = examples.task.labels
    return [(row["text"], names[row["label"]]) for row in sorted(rows, key=lambda row: row["row"])]
