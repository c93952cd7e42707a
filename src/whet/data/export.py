"""Writes a source's own rows with added columns, as CSV that is safe to open in a spreadsheet."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from whet.config import DataConfig
from whet.data.readers.raw_table import BATCH_ROWS, RawSplit
from whet.data.readers.text_files import first_bytes, mend_surrogates
from whet.errors import DataError, UsageError
from whet.utils.files import replacing
from whet.utils.text import harmless_cell

OUTPUTS = (".csv", ".tsv", ".jsonl", ".json", ".parquet", ".xlsx")

Row = dict[str, Any]
Chunk = Any
"""Rows as an Arrow record batch, or as a list of JSON objects."""


# Reading -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OwnRows:
    """A table as in its file: all columns, in order, uninterpreted and complete."""

    columns: tuple[str, ...]
    table: RawSplit | None
    """None for JSON, which is read again as objects: tables cannot hold fields of several types."""
    config: DataConfig
    file: Path | None = None

    def chunks(self) -> Iterator[Chunk]:
        if self.table is not None:
            yield from self.table.read(self.columns)
        elif self.file is not None:
            rows = _json_objects(self.file, self.config)
            while chunk := list(islice(rows, BATCH_ROWS)):
                yield chunk


def own_rows(source: str, config: DataConfig, scratch: Path) -> dict[str, list[OwnRows]]:
    """Return the tables of each split of a source that can be read twice (`readable_twice`)."""
    from whet.data.readers.source import find_source, read_source

    found = find_source(source, config, scratch)
    if found.files:
        return {split: [_own_file(path, config, scratch) for path in paths] for split, paths in found.files.items()}
    splits = read_source(found, config, scratch)
    return {split: [OwnRows(tuple(table.columns), table, config)] for split, table in splits.items()}


def _own_file(path: Path, config: DataConfig, scratch: Path) -> OwnRows:
    from whet.data.readers.json_files import read_json
    from whet.data.readers.source import read_file, reader_of

    if reader_of(path, first_bytes(path)) is read_json:
        names = dict.fromkeys(name for row in _json_objects(path, config) for name in row)
        return OwnRows(tuple(names), None, config, path)
    table = read_file(path, config, scratch)
    return OwnRows((*table.columns, *table.nested), table, config, path)


def _json_objects(path: Path, config: DataConfig) -> Iterator[Row]:
    from whet.data.readers.json_files import json_rows

    return (row for row, _ in json_rows(path, config, int(config.max_field_mb * 1_000_000)))


def picked(tables: Iterable[OwnRows], rows: Sequence[int]) -> Iterator[Chunk]:
    """Return the rows of these numbers, counted from 1 over all tables."""
    before = place = 0
    for table in tables:
        for chunk in table.chunks():
            first = place
            while place < len(rows) and rows[place] <= before + len(chunk):
                place += 1
            wanted = [row - before - 1 for row in rows[first:place]]
            before += len(chunk)
            if len(wanted) == len(chunk):
                yield chunk
            elif wanted:
                yield [chunk[index] for index in wanted] if isinstance(chunk, list) else chunk.take(wanted)
    if place < len(rows):
        raise DataError("the source changed while it was read.", "Run the command again.")


def refuse_own_file(output: Path, tables: Mapping[str, Sequence[OwnRows]]) -> None:
    """Refuse to write the file that is being read."""
    for table in (each for own in tables.values() for each in own):
        if table.file is not None and output.exists() and output.samefile(table.file):
            raise UsageError(f"{str(output)!r} is both read and written.", "Choose another file to write.")


def refuse_output(path: Path, source: str | None) -> None:
    """Refuse a file that cannot be written or is being read, before anything is computed."""
    if path.suffix.lower() not in OUTPUTS:
        listed = f"{', '.join(OUTPUTS[:-1])} or {OUTPUTS[-1]}"
        raise UsageError(f"The output file is {str(path)!r}.", f"It must end in {listed}.")
    if not path.parent.is_dir():
        raise UsageError(f"There is no folder {str(path.parent)!r} to write {path.name} to.")
    if source is not None and path.exists() and Path(source).exists() and path.samefile(source):
        raise UsageError(f"{source!r} is both read and written.", "Choose another file to write.")


# Writing -------------------------------------------------------------------------------------------


def free_names(wanted: Mapping[str, str], taken: Collection[str]) -> dict[str, str]:
    """Return a name for each wanted column that the source does not have: its own, the second choice, or a numbered
    one."""
    found: dict[str, str] = {}
    for name, other in wanted.items():
        choices = (name, other, *(f"{other}_{number}" for number in range(2, len(taken) + len(wanted) + 3)))
        found[name] = next(each for each in choices if each not in taken and each not in found.values())
    return found


def write_rows(path: Path, columns: Sequence[str], chunks: Iterable[Chunk], added: Sequence[Row]) -> None:
    """Write the rows with the cells of `added` appended, in the format of the file name.

    The file is complete or absent. A link is followed, and a pipe is written as it is.
    """
    target, suffix = path.resolve(), path.suffix.lower()
    special = target.exists() and not target.is_file()
    with nullcontext(path) if special else replacing(target) as place:
        if suffix == ".parquet":
            _write_parquet(place, columns, list(chunks), added)
            return
        rows = (row for chunk in chunks for row in _objects(chunk))
        if suffix == ".xlsx":
            from whet.data.export_excel import write_excel

            write_excel(place, path.name, columns, rows, added, _cell)
            return
        delimited = suffix in (".csv", ".tsv")
        # JSON can spell a lone surrogate, a table cannot.
        with open(place, "w", newline="" if delimited else None, encoding="utf-8", errors="replace") as file:
            if delimited:
                _write_delimited(file, "\t" if suffix == ".tsv" else ",", columns, rows, added)
            else:
                file.writelines(_json_line({**row, **more}) for row, more in zip(rows, added, strict=True))


def _write_delimited(
    file: TextIO, delimiter: str, columns: Sequence[str], rows: Iterable[Row], added: Sequence[Row]
) -> None:
    import csv

    writer = csv.writer(file, delimiter=delimiter)
    names = list(added[0]) if added else []
    writer.writerow([*columns, *names])
    for row, more in zip(rows, added, strict=True):
        # The user's cells are written unchanged; added ones must not become formulas.
        own = [_cell(row.get(name)) for name in columns]
        writer.writerow([*own, *(harmless_cell(_cell(more[name], joined="|")) for name in names)])


def _write_parquet(path: Path, columns: Sequence[str], chunks: list[Chunk], added: Sequence[Row]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if any(isinstance(chunk, list) for chunk in chunks):
            rows = [row for chunk in chunks for row in _objects(chunk)]
            table = pa.table({name: _array([row.get(name) for row in rows]) for name in columns})
        else:
            parts = [pa.Table.from_batches([chunk]) for chunk in chunks]
            table = pa.concat_tables(parts, promote_options="permissive").select(list(columns))
    except pa.ArrowException as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise DataError(f"the rows do not fit one Parquet table: {reason}.", "Write .csv or .jsonl.") from None
    for name in added[0] if added else []:
        values = [row[name] for row in added]
        listed = any(isinstance(value, list) for value in values)
        numbers = not listed and all(value is None or isinstance(value, float) for value in values)
        spelled = listed and any(isinstance(part, str) for value in values for part in value or ())
        inside = pa.string() if spelled or not any(values) else pa.float64()
        kind = pa.list_(inside) if listed else pa.float64() if numbers else None
        table = table.append_column(name, pa.array(values, kind))
    pq.write_table(table, path)


def _array(values: list[Any]) -> Any:
    """Return JSON values as a column: typed if they have one type, else each as JSON text."""
    import pyarrow as pa

    mended = [mend_surrogates(value)[0] if isinstance(value, str) else value for value in values]
    try:
        return pa.array(mended)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return pa.array([None if value is None else json.dumps(value) for value in values], pa.string())


def _objects(chunk: Chunk) -> list[Row]:
    return chunk if isinstance(chunk, list) else list(chunk.to_pylist())


def _json_line(row: Row) -> str:
    line = json.dumps(row, ensure_ascii=False, default=str) + "\n"
    if line.isascii():
        return line
    try:
        line.encode()
    except UnicodeEncodeError:
        return json.dumps(row, default=str) + "\n"
    return line


def _cell(value: Any, joined: str = "") -> str:
    """Return a value as typed into a table; values without such a form as JSON."""
    if value is None:
        return ""
    if joined and isinstance(value, list):
        return joined.join(map(str, value))
    if isinstance(value, bool | list | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)
