"""Reads lines that begin with their label: `NUM:date When was …`, `__label__good A text`, `__label__a __label__b A
text`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from whet.config import DataConfig
from whet.data.readers.raw_table import BATCH_ROWS, Part, RawSplit, Spill
from whet.data.readers.text_files import OverlongLine, mend_surrogates
from whet.errors import DataError

FASTTEXT = "__label__"
FLAG = "space"
"""The value of --delimiter for such a file."""
_FORMS = (re.compile(r"[A-Za-z]+:[A-Za-z_]+"), re.compile(r"[+-]?\d{1,2}"), re.compile(r"[A-Z][A-Z_-]+"))
"""Words that do not begin sentences line after line: `NUM:date`, `1`, `SPAM`."""
_LABEL = re.compile(rf"{FASTTEXT}(\S*)\s*")
FEWEST_LINES = 10


def begins_with_label(sample: Sequence[str]) -> bool:
    """Return whether the first word of every line is its label: one form, few different ones, each followed by a
    text."""
    split = [line.split(maxsplit=1) for line in sample if line.strip()]
    if len(split) < FEWEST_LINES or any(len(parts) < 2 for parts in split):
        return False
    first = [parts[0] for parts in split]
    if all(word.startswith(FASTTEXT) for word in first):
        return True
    return any(all(form.fullmatch(word) for word in first) for form in _FORMS) and _recur(first)


def may_begin_with_label(sample: Sequence[str]) -> bool:
    """Return the same for plain words, which may as well belong to the text."""
    split = [line.split(maxsplit=1) for line in sample if line.strip()]
    first = [parts[0] for parts in split if len(parts) == 2]
    return len(split) >= FEWEST_LINES and len(first) == len(split) and _recur(first)


def _recur(words: Sequence[str]) -> bool:
    counts = Counter(words)
    once = sum(count == 1 for count in counts.values())
    return 2 <= len(counts) <= max(2, len(words) // 2) and once <= len(counts) // 2


def read_label_lines(lines: Iterator[str], path: Path, config: DataConfig, scratch: Path) -> RawSplit:
    """Return the label in one column and the text in the other; a list of labels if a line has several."""
    import pyarrow as pa

    spill = Spill(scratch / f"{len(list(scratch.iterdir()))}.arrow")
    surrogates, several = 0, False
    waiting: list[tuple[list[str], str]] = []

    def flush() -> None:
        labels = pa.array([labels or None for labels, _ in waiting], pa.large_list(pa.large_string()))
        texts = pa.array([text for _, text in waiting], pa.large_string())
        spill.write(pa.record_batch([labels, texts], names=["label", "text"]))
        waiting.clear()

    try:
        for line in lines:
            if not line.strip():
                continue
            line, mended = mend_surrogates(line.rstrip("\r\n"))
            surrogates += mended
            waiting.append(_cut(line))
            several = several or len(waiting[-1][0]) > 1
            if len(waiting) >= BATCH_ROWS:
                flush()
        if waiting or not spill.rows:
            flush()
    except OverlongLine:
        message = f"a line is larger than {config.max_field_mb:g} MB."
        raise DataError(message, "Raise --max-field-mb if that is right.", file=path.name) from None
    finally:
        spill.close()
    split = _split(spill, path, surrogates)
    return split if several else _with_one_label(split)


def _cut(line: str) -> tuple[list[str], str]:
    """Split a line into labels and text."""
    rest, labels = line.strip(), []
    while found := _LABEL.match(rest):
        labels.append(found[1])
        rest = rest[found.end() :]
    if labels:
        return labels, rest
    word, *behind = rest.split(maxsplit=1)
    return [word], behind[0] if behind else ""


def _split(spill: Spill, path: Path, surrogates: int) -> RawSplit:
    note = f"a label and then a text in each line (--delimiter {FLAG}; none for one column)."
    part = Part(path.name, spill.rows, path.stat().st_size)
    return RawSplit(spill.schema, spill.read, (part,), notes=(note,), surrogates=surrogates)


def _with_one_label(split: RawSplit) -> RawSplit:
    """Return the lines with a single label instead of a list."""
    import pyarrow as pa
    import pyarrow.compute as pc

    def read(columns: Sequence[str] | None = None) -> Iterator[Any]:
        for batch in split.read(columns):
            if "label" in batch.schema.names:
                place = batch.schema.names.index("label")
                batch = batch.set_column(place, "label", pc.list_element(batch.column(place), 0))
            yield batch

    schema = pa.schema([("label", pa.large_string()), ("text", pa.large_string())])
    return replace(split, schema=schema, read=read)
