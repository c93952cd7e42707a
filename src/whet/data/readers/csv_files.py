"""Reads CSV and TSV strictly and in a stream: an invalid row raises with its number."""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from whet.config import DataConfig
from whet.data.column_names import KNOWN, plain
from whet.data.readers.csv_dialect import NO_DELIMITER, Attempt, Dialect, find_dialect, find_header
from whet.data.readers.label_lines import FLAG, begins_with_label, may_begin_with_label, read_label_lines
from whet.data.readers.raw_table import BATCH_ROWS, Part, RawSplit, Spill
from whet.data.readers.text_files import OverlongLine, lines, mend_surrogates, plain_suffix
from whet.errors import DataError

SAMPLE_LINES = 1000
SAMPLE_CHARACTERS = 4_000_000
BATCH_CHARACTERS = 32_000_000


def read_delimited(path: Path, config: DataConfig, scratch: Path) -> RawSplit:
    """Return the rows of a delimited file as strings."""
    limit = int(config.max_field_mb * 1_000_000)
    sample, whole = _sample(path, config.encoding, limit)
    if not any(line.strip() for line in sample):
        raise DataError("the file is empty.", file=path.name)
    comments = _comments(sample)
    sample = sample[comments:]
    if config.delimiter in (FLAG, " ") or (config.delimiter is None and begins_with_label(sample)):
        return read_label_lines(lines(path, config.encoding, _longest_line(limit)), path, config, scratch)
    dialect = find_dialect(sample, whole, plain_suffix(path), config, path.name)
    reader = _Rows(path, dialect, config.encoding, limit, comments)
    header, width = _shape(sample, dialect, config, path.name)
    names = _names(header, width, path.name)
    spill = Spill(scratch / f"{len(list(scratch.iterdir()))}.arrow")
    surrogates = 0
    try:
        for rows in reader.batches(width, skip_first=header is not None):
            batch, mended = record_batch(rows, names, limit, path.name, spill.rows)
            surrogates += mended
            spill.write(batch)
    finally:
        spill.close()
    if not spill.rows:
        raise DataError(
            f"the file has a header ({', '.join(names)}) and no rows." if header else "the file has no rows.",
            file=path.name,
        )
    part = Part(path.name, spill.rows, path.stat().st_size)
    alone = dialect.delimiter == NO_DELIMITER and config.delimiter is None
    return RawSplit(
        spill.schema,
        spill.read,
        (part,),
        notes=(_note(dialect, header, comments),),
        surrogates=surrogates,
        label_hint=_label_hint(sample, plain_suffix(path)) if alone else (),
    )


def _label_hint(sample: Sequence[str], suffix: str) -> tuple[str, ...]:
    """Return the flag that may find labels in lines that were taken for one column."""
    if may_begin_with_label(sample):
        return ("--delimiter", FLAG)
    if suffix != ".txt" and all("," in line for line in sample if line.strip()):
        return ("--quoting", "loose")
    return ()


def _comments(sample: Sequence[str]) -> int:
    """Return how many lines before the first row are comments, as `# exported by …`, or empty."""
    count = next((at for at, line in enumerate(sample) if line.strip() and not line.startswith("#")), 0)
    if not any(line.startswith("#") for line in sample[:count]):
        return 0
    first = sample[count]
    delimiter = max(",\t;|", key=first.count)
    before = sample[count - 1].rstrip("\r\n")
    # `#id,text,label` names the columns of the rows below, unless these have names of their own.
    names = before.count(delimiter) == first.count(delimiter) and before.startswith("#")
    named = any(plain(name) in KNOWN for name in first.rstrip("\r\n").split(delimiter))
    return 0 if not first.count(delimiter) or (names and not named) else count


def _note(dialect: Dialect, header: Sequence[str] | None, comments: int) -> str:
    kind = "one column" if dialect.delimiter == NO_DELIMITER else f"columns separated by {dialect.spoken}"
    head = "with a header" if header else "without a header"
    overrule = "--delimiter, --header"
    if not dialect.quoted and dialect.delimiter != NO_DELIMITER:
        kind += ", quotes kept as text"
        overrule += ", --quoting"
    elif dialect.backslash:
        kind += ', quotes escaped as \\"'
    if dialect.loose is not None:
        kind += f", which column {dialect.loose[0] + 1} may hold, too"
        overrule += ", --quoting"
    if comments:
        head += f", after {comments} lines of comments" if comments > 1 else ", after a comment"
    return f"{kind}, {head} ({overrule})."


def _sample(path: Path, encoding: str, limit: int) -> tuple[list[str], bool]:
    """Return the first lines, and whether they are all."""
    found: list[str] = []
    size = 0
    try:
        for line in islice(lines(path, encoding, _longest_line(limit)), SAMPLE_LINES):
            found.append(line)
            size += len(line)
            if size > SAMPLE_CHARACTERS:
                return found, False
    except OverlongLine:
        raise _too_large(path.name, len(found) + 1, limit) from None
    return found, len(found) < SAMPLE_LINES


def _longest_line(limit: int) -> int:
    """A line may hold several fields, but its length is limited."""
    return 16 * limit + 65_536


def _shape(sample: Sequence[str], dialect: Dialect, config: DataConfig, file: str) -> tuple[list[str] | None, int]:
    """Return the header, if there is one, and the number of columns."""
    rows: list[list[str]] = []
    reader = dialect.reader(iter(sample))
    with contextlib.suppress(csv.Error):  # the strict pass over the whole file reports where
        rows.extend(row for row in reader if row)
    if not rows:
        return None, 1
    has_header = find_header(rows, config, file)
    width = len(rows[0]) if has_header else Attempt(dialect, tuple(map(tuple, rows)), False).width
    return (rows[0] if has_header else None), width


def _names(header: Sequence[str] | None, width: int, file: str) -> list[str]:
    if header is None:
        return [f"column_{index + 1}" for index in range(width)]
    names = [mend_surrogates(name)[0].strip() or f"column_{index + 1}" for index, name in enumerate(header)]
    double = sorted({name for name in names if names.count(name) > 1})
    if double:
        raise DataError(
            f"the header names {', '.join(map(repr, double))} more than once.",
            "Rename one of them, or use --header no.",
            file=file,
        )
    return names


class _Rows:
    """Rows of a file as lists, each with the right number of columns."""

    def __init__(self, path: Path, dialect: Dialect, encoding: str, limit: int, comments: int) -> None:
        """So many lines before the first row are passed over."""
        self.path, self.dialect, self.encoding, self.limit = path, dialect, encoding, limit
        self._comments = comments
        self._characters = 0

    def batches(self, width: int, skip_first: bool) -> Iterator[list[list[str]]]:
        reader = self.dialect.reader(self._lines())
        rows: list[list[str]] = []
        done, blanks, line = 0, 0, 0
        old_limit = csv.field_size_limit(self.limit)
        try:
            for row in reader:
                if len(row) != width:
                    if not row or (len(row) == 1 and not row[0].strip()):
                        blanks += 1
                        line = reader.line_num
                        continue
                    number = done + len(rows) + (0 if skip_first else 1)
                    raise self._ragged(number, width, len(row), line + 1)
                if blanks and width == 1 and (rows or done):
                    # In a list of texts a blank line between others is an empty text.
                    rows.extend([[""]] * blanks)
                blanks, line = 0, reader.line_num
                rows.append(row)
                if len(rows) >= BATCH_ROWS or self._characters > BATCH_CHARACTERS:
                    yield rows[1:] if skip_first and not done else rows
                    done, rows, self._characters = done + len(rows), [], 0
        except csv.Error as error:
            number = done + len(rows) + (0 if skip_first else 1)
            raise self._broken(str(error), number, line + 1) from None
        except _Nul:
            number = done + len(rows) + (0 if skip_first else 1)
            raise DataError(
                f"there is a NUL byte (line {self._comments + reader.line_num + 1}), which text does not have.",
                "Remove it; if the file is UTF-16, use --encoding utf-16.",
                file=self.path.name,
                row=max(number, 0),
            ) from None
        except OverlongLine:
            number = done + len(rows) + (0 if skip_first else 1)
            raise _too_large(self.path.name, number, self.limit) from None
        finally:
            csv.field_size_limit(old_limit)
        if rows:
            yield rows[1:] if skip_first and not done else rows

    def _lines(self) -> Iterator[str]:
        every = lines(self.path, self.encoding, _longest_line(self.limit))
        for line in islice(every, self._comments, None):
            if "\0" in line:
                raise _Nul
            self._characters += len(line)
            yield line

    def _ragged(self, row: int, expected: int, found: int, line: int) -> DataError:
        hint = "Put quotes around a field that holds the delimiter, or name the right one: --delimiter."
        loose = found > expected > 1
        if loose:
            hint += f" If the {self.dialect.spoken} belongs to the text, use --quoting loose."
        return DataError(
            f"the row has {_count(found)} (line {self._comments + line}) where {expected} are expected.",
            hint,
            file=self.path.name,
            row=row,
            go_on=("--quoting", "loose") if loose else (),
        )

    def _broken(self, problem: str, row: int, line: int) -> DataError:
        line += self._comments
        if "field larger" in problem:
            return _too_large(self.path.name, row, self.limit)
        if "unexpected end" in problem:
            message = f"a quote that opens in this row (line {line}) is never closed."
        elif "expected after" in problem:
            message = f"text follows a closing quote (line {line})."
        else:
            message = f"the row cannot be read (line {line}): {problem}."
        hint = "Double a quote inside a quoted field; if quotes are part of the text, use --quoting no."
        return DataError(message, hint, file=self.path.name, row=row, go_on=("--quoting", "no"))


class _Nul(Exception):
    """A line with a NUL byte."""


def _count(columns: int) -> str:
    return "1 column" if columns == 1 else f"{columns} columns"


def _too_large(file: str, row: int, limit: int) -> DataError:
    return DataError(
        f"a field is larger than {limit / 1_000_000:g} MB.",
        "Raise --max-field-mb if that is right; a quote that is never closed can also be the cause.",
        file=file,
        row=row,
    )


def record_batch(rows: list[list[str]], names: list[str], limit: int, file: str, before: int) -> tuple[Any, int]:
    """Return a record batch of strings, and how many surrogates were replaced."""
    import pyarrow as pa
    import pyarrow.compute as pc

    arrays, mended = [], 0
    for values in zip(*rows, strict=True) if rows else [[] for _ in names]:
        try:
            array = pa.array(values, pa.large_string())
        except (UnicodeEncodeError, pa.ArrowInvalid):
            pairs = [mend_surrogates(value) for value in values]
            mended += sum(count for _, count in pairs)
            array = pa.array([value for value, _ in pairs], pa.large_string())
        longest = pc.max(pc.binary_length(array)).as_py() or 0
        if longest > limit:
            row = pc.index(pc.greater(pc.binary_length(array), limit), True).as_py()
            raise _too_large(file, before + row + 1, limit)
        arrays.append(array)
    return pa.record_batch(arrays, names=names), mended
