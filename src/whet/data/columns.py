"""Which column is the text, which its pair, which the label: by name, then by content, never by guess."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from whet.config import DataConfig
from whet.data.column_names import IDS, LABELS, PAIRS, TEXTS, plain
from whet.data.readers.raw_table import RawSplit
from whet.errors import DataError
from whet.utils.text import neutral

PROFILE_ROWS = 5000
PROFILE_BYTES = 8_000_000
NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
DATE = (
    r"^(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d{2}))"
    r"([T ]+\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?( ?(Z|UTC|AM|PM|[+-]\d{2}:?\d{2}))?)?$"
)
ZERO_ONE = r"^(?i:0|1|0\.0|1\.0|true|false)$"


@dataclass(frozen=True)
class Columns:
    """The source's own names. Several 0/1 columns that make up a multi-label target are joined by commas."""

    text: str
    pair: str | None
    label: str | None

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.text,) if self.pair is None else (self.text, self.pair)


@dataclass(frozen=True)
class Profile:
    """What the first rows of a column look like."""

    name: str
    kind: str
    """`text`, `whole`, `number`, `truth`, `list` or `other`."""
    rows: int
    distinct: int
    words: float
    """Mean words a cell."""
    numeric: bool
    dates: bool = False
    """Every cell is a day, with or without the time."""
    zero_one: bool = False
    """Every cell is 0 or 1, or false or true: a column of a multi-label task may look so."""

    @property
    def is_id(self) -> bool:
        counts_up = self.numeric and self.kind != "number" and self.distinct == self.rows >= 20
        return plain(self.name) in IDS or counts_up

    @property
    def like_text(self) -> bool:
        return self.kind == "text" and not self.numeric and not self.is_id and not self.dates and (
            self.words >= 2.5 or self.distinct > max(20, self.rows // 2)
        )  # fmt: skip

    @property
    def like_prose(self) -> bool:
        return self.kind == "text" and self.words >= 5 and self.distinct > max(20, self.rows // 2)

    @property
    def like_label(self) -> bool:
        if self.is_id or self.dates or self.kind == "other":
            return False
        if self.kind in ("list", "truth", "number"):
            return True
        return self.distinct <= max(2, min(200, self.rows // 2)) and self.words < 5


def choose_columns(split: RawSplit, config: DataConfig, *, labelled: bool = True) -> Columns:
    """The columns of the task, or an error that lists the candidates."""
    profiles = profile(split)
    config = _with_own_names(split, config)
    _check_given(split, config)
    label = _choose_label(split, profiles, config) if labelled or config.label else None
    taken = set(label_columns(split, label)) if label else set()
    text, pair = _choose_texts(split, [p for p in profiles if p.name not in taken], config, label, labelled)
    return Columns(text, pair, label)


def label_columns(split: RawSplit, label: str) -> list[str]:
    """The columns that the label setting names: one, or several 0/1 columns separated by commas."""
    if label in split.columns:
        return [label]
    return [part.strip() for part in label.split(",")]


def own_name(name: str, known: Sequence[str]) -> str | None:
    """The known name that is meant: the same one, or the only one that differs by case alone."""
    if name in known:
        return name
    alike = [each for each in known if each.casefold() == name.strip().casefold()]
    return alike[0] if len(alike) == 1 else None


def _with_own_names(split: RawSplit, config: DataConfig) -> DataConfig:
    """The settings with the columns as the source spells them; a name it does not have stays as it is."""
    names: dict[str, Any] = {}
    for flag in ("text", "pair"):
        given = getattr(config, flag)
        names[flag] = given if given is None else own_name(given, split.columns) or given
    if config.label is not None:
        whole = own_name(config.label, split.columns)
        parts = [own_name(part, split.columns) or part for part in label_columns(split, config.label)]
        names["label"] = whole or ",".join(parts)
    return replace(config, **names)


def profile(split: RawSplit) -> list[Profile]:
    """A look at the first rows of every column."""
    table = first_rows(split)
    return [_profile(name, table.column(name), name in split.class_names) for name in split.columns]


def first_rows(split: RawSplit) -> Any:
    """A table of the first rows: enough to judge by, and never more than a few megabytes."""
    import pyarrow as pa

    batches: list[Any] = []
    rows = size = 0
    for batch in split.read(None):
        fitting = max(20, int(batch.num_rows * (PROFILE_BYTES - size) / max(batch.nbytes, 1)))
        part = batch.slice(0, min(PROFILE_ROWS - rows, fitting))
        batches.append(part)
        rows, size = rows + part.num_rows, size + part.nbytes
        if rows >= PROFILE_ROWS or size >= PROFILE_BYTES or part.num_rows < batch.num_rows:
            break
    return pa.Table.from_batches(batches, schema=split.schema)


def _profile(name: str, values: Any, declared: bool) -> Profile:
    import pyarrow as pa
    import pyarrow.compute as pc

    values = values.combine_chunks()
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    kind = column_kind(values.type)
    present = values.drop_null()
    words, numeric = 0.0, kind in ("whole", "number") and not declared
    dates, zero_one = False, kind == "truth"
    distinct = 0
    if kind == "text":
        present = present.cast(pa.large_string())
        trimmed = pc.utf8_trim_whitespace(present)
        filled = trimmed.filter(pc.not_equal(trimmed, ""))
        if len(filled):
            words = pc.mean(pc.add(pc.count_substring_regex(filled, r"\s+"), 1)).as_py()
            numeric, dates, zero_one = (
                pc.all(pc.match_substring_regex(filled, pattern)).as_py() for pattern in (NUMBER, DATE, ZERO_ONE)
            )
    elif numeric and len(present):
        zero_one = pc.all(pc.or_(pc.equal(present, 0), pc.equal(present, 1))).as_py()
    if kind not in ("list", "other"):
        distinct = pc.count_distinct(present).as_py()
    return Profile(name, kind, len(present), distinct, words, numeric, dates, zero_one)


def column_kind(type_: Any) -> str:
    """A pyarrow type in the few words that matter here."""
    import pyarrow as pa

    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    if pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_):
        return "text"
    if pa.types.is_boolean(type_):
        return "truth"
    if pa.types.is_integer(type_):
        return "whole"
    if pa.types.is_floating(type_) or pa.types.is_decimal(type_):
        return "number"
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        return "list"
    return "other"


def _check_given(split: RawSplit, config: DataConfig) -> None:
    for flag in ("text", "pair"):
        name = getattr(config, flag)
        if name is not None and name not in split.columns:
            raise _missing(split, flag, name)
    if config.label is not None:
        for name in label_columns(split, config.label):
            if name not in split.columns:
                raise _missing(split, "label", name)
    given = [name for name in (config.text, config.pair) if name is not None]
    given += [] if config.label is None else label_columns(split, config.label)
    if len(set(given)) < len(given):
        raise split.error(
            f"one column is named twice: {', '.join(given)}.", "Text, pair and label are different columns."
        )


def _missing(split: RawSplit, flag: str, name: str) -> DataError:
    reason = "holds objects or mixed types, which cannot be used" if name in split.nested else "is not there"
    inside = f" Inside its objects: {_listed(split.inner)}." if split.inner else ""
    return split.error(
        f"the column {name!r} {reason}.", f"Columns: {_listed(split.columns)}.{inside} Say --{flag} NAME."
    )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(neutral, names[:20]))
    return f"{shown} and {len(names) - 20} more" if len(names) > 20 else shown


def _choose_label(split: RawSplit, profiles: Sequence[Profile], config: DataConfig) -> str:
    if config.label is not None:
        return config.label
    texts = {config.text, config.pair}
    free = [p for p in profiles if p.name not in texts and plain(p.name) not in IDS]
    for tier in LABELS:
        named = [p for p in free if plain(p.name) in tier and not p.like_prose]
        if len(named) == 1:
            return named[0].name
        if named:
            raise _ambiguous(split, "the label", [p.name for p in named], "--label NAME")
    alike = [p for p in free if p.like_label and not p.like_text]
    if len(alike) == 1:
        return alike[0].name
    if alike:
        hint = "--label NAME"
        switches = [p.name for p in alike if p.zero_one]
        if len(switches) > 1:  # all of them: the task would be another one without the last
            hint += f", or several for a multi-label task: --label {shlex.quote(','.join(switches))}"
        raise _ambiguous(split, "the label", [p.name for p in alike], hint)
    raise split.error(
        "there is no column that looks like a label.",
        f"Columns: {_listed(split.columns)}. Say which one with --label NAME.",
    )


def _choose_texts(
    split: RawSplit, free: Sequence[Profile], config: DataConfig, label: str | None, labelled: bool
) -> tuple[str, str | None]:
    if config.text is not None:
        return config.text, config.pair
    usable = [p for p in free if p.kind == "text" and p.name != config.pair]
    by_name = {plain(p.name): p for p in usable}
    if config.pair is None:
        for first, second in PAIRS:
            if first in by_name and second in by_name:
                return by_name[first].name, by_name[second].name
    for tier in TEXTS:
        named = [p.name for p in usable if plain(p.name) in tier]
        if len(named) > 1:
            raise _ambiguous(split, "the text", named, _text_hint(named))
        if named:
            return named[0], config.pair
    alike = [p.name for p in usable if p.like_text]
    if not alike:
        # By elimination: the only column left that is neither label nor id.
        alike = [p.name for p in usable if not p.is_id and not p.numeric]
    if not alike and len(usable) == 1 and (not labelled or len(free) == 1):
        alike = [usable[0].name]
    if len(alike) == 1:
        return alike[0], config.pair
    if alike:
        raise _ambiguous(split, "the text", alike, _text_hint(alike))
    of_label = f" besides the label {label!r}" if label else ""
    raise split.error(
        f"there is no column that looks like text{of_label}.",
        f"Columns: {_listed(split.columns)}. Say which one with --text NAME.",
    )


def _text_hint(names: Sequence[str]) -> str:
    return f"--text {names[0]}, or for pairs --text {names[0]} --pair {names[1]}"


def _ambiguous(split: RawSplit, what: str, candidates: Sequence[str], hint: str) -> DataError:
    return split.error(f"more than one column may be {what}: {_listed(candidates)}.", f"Say which: {hint}")
