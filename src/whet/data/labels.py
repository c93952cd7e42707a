"""Finds the task that the labels define, the labels in their order, and how to read them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence

from whet.config import DataConfig
from whet.data.columns import Columns, label_columns, own_name
from whet.data.label_reader import Cut, LabelReader
from whet.data.label_values import (
    DECIMAL_COMMA,
    Survey,
    canonical_number,
    find_delimiter,
    is_number,
    is_truth,
    is_whole,
    split_cell,
    survey,
    written_list,
)
from whet.data.readers.raw_table import RawSplit
from whet.task import Task
from whet.utils.text import neutral

NEGATIONS = ("not", "non", "no", "un", "in", "dis", "il", "ir", "im")
MAX_WHOLE_NUMBERS = 100
MAX_CLASSES = 1000
MAX_GRADES = 11
"""Consecutive integers up to this many values may be grades: from 0 to 10."""


def understand_labels(splits: Mapping[str, RawSplit], columns: Columns, config: DataConfig) -> LabelReader:
    """Return the task that the training labels define, and a reader for them."""
    assert columns.label is not None
    train = splits["train"]
    names = label_columns(train, columns.label)
    if len(names) > 1:
        task = Task("multilabel", tuple(names))
        return LabelReader(task, columns.label, switches=tuple(names), note="one column per label")
    surveyed = survey(train, columns.label)
    declared = train.class_names.get(columns.label)
    if config.task == "regression":
        return LabelReader(Task("regression", ()), columns.label)
    if surveyed.kind == "other":
        raise train.error("the label column holds neither text, numbers nor lists.", column=columns.label)
    if surveyed.kind == "list" or config.label_delimiter or config.task == "multilabel":
        return _multilabel(train, surveyed, columns.label, config, declared)
    if declared is not None:
        return LabelReader(_classes_task(train, list(declared), columns.label, config), columns.label)
    return _from_values(train, surveyed, columns.label, config)


def labels_of_task(split: RawSplit, column: str, task: Task, config: DataConfig) -> LabelReader:
    """Return a reader of new data's labels for the task of a trained model."""
    numeric = bool(task.labels) and all(map(is_whole, task.labels))
    truth = bool(task.labels) and all(map(is_truth, task.labels))
    cut = None
    names = label_columns(split, column)
    if len(names) > 1:
        return LabelReader(task, column, switches=_columns_of_labels(split, names, task))
    if task.kind == "multilabel":
        surveyed = survey(split, column)
        if own_name(column, task.labels) and {canonical_number(value) for value in surveyed.values} <= {"0", "1"}:
            return LabelReader(task, column, switches=_columns_of_labels(split, names, task))
        if surveyed.kind == "text":
            cut = _cutter(
                surveyed.values, config.label_delimiter or _fitting_delimiter(surveyed.values, set(task.labels))
            )
    return LabelReader(task, column, numeric, truth, minus_one_is_missing="-1" not in task.labels, cut=cut)


def _fitting_delimiter(values: Sequence[str], known: set[str]) -> str | None:
    """Return the delimiter that splits the cells into the most labels of the model."""
    joined = [value for value in values if value not in known]
    fits = {d: sum(len(known & set(split_cell(value, d))) for value in joined if d in value) for d in "|;,"}
    best = max(fits, key=lambda delimiter: fits[delimiter])
    return best if fits[best] else None


def _columns_of_labels(split: RawSplit, names: Sequence[str], task: Task) -> tuple[str, ...]:
    """Return the 0/1 columns in the order of the model's labels, matched by name and never by position."""
    if task.kind != "multilabel":
        raise split.error(
            f"{len(names)} label columns are named, and the model gives one answer per row ({task.kind}).",
            "Name one column with --label.",
        )
    of = {own_name(name, task.labels): name for name in names}
    if unknown := [name for name in names if own_name(name, task.labels) is None]:
        hint = f"Its labels are {', '.join(map(neutral, task.labels))}; name their columns with --label."
        raise split.error(f"the model has no label {_quoted(unknown)}.", hint)
    if missing := [label for label in task.labels if label not in of]:
        hint = f"Use --label {shlex.quote(neutral(','.join(task.labels)))}"
        labels = "label" if len(missing) == 1 else "labels"
        raise split.error(f"no column is named for the model's {labels} {_quoted(missing)}.", hint)
    return tuple(of[label] for label in task.labels)


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(repr(neutral(name)) for name in names)


def _from_values(train: RawSplit, surveyed: Survey, column: str, config: DataConfig) -> LabelReader:
    """Return classes, numbers or cells with several labels, by their values."""
    values = surveyed.values
    asked = config.task in ("binary", "multiclass")
    if not values:
        raise train.error("no row has a label.", "Name another column with --label.", column=column)
    if all(map(is_number, values)):
        if all(map(is_whole, values)):
            return _whole_numbers(train, surveyed, column, config)
        if not asked:
            return LabelReader(Task("regression", ()), column, note="the labels have decimals")
    elif not asked:
        if all(is_number(v) or DECIMAL_COMMA.fullmatch(v.strip()) for v in values):
            raise train.error(
                f"the labels look like numbers with a decimal comma, such as {values[0]!r}.",
                "Write them with a point for regression, or use --task multiclass if they are names.",
                column=column,
            )
        several = _several_in_a_cell(train, surveyed, column, config)
        if several is not None:
            return several
    truth = all(map(is_truth, values))
    if truth:
        values = sorted({value.strip().casefold() for value in values})
    task = _classes_task(train, _ordered(values), column, config, surveyed)
    return LabelReader(task, column, truth=truth, minus_one_is_missing=not asked)


def _whole_numbers(train: RawSplit, surveyed: Survey, column: str, config: DataConfig) -> LabelReader:
    asked = config.task in ("binary", "multiclass")
    numbers = sorted({int(canonical_number(value)) for value in surveyed.values})
    if -1 in numbers and not asked and "unlabelled" in config.drops:
        numbers.remove(-1)
    if -1 in numbers and not asked:
        count = sum(count for value, count in surveyed.counts.items() if canonical_number(value) == "-1")
        if len(numbers) > 1:
            raise train.error(
                f"{count} training rows have the label -1, which means unlabelled.",
                "Leave them out with --drop unlabelled; if -1 is a class of its own, use --task "
                f"{'binary' if len(numbers) == 2 else 'multiclass'}.",
                column=column,
                go_on=config.dropping("unlabelled"),
            )
    if len(numbers) > MAX_WHOLE_NUMBERS and not asked:
        raise train.error(
            f"the label has {len(numbers)} different whole numbers: classes or a quantity?",
            "Use --task multiclass or --task regression.",
            column=column,
            go_on=("--task", "regression"),
        )
    task = _classes_task(train, [str(number) for number in numbers], column, config, surveyed)
    graded = not asked and 3 <= len(numbers) == numbers[-1] - numbers[0] + 1 <= MAX_GRADES
    note = "classes; --task regression if their order matters" if graded else ""
    return LabelReader(task, column, numeric=True, minus_one_is_missing=not asked, note=note)


def _several_in_a_cell(train: RawSplit, surveyed: Survey, column: str, config: DataConfig) -> LabelReader | None:
    values = surveyed.values
    if all(written_list(value) is not None for value in values):
        return _multilabel(train, surveyed, column, config, None)
    proven, doubtful = find_delimiter(values) if len(values) <= MAX_CLASSES else (None, None)
    if proven is not None:
        return _multilabel(train, surveyed, column, config, None, proven)
    if doubtful is not None:
        example = next(value for value in values if doubtful in value)
        raise train.error(
            f"the label {example!r} may be one label or several separated by {doubtful!r}.",
            f"Use --task multiclass, or --label-delimiter '{doubtful}'.",
            column=column,
            go_on=("--task", "multiclass"),
        )
    return None


def _multilabel(
    train: RawSplit,
    surveyed: Survey,
    column: str,
    config: DataConfig,
    declared: Sequence[str] | None,
    delimiter: str | None = None,
) -> LabelReader:
    if config.task not in ("auto", "multilabel"):
        raise train.error(
            f"the task is {config.task}, but the cells hold several labels.",
            "Use --task multilabel.",
            column=column,
        )
    delimiter = config.label_delimiter or delimiter
    note, cut = "", None
    if surveyed.kind == "list":
        cells = [json.loads(value) for value in surveyed.values]
    else:
        cut = _cutter(surveyed.values, delimiter)
        cells = [cut(value) for value in surveyed.values]
        note = f"several in a cell, separated by {delimiter!r}" if delimiter else "several in a cell"
    pieces = {piece for cell in cells for piece in cell if piece is not None and piece.strip()}
    if surveyed.many or len(pieces) > MAX_CLASSES:
        raise train.error(f"the lists hold {len(pieces)} different labels.", "Name another column.", column=column)
    if cut and any(len(cut(name)) > 1 for name in declared or ()):
        declared = None  # the categories are whole cells
    numeric = bool(pieces) and all(map(is_whole, pieces)) and declared is None
    names = list(declared) if declared else _ordered({canonical_number(p) if numeric else p for p in pieces})
    if len(names) < 2:
        raise train.error(f"there is only one label, {names[:1]}.", "Two or more are needed.", column=column)
    return LabelReader(
        Task("multilabel", tuple(names)), column, numeric, minus_one_is_missing=False, cut=cut, note=note
    )


def _cutter(values: Sequence[str], delimiter: str | None) -> Cut:
    if delimiter is not None:
        return lambda cell: split_cell(cell, delimiter)
    if values and all(written_list(value) is not None for value in values):
        return lambda cell: written_list(cell) or []
    return lambda cell: [cell]


def _classes_task(
    train: RawSplit, names: list[str], column: str, config: DataConfig, surveyed: Survey | None = None
) -> Task:
    task = Task("binary" if len(names) == 2 else "multiclass", tuple(names))
    if config.min_rows or config.rare:
        return task  # checked after the rare ones are gone
    check_classes(task, train, column, config)
    if surveyed is not None and (surveyed.many or len(names) > min(MAX_CLASSES, max(20, surveyed.rows // 2))):
        count = f"more than {len(names)}" if surveyed.many else str(len(names))
        raise train.error(
            f"the label has {count} different values in {surveyed.rows} rows.",
            "That is more than a classifier can learn; name another column with --label, or leave rare labels out "
            "(--min-rows 3) or merge them (--rare other).",
            column=column,
            go_on=("--rare", "other"),
        )
    return task


def check_classes(task: Task, train: RawSplit, column: str, config: DataConfig) -> None:
    """Refuse labels that are no classes, or too few or too many of them."""
    names = task.labels
    if config.task == "binary" and len(names) != 2:
        raise train.error(f"a binary task has 2 labels, and there are {len(names)}.", column=column)
    if len(names) < 2:
        what = f"every row has the label {names[0]!r}" if names else "no label has enough rows"
        raise train.error(f"{what}.", "A classifier needs two classes or more.", column=column)
    if len(names) > MAX_CLASSES:
        raise train.error(
            f"the label has {len(names):,} different values.",
            f"No more than {MAX_CLASSES:,} are learned; leave rare labels out (--min-rows N).",
            column=column,
        )


def _ordered(names: Sequence[str] | set[str]) -> list[str]:
    """Sort numbers by value and names by alphabet, but put a label before the one that it negates."""
    if all(map(is_whole, names)):
        return sorted(names, key=lambda name: int(canonical_number(name)))
    ordered = sorted(names, key=lambda name: (name.casefold(), name))
    if len(ordered) == 2:
        first, second = (name.casefold().strip() for name in ordered)
        if any(second == f"{negation}{joint}{first}" for negation in NEGATIONS for joint in ("", "_", "-", " ")):
            ordered.reverse()
    return ordered
