"""--drop and --repair: leaves out rows by rules, and repairs texts.

Duplicates, conflicts and leaks are those that the audit counts, so the remaining rows have none.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.config import DataConfig
from whet.data.audit.columns import SplitColumns, load_columns
from whet.data.audit.duplicates import find_duplicates
from whet.data.columns import Columns
from whet.data.example_files import SplitRows
from whet.data.label_reader import LabelReader
from whet.data.rare_labels import label_counts
from whet.data.readers.raw_table import RawSplit
from whet.data.split_writer import SplitWriter
from whet.errors import DataError
from whet.task import Task
from whet.utils.text import neutral

LISTED = "dropped.csv"
MAX_LISTED = 100
"""Row numbers per rule in data.json; the file lists all of them."""
Splits = dict[str, SplitColumns]
Places = Mapping[str, Any]
"""By split: row numbers in it, sorted."""


@dataclass(frozen=True)
class Cleaning:
    """The rows left out and repaired, by their numbers in the source."""

    dropped: dict[str, dict[str, Any]]
    """By split, then by rule."""
    repaired: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers for `origin`: how many rows, and the first of them."""
        return {
            "dropped": {
                split: {rule: _counted(rows) for rule, rows in rules.items()} for split, rules in self.dropped.items()
            },
            "repaired": {split: _counted(rows) for split, rows in self.repaired.items() if len(rows)},
        }

    def write(self, path: Path, raw: Mapping[str, RawSplit]) -> None:
        """Write one line per row left out: its numbers in the split and in its file, and the rule."""
        with open(path, "w", newline="", encoding="utf-8", errors="replace") as file:
            writer = csv.writer(file)
            writer.writerow(["split", "row", "file", "row_in_file", "rule"])
            for split, rules in self.dropped.items():
                for row, rule in sorted((int(row), rule) for rule, rows in rules.items() for row in rows):
                    name, own = raw[split].where(row)
                    writer.writerow([split, row, neutral(name), own, rule])


def _counted(rows: Any) -> dict[str, Any]:
    return {"rows": len(rows), "first": [int(row) for row in rows[:MAX_LISTED]]}


def summary_lines(origin: Mapping[str, Any]) -> list[str]:
    """Return one line each about rows left out and repaired."""
    said = [f"Rows left out (--drop): {counted_by_rule(origin['dropped'])}."] if origin["dropped"] else []
    if origin["repaired"]:
        counts = ", ".join(f"{neutral(split)} {found['rows']:,}" for split, found in origin["repaired"].items())
        said.append(f"Texts mended (--repair): {counts}.")
    return said


def counted_by_rule(dropped: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """`train 12 leak, 3 duplicate; test 1 empty`."""
    counts = {split: [f"{found['rows']:,} {rule}" for rule, found in rules.items()] for split, rules in dropped.items()}
    return "; ".join(f"{neutral(split)} {', '.join(parts)}" for split, parts in counts.items())


def without_dropped(
    raw: Mapping[str, RawSplit],
    columns: Columns,
    reader: LabelReader | None,
    config: DataConfig,
    scratch: Path,
    *,
    for_training: bool,
) -> tuple[dict[str, RawSplit], Cleaning]:
    """Return the splits without the rows that the rules leave out, and a summary.

    Rows without a label are left out where training would use them. Elsewhere they are only not scored.
    """
    import numpy as np

    rules = [rule for rule in config.drops if rule != "empty" and (for_training or rule != "unlabelled")]
    task = reader.task if reader is not None else Task("unlabelled", ())
    splits: Splits = {}
    dropped: dict[str, dict[str, Any]] = {}
    repaired: dict[str, Any] = {}
    for name, split in raw.items():
        writer = SplitWriter(scratch / f"{len(splits)}.rows", name, columns, config)
        writer.write_all(split, reader)
        repaired[name] = np.array(sorted(writer.repaired), np.int64)
        if writer.empty and "empty" in config.drops:
            dropped[name] = {"empty": np.array(writer.empty, np.int64)}
        if not writer.rows:
            raise _nothing_left(split, name, dropped.get(name, {}), config)
        splits[name] = load_columns(name, SplitRows.open(writer.path), task)
    for name, found in _follow(splits, task, rules).items():
        dropped.setdefault(name, {}).update(found)
    left = {}
    for name, split in raw.items():
        gone = np.concatenate([np.zeros(0, np.int64), *dropped.get(name, {}).values()])
        kept = np.setdiff1d(split.numbers(0, split.rows), gone, assume_unique=True)
        if not len(kept):
            raise _nothing_left(split, name, dropped[name], config)
        left[name] = split.only(kept) if len(gone) else split
    if for_training and reader is not None:
        _refuse_lost_labels(raw["train"], left["train"], splits["train"], dropped.get("train", {}), reader, config)
    return left, Cleaning({name: dropped[name] for name in raw if dropped.get(name)}, repaired)


def _follow(splits: Splits, task: Task, rules: list[str]) -> dict[str, dict[str, Any]]:
    """Return the rows to leave out by split and rule, repeated until no rule finds another."""
    import numpy as np

    left, found = dict(splits), {}  # type: ignore[var-annotated]
    rows = 0
    while rows != (rows := sum(map(len, left.values()))):
        for rule in rules:
            for name, places in RULES[rule](left, task).items():
                if len(places):
                    found.setdefault(name, {}).setdefault(rule, []).append(left[name].rows[places])
                    left[name] = left[name].only(~np.isin(np.arange(len(left[name])), places))
    return {
        name: {rule: np.sort(np.concatenate(parts)).astype(np.int64) for rule, parts in own.items()}
        for name, own in found.items()
    }


def _unlabelled(splits: Splits, task: Task) -> Places:
    """Return rows without a label; test rows stay, because they are predicted and not scored."""
    import numpy as np

    return {name: np.flatnonzero(~split.has_label) for name, split in splits.items() if name != "test"}


def _conflict(splits: Splits, task: Task) -> Places:
    """Return all rows of a text with different labels: no rule can tell which is right."""
    same = find_duplicates(dict(splits))
    return same.by_split(same.conflicts(task)[1])


def _leak(splits: Splits, task: Task) -> Places:
    """Return for a text in two splits the row nearer to training: training, then validation, never test."""
    import numpy as np

    same = find_duplicates(dict(splits))
    names = list(splits)
    later = {one: [same.rows_also_in(other, one) for other in range(one + 1, len(names))] for one in range(len(names))}
    return {names[one]: np.unique(np.concatenate(found)) for one, found in later.items() if found}


def _duplicate(splits: Splits, task: Task) -> Places:
    """Return rows whose text occurs earlier in the same split."""
    same = find_duplicates(dict(splits))
    return {name: same.repetitions(place) for place, name in enumerate(splits)}


def _near_duplicate(splits: Splits, task: Task) -> Places:
    """Return rows that nearly repeat an earlier remaining row of the same split."""
    from whet.data.audit.near_duplicates import NearPairs

    near, found = NearPairs.of(splits), {}
    for name in splits:
        gone: set[int] = set()
        for earlier, later in sorted(near.between(name, name).tolist()):
            if earlier not in gone:
                gone.add(later)
        found[name] = sorted(gone)
    return found


RULES: dict[str, Callable[[Splits, Task], Places]] = {
    "unlabelled": _unlabelled,
    "conflict": _conflict,
    "leak": _leak,
    "duplicate": _duplicate,
    "near-duplicate": _near_duplicate,
}
"""Rules by name; `empty` needs only the row's text."""


def _nothing_left(split: RawSplit, name: str, dropped: Mapping[str, Any], config: DataConfig) -> DataError:
    if not dropped:
        return split.error(f"no row of the {name} split has a text.", "Add rows.")
    go_on = _fewer(list(dropped), config)
    less = f", or leave out less: {' '.join(go_on)}" if go_on else ""
    return split.error(
        f"--drop {','.join(dropped)} leaves no row of the {name} split.", f"Add rows{less}.", go_on=go_on
    )


def _refuse_lost_labels(
    raw: RawSplit,
    left: RawSplit,
    read: SplitColumns,
    dropped: Mapping[str, Any],
    reader: LabelReader,
    config: DataConfig,
) -> None:
    """Raise if a label would lose all its training rows."""
    import numpy as np

    if not dropped or config.min_rows or config.rare or not reader.task.labels:
        return
    rows = label_counts(reader, left)
    lost = next((label for label, count in label_counts(reader, raw).items() if count and not rows[label]), None)
    if lost is None:
        return
    place = reader.task.labels.index(lost)
    own = read.labels == place if read.labels.ndim == 1 else read.labels[:, place] > 0
    rules = [rule for rule, numbers in dropped.items() if np.isin(read.rows[own], numbers).any()]
    less, named = _fewer(rules or ["empty"], config), ",".join(rules or ["empty"])
    if sum(count > 0 for count in rows.values()) < 2:  # without the label there would be nothing to tell apart
        raise raw.error(
            f"--drop {named} leaves no training row of {neutral(lost)!r}, and fewer than two labels.",
            f"Add rows, or leave {named} out of --drop.",
            go_on=less,
        )
    raise raw.error(
        f"--drop {named} leaves no training row of {neutral(lost)!r}.",
        f"Add rows, or leave out the label, too: --min-rows 2{', or less: ' + ' '.join(less) if less else ''}.",
        go_on=("--min-rows", "2"),
    )


def _fewer(rules: list[str], config: DataConfig) -> tuple[str, ...]:
    """Return the flag without these rules; nothing where the data would be refused without them."""
    others = [rule for rule in config.drops if rule not in rules]
    needed = {"empty", "unlabelled", "leak"} & set(rules)
    return ("--drop", ",".join(others)) if others and not needed and not config.drop_empty else ()
