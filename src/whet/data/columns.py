"""Decides which columns are the text, its pair and the label: by name, then by content, without guessing."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from whet.config import DataConfig
from whet.data.column_names import IDS, KNOWN, LABELS, PAIRS, TEXTS, plain
from whet.data.readers.raw_table import RawSplit
from whet.errors import DataError, shortened_list
from whet.utils.text import neutral

PROFILE_ROWS = 5000
MAX_VALUES = 20
"""Largest number of different values of a label, however few the rows."""
PROFILE_BYTES = 8_000_000
NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
DATE = (
    r"^(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d{2}))"
    r"([T ]+\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?( ?(Z|UTC|AM|PM|[+-]\d{2}:?\d{2}))?)?$"
)
DAY_NAME = r"^(Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,? [A-Za-z0-9 ]{4,20} \d{1,2}:\d{2}(:\d{2})?( [A-Za-z0-9+: ]{2,12})?$"
"""As in `Mon Apr 06 22:19:45 PDT 2009` and in mail headers."""
LABEL_HINTS: dict[tuple[str, ...], str] = {
    ("--delimiter", "space"): "If the first word of each line is its label, use --delimiter space. ",
    ("--quoting", "loose"): "If the text holds the delimiter without quotes, use --quoting loose. ",
}
"""What is said of the flag that may find a label in lines of one column."""
ZERO_ONE = r"^(?i:0|1|0\.0|1\.0|true|false)$"


@dataclass(frozen=True)
class Columns:
    """The column names of the source. Several 0/1 columns of a multi-label target are joined by commas."""

    text: str
    pair: str | None
    label: str | None

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.text,) if self.pair is None else (self.text, self.pair)


@dataclass(frozen=True)
class Profile:
    """Properties of a column's first rows."""

    name: str
    kind: str
    """`text`, `whole`, `number`, `truth`, `list` or `other`."""
    rows: int
    distinct: int
    words: float
    """Mean number of words per cell."""
    numeric: bool
    dates: bool = False
    """Whether every cell is a date, with or without a time."""
    zero_one: bool = False
    """Whether every cell is 0 or 1, or false or true, as in a multi-label column."""

    delimited: bool = False
    """Whether cells may hold several labels: lists, or texts of which some contain `|` or `;`."""

    @property
    def plain_name(self) -> str:
        """Return the name to compare; inside an object only its last part, unless the whole name is known."""
        return plain(self.name) if plain(self.name) in KNOWN else plain(self.name.rpartition(".")[2])

    @property
    def is_id(self) -> bool:
        counts_up = self.numeric and self.kind != "number" and self.distinct == self.rows >= 20
        return self.plain_name in IDS or counts_up

    @property
    def why_no_label(self) -> str:
        """Return why this column cannot be the label, whatever its name; empty if it can."""
        if self.kind == "list" or self.delimited:
            return ""
        if self.dates:
            return "it holds dates"
        if self.like_prose:
            return "it holds free text"
        if self.numeric and self.kind != "number" and self.distinct == self.rows >= 20:
            return "it has another whole number in every row"
        if self.kind == "text" and not self.numeric and self.distinct > max(MAX_VALUES, min(1000, self.rows * 9 // 10)):
            return f"it has {self.distinct:,} different values in {self.rows:,} rows"
        return ""

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
    """Return the columns of the task, or raise an error that lists the candidates."""
    profiles = profile(split)
    config = _with_own_names(split, config)
    _check_given(split, config)
    label = _choose_label(split, profiles, config) if labelled or config.label else None
    taken = set(label_columns(split, label)) if label else set()
    text, pair = _choose_texts(split, [p for p in profiles if p.name not in taken], config, label, labelled)
    return Columns(text, pair, label)


def label_columns(split: RawSplit, label: str) -> list[str]:
    """Return the columns in the label setting: one, or several 0/1 columns separated by commas."""
    if label in split.columns:
        return [label]
    return [part.strip() for part in label.split(",")]


def own_name(name: str, known: Sequence[str]) -> str | None:
    """Return the matching known name: the same one, or the only one that differs in case alone."""
    if name in known:
        return name
    alike = [each for each in known if each.casefold() == name.strip().casefold()]
    return alike[0] if len(alike) == 1 else None


def _with_own_names(split: RawSplit, config: DataConfig) -> DataConfig:
    """Return the settings with column names in the source's spelling; unknown names stay as they are."""
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
    """Return the properties of every column's first rows."""
    table = first_rows(split)
    return [_profile(name, table.column(name), name in split.class_names) for name in split.columns]


def first_rows(split: RawSplit) -> Any:
    """Return a table of the first rows: enough to decide, and at most a few megabytes."""
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
    rows = len(present)
    words, numeric = 0.0, kind in ("whole", "number") and not declared
    dates, zero_one, delimited = False, kind == "truth", False
    distinct = 0
    if kind == "text":
        present = present.cast(pa.large_string())
        trimmed = pc.utf8_trim_whitespace(present)
        filled = trimmed.filter(pc.not_equal(trimmed, ""))
        if len(filled):
            words = pc.mean(pc.add(pc.count_substring_regex(filled, r"\s+"), 1)).as_py()
            numeric, days, named_days, zero_one = (
                pc.all(pc.match_substring_regex(filled, pattern)).as_py()
                for pattern in (NUMBER, DATE, DAY_NAME, ZERO_ONE)
            )
            dates = days or named_days
            present = filled
            delimited = pc.any(pc.match_substring_regex(filled, r"[|;]|^\[")).as_py()
    elif numeric and len(present):
        zero_one = pc.all(pc.or_(pc.equal(present, 0), pc.equal(present, 1))).as_py()
    if kind not in ("list", "other"):
        distinct = pc.count_distinct(present).as_py()
    return Profile(name, kind, rows, distinct, words, numeric, dates, zero_one, delimited)


def column_kind(type_: Any) -> str:
    """Return the kind of a pyarrow type."""
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
        f"the column {name!r} {reason}.",
        f"Columns: {_listed(split.columns)}.{inside} Use --{flag} NAME.",
    )


def _listed(names: Sequence[str]) -> str:
    return shortened_list([neutral(name) for name in names], 20, quoted=False)


def _choose_label(split: RawSplit, profiles: Sequence[Profile], config: DataConfig) -> str:
    if config.label is not None:
        return config.label
    texts = {config.text, config.pair}
    free = [p for p in profiles if p.name not in texts and p.plain_name not in IDS]
    refused = {} if config.min_rows or config.rare else {p.name: p.why_no_label for p in free if p.why_no_label}
    for tier in LABELS:
        named = [p for p in _named(free, tier) if p.name not in refused and not p.like_prose]
        if len(named) == 1:
            return named[0].name
        if named:
            raise _ambiguous(split, "the label", named, "--label NAME", ("--label", _likeliest(named)))
    alike = [p for p in free if p.like_label and not p.like_text]
    alike = [p for p in alike if p.kind == "list" or p.distinct > 1] or alike
    if len(alike) == 1:
        return alike[0].name
    if alike:
        hint, likeliest = "--label NAME", _likeliest(alike)
        switches = [p.name for p in alike if p.zero_one]
        if len(switches) > 1:  # all of them, because the task depends on each
            hint += f", or several for a multi-label task: --label {shlex.quote(','.join(switches))}"
            likeliest = ",".join(switches) if len(switches) == len(alike) else likeliest
        raise _ambiguous(split, "the label", alike, hint, ("--label", likeliest))
    why = f" {passed_over(profiles, '')}" if passed_over(profiles, "") else ""
    hint = LABEL_HINTS.get(split.label_hint, "")
    raise split.error(
        f"there is no column that looks like a label.{why}",
        f"{hint}Columns: {_listed(split.columns)}. Choose one with --label NAME.",
        go_on=split.label_hint,
    )


def passed_over(profiles: Sequence[Profile], label: str) -> str:
    """Return a sentence about columns that are named like a label and are none; empty if there are none."""
    names = {name for tier in LABELS for name in tier}
    called = [p for p in profiles if p.plain_name in names and p.why_no_label and p.name not in label.split(",")]
    told = [f"{neutral(p.name)!r} is not taken as the label: {p.why_no_label}" for p in called[:3]]
    return f"{'; '.join(told)}." if told else ""


def _named(profiles: Sequence[Profile], names: Sequence[str]) -> list[Profile]:
    """Return the columns with one of these names; if there are none, those with it as the last part of a dotted
    name."""
    return [p for p in profiles if plain(p.name) in names] or [p for p in profiles if p.plain_name in names]


def _likeliest(alike: Sequence[Profile]) -> str:
    """Return the best suggestion: names before numbers, few values before many, in the order of the columns."""
    return min(alike, key=lambda p: (p.numeric or p.kind == "number", p.distinct or 1000)).name


def _choose_texts(
    split: RawSplit, free: Sequence[Profile], config: DataConfig, label: str | None, labelled: bool
) -> tuple[str, str | None]:
    if config.text is not None:
        return config.text, config.pair
    usable = [p for p in free if p.kind == "text" and p.name != config.pair]
    by_name = {p.plain_name: p for p in usable} | {plain(p.name): p for p in usable}
    if config.pair is None:
        for first, second in PAIRS:
            if first in by_name and second in by_name:
                return by_name[first].name, by_name[second].name
    for tier in TEXTS:
        named = _named(usable, tier)
        if len(named) > 1:
            raise _ambiguous_text(split, named)
        if named:
            return named[0].name, config.pair
    alike = [p for p in usable if p.like_text]
    if not alike:
        # By elimination: the only remaining column that is neither label nor id.
        alike = [p for p in usable if not p.is_id and not p.numeric and not p.dates]
    if not alike and len(usable) == 1 and (not labelled or len(free) == 1):
        alike = [usable[0]]
    if len(alike) == 1:
        return alike[0].name, config.pair
    if alike:
        raise _ambiguous_text(split, alike)
    of_label = f" besides the label {label!r}" if label else ""
    raise split.error(
        f"there is no column that looks like text{of_label}.",
        f"Columns: {_listed(split.columns)}. Choose one with --text NAME.",
    )


def _ambiguous_text(split: RawSplit, alike: Sequence[Profile]) -> DataError:
    longest = max(alike, key=lambda p: p.words).name
    hint = f"--text {longest}, or for pairs --text {alike[0].name} --pair {alike[1].name}"
    return _ambiguous(split, "the text", alike, hint, ("--text", longest))


def _ambiguous(
    split: RawSplit, what: str, candidates: Sequence[Profile], hint: str, go_on: tuple[str, str]
) -> DataError:
    listed = _listed([p.name for p in candidates])
    return split.error(f"more than one column may be {what}: {listed}.", f"Choose one: {hint}", go_on=go_on)
