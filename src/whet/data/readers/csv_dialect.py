"""Finds the dialect of a delimited file from its first lines: delimiter, quoting, header."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from whet.config import DataConfig
from whet.data.column_names import KNOWN, TEXTS, plain
from whet.errors import DataError

NO_DELIMITER = "\x1f"
"""Stands for "one column": a unit separator, which no text file has."""
NUMBER = re.compile(r"[+-]?(\d+([.,]\d*)?|[.,]\d+)([eE][+-]?\d+)?")
SPOKEN = {",": "comma", "\t": "tab", ";": "semicolon", "|": "vertical bar", NO_DELIMITER: "none"}


@dataclass(frozen=True)
class Dialect:
    """Settings of the csv module."""

    delimiter: str
    quoted: bool = True
    backslash: bool = False
    """Whether quotes inside a field are written \\" and not doubled."""
    skip_blank: bool = False
    """Whether spaces after a delimiter are outside of the field: a, "b"."""
    loose: tuple[int, int] | None = None
    """The column whose fields may hold the delimiter without quotes, and the number of columns."""

    def reader(self, lines: Any) -> Any:
        if self.loose is not None:
            return LooseRows(lines, self.delimiter, *self.loose)
        return csv.reader(
            lines,
            delimiter=self.delimiter,
            quoting=csv.QUOTE_MINIMAL if self.quoted else csv.QUOTE_NONE,
            doublequote=not self.backslash,
            escapechar="\\" if self.backslash else None,
            skipinitialspace=self.skip_blank,
            strict=True,
        )

    @property
    def spoken(self) -> str:
        return SPOKEN.get(self.delimiter, repr(self.delimiter))


class LooseRows:
    """Rows of single lines of which one column may hold the delimiter; quotes around a field are not part of it."""

    def __init__(self, lines: Any, delimiter: str, column: int, width: int) -> None:
        self.line_num = 0
        self._lines, self._delimiter, self._column, self._width = iter(lines), delimiter, column, width

    def __iter__(self) -> LooseRows:
        return self

    def __next__(self) -> list[str]:
        line = next(self._lines).rstrip("\r\n")
        self.line_num += 1
        cells = line.split(self._delimiter) if line.strip() else []
        if len(cells) > self._width:
            end = self._column + len(cells) - self._width + 1
            cells[self._column : end] = [self._delimiter.join(cells[self._column : end])]
        return [_without_quotes(cell) for cell in cells]


def _without_quotes(cell: str) -> str:
    bare = cell.strip(" ")
    return bare[1:-1].replace('""', '"') if len(bare) > 1 and bare[0] == bare[-1] == '"' else cell


@dataclass(frozen=True)
class Attempt:
    """A trial reading of the sample: its rows, and whether every one of them fits the dialect."""

    dialect: Dialect
    rows: tuple[tuple[str, ...], ...]
    broken: bool

    @cached_property
    def width(self) -> int:
        return Counter(len(row) for row in self.rows).most_common(1)[0][0] if self.rows else 0

    @cached_property
    def agreeing(self) -> float:
        """Return the share of rows with the most common number of columns."""
        return sum(len(row) == self.width for row in self.rows) / len(self.rows) if self.rows else 0.0

    @property
    def consistent(self) -> bool:
        return self.width >= 2 and self.agreeing == 1.0 and not self.broken

    @property
    def has_labels(self) -> bool:
        """Return whether a column repeats few values, as in `a text;joy` or `17|joy|a text`."""
        columns = list(zip(*self.rows, strict=True)) if self.consistent else []
        return self.dialect.delimiter != "," and any(map(_all_recur, columns))

    @property
    def names_known(self) -> bool:
        """Return whether the first row has a common column name."""
        return len(self.rows) > 0 and len(self.rows[0]) >= 2 and any(plain(c) in KNOWN for c in self.rows[0])


def find_dialect(sample: Sequence[str], whole: bool, suffix: str, config: DataConfig, file: str) -> Dialect:
    """Return the dialect of a file whose first lines are `sample` (all its lines if `whole`)."""
    if config.delimiter:
        return _best_quoting(sample, whole, _given_delimiter(config.delimiter), config).dialect
    usual = {".tsv": "\t", ".tab": "\t"}.get(suffix)
    candidates = [usual] if usual else [",", "\t", ";", "|"]
    attempts = [_best_quoting(sample, whole, delimiter, config) for delimiter in candidates]
    if suffix == ".txt":
        # Plain text has commas too: only a header, a tab or a column of labels shows that it is a table.
        attempts = [a for a in attempts if a.dialect.delimiter == "\t" or a.names_known or a.has_labels]
    consistent = [attempt for attempt in attempts if attempt.consistent]
    if len(consistent) > 1:
        named = [attempt for attempt in consistent if attempt.names_known]
        if len(named) != 1:
            options = " or ".join(f"{a.dialect.spoken} ({a.width} columns)" for a in consistent)
            raise DataError(
                f"the columns may be separated by {options}.",
                "Choose one: --delimiter ',' or --delimiter ';' or --delimiter tab.",
                file=file,
                go_on=(
                    "--delimiter",
                    max(consistent, key=lambda a: a.width).dialect.spoken.replace("vertical bar", "pipe"),
                ),
            )
        return named[0].dialect
    if consistent:
        return consistent[0].dialect
    wide = [attempt for attempt in attempts if attempt.width >= 2 or attempt.names_known]
    likely = [attempt for attempt in wide if attempt.names_known] or [a for a in wide if a.agreeing > 0.5]
    if likely:
        return max(likely, key=lambda attempt: attempt.agreeing).dialect
    return _best_quoting(sample, whole, NO_DELIMITER, config).dialect


def _given_delimiter(given: str) -> str:
    names = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "pipe": "|", "none": NO_DELIMITER}
    delimiter = names.get(given.lower(), given)
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise DataError(
            f"--delimiter is {given!r}.",
            "It must be one character, or one of: tab, comma, semicolon, pipe, space, none.",
        )
    return delimiter


def _best_quoting(sample: Sequence[str], whole: bool, delimiter: str, config: DataConfig) -> Attempt:
    """Read the sample with this delimiter and the quoting that fits it."""
    bare = Dialect(delimiter, quoted=False)
    quoted = Dialect(delimiter)
    if config.quoting == "no" or (delimiter == NO_DELIMITER and config.quoting == "auto"):
        return _attempt(sample, whole, bare)
    if config.quoting == "loose":
        return _attempt(sample, whole, Dialect(delimiter, loose=_loose_column(sample, delimiter)))
    attempt = _attempt(sample, whole, quoted)
    if any(f"{delimiter} " in line and ' "' in line for line in sample):
        loose = _attempt(sample, whole, replace(quoted, skip_blank=True))
        if not loose.broken and loose.agreeing == 1.0 and _blanks_hide_quotes(attempt, loose):
            return loose
    if not attempt.broken:
        return attempt
    if any('\\"' in line for line in sample):
        escaped = _attempt(sample, whole, replace(quoted, backslash=True))
        if not escaped.broken and escaped.agreeing == 1.0:
            return escaped
    if delimiter == "\t" and config.quoting == "auto":
        unquoted = _attempt(sample, whole, bare)
        if unquoted.consistent and _quotes_are_text(unquoted.rows):
            return unquoted
    return attempt


def _loose_column(sample: Sequence[str], delimiter: str) -> tuple[int, int]:
    """Return the column that holds delimiters, and the number of columns.

    A first row of known names tells both. Otherwise there are as many columns as in the shortest row, and the column is
    the one that leaves the least to the others: texts are longer than labels.
    """
    filled = [line for line in sample if line.strip()]
    names = [plain(name) for name in filled[0].split(delimiter)] if filled else []
    texts = [at for at, name in enumerate(names) if any(name in tier for tier in TEXTS)]
    counts = [line.count(delimiter) + 1 for line in filled if delimiter in line]
    width = len(names) if len(names) > 1 and KNOWN.intersection(names) else min(counts, default=1)
    if len(texts) == 1 and texts[0] < width:
        return texts[0], width

    def taken(column: int) -> int:
        rows = LooseRows(filled, delimiter, column, width)
        return sum(len(row[column]) for row in rows if len(row) == width)

    return max(range(width), key=taken), width


def _blanks_hide_quotes(strict: Attempt, loose: Attempt) -> bool:
    """Spaces before a quote keep it from enclosing a field: a, "b" may be two plain words."""
    if strict.broken or strict.agreeing < 1.0:
        return True
    return any(
        left != right and left.lstrip(" ").startswith('"') and not right.startswith('"')
        for row, other in zip(strict.rows, loose.rows, strict=False)
        for left, right in zip(row, other, strict=False)
    )


def _quotes_are_text(rows: Sequence[Sequence[str]]) -> bool:
    """Most fields that start with a quote do not end with one, so the quotes belong to the texts."""
    fields = [field for row in rows for field in row if field.startswith('"')]
    whole = sum(re.fullmatch(r'"([^"]|"")*"', field) is not None for field in fields)
    return len(fields) > 2 * whole


def _attempt(sample: Sequence[str], whole: bool, dialect: Dialect) -> Attempt:
    rows: list[tuple[str, ...]] = []
    broken = False
    reader = dialect.reader(iter(sample))
    try:
        rows.extend(tuple(row) for row in reader if row)
    except csv.Error as error:
        # A sample that was cut within a quoted field proves nothing.
        broken = whole or "unexpected end" not in str(error)
    return Attempt(dialect, tuple(rows), broken)


def _all_numbers(cells: Sequence[str]) -> bool:
    filled = [cell for cell in cells if cell]
    return bool(filled) and all(NUMBER.fullmatch(cell) for cell in filled)


def _all_recur(cells: Sequence[str]) -> bool:
    """Return whether there are few values, each more than once: labels, without a name among them."""
    counts = Counter(cells)
    return len(cells) >= 6 and len(counts) <= len(cells) // 3 and min(counts.values()) >= 2


def find_header(rows: Sequence[Sequence[str]], config: DataConfig, file: str) -> bool:
    """Return whether the first row names the columns; raise if both readings make sense."""
    if config.header != "auto" or not rows:
        return config.header != "no"
    first = [cell.strip() for cell in rows[0]]
    columns = [[row[index].strip() for row in rows[1:] if index < len(row)] for index in range(len(first))]
    filled = [cell for cell in first if cell]
    asked = {name for name in (config.text, config.pair, config.label) if name}
    if asked & set(first):
        return True
    named = any(plain(cell) in KNOWN for cell in filled)
    numeric = any(NUMBER.fullmatch(cell) for cell in filled)
    # A label, or another value of a small set, occurs again further down; a name does not.
    repeated = any(
        cell and cell in below and len(set(below)) <= max(2, len(below) // 2)
        for cell, below in zip(first, columns, strict=True)
    )
    over_numbers = any(
        cell and not NUMBER.fullmatch(cell) and _all_numbers(below) for cell, below in zip(first, columns, strict=True)
    )
    over_labels = all(len(cell.split()) <= 4 and len(cell) <= 40 for cell in filled) and any(
        cell and _all_recur(below) and cell not in below for cell, below in zip(first, columns, strict=True)
    )
    unique = len(set(filled)) == len(filled)
    if not numeric and not repeated and (named or (unique and (over_numbers or over_labels))):
        return True
    if (numeric or repeated) and not named:
        return False
    if not unique and not named:
        return False
    if len(first) == 1 and not named:
        return False
    raise DataError(
        f"the first row may be names of columns or data: {', '.join(map(repr, first[:6]))}.",
        "Use --header yes or --header no.",
        file=file,
        go_on=("--header", "no" if any(len(cell.split()) > 4 or len(cell) > 40 for cell in first) else "yes"),
    )
