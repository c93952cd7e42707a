"""Reads SQLite and DuckDB files: one table, read-only."""

from __future__ import annotations

import contextlib
import datetime
import decimal
import shlex
import sqlite3
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from whet.config import DataConfig
from whet.data.column_names import LABELS, TEXTS, plain
from whet.data.columns import own_name
from whet.data.readers.object_rows import SizedRow, split_of_objects
from whet.data.readers.raw_table import RawSplit
from whet.errors import DataError, EnvironmentFault, missing_extra
from whet.utils.text import neutral

TEXT_NAMES, LABEL_NAMES = ({name for tier in tiers for name in tier} for tiers in (TEXTS, LABELS))
SQLITE_START, DUCKDB_MARK = b"SQLite format 3\0", b"DUCK"
DUCKDB_MARK_AT = 8
FETCHED_ROWS = 10_000
_SQLITE_TABLES = "select name from sqlite_schema where type = 'table' and name not like 'sqlite\\_%' escape '\\'"
_DUCKDB_TABLES = "select table_name from duckdb_tables() where not internal and schema_name = 'main'"
_DUCKDB_SETTINGS = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}
"""Settings that keep an untrusted file from accessing anything but itself."""


def is_duckdb(start: bytes) -> bool:
    return start[DUCKDB_MARK_AT : DUCKDB_MARK_AT + len(DUCKDB_MARK)] == DUCKDB_MARK


def read_sqlite(path: Path, config: DataConfig, scratch: Path) -> RawSplit:
    """Return the only table with rows, or the one that --sheet names. Views are not run."""
    limit = int(config.max_field_mb * 1_000_000)

    def connect() -> Any:
        # A file in a read-only folder has no journal, and may be read as it is.
        for how in ("mode=ro", "immutable=1"):
            with contextlib.suppress(sqlite3.OperationalError):
                connection = sqlite3.connect(f"file:{quote(str(path.absolute()))}?{how}", uri=True)
                connection.execute("pragma trusted_schema = off")
                connection.execute("pragma query_only = on")
                connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, max(limit, 1_000_000))
                connection.execute("select count(*) from sqlite_schema").fetchone()
                return connection
        raise sqlite3.OperationalError("it cannot be opened")

    return _read(path, config, scratch, "SQLite", connect, _SQLITE_TABLES, (sqlite3.Error,))


def read_duckdb(path: Path, config: DataConfig, scratch: Path) -> RawSplit:
    """The same for a DuckDB file."""
    try:
        import duckdb
    except ImportError:
        raise missing_extra("duckdb", "duckdb", "Reading DuckDB files") from None

    def connect() -> Any:
        try:
            return duckdb.connect(str(path), read_only=True, config=_DUCKDB_SETTINGS)
        except duckdb.IOException as error:
            if "lock" in str(error):
                raise EnvironmentFault(f"{str(path)!r} is open in another program.", "Close it there.") from None
            raise

    return _read(path, config, scratch, "DuckDB", connect, _DUCKDB_TABLES, (duckdb.Error,))


def _read(
    path: Path,
    config: DataConfig,
    scratch: Path,
    kind: str,
    connect: Callable[[], Any],
    tables: str,
    errors: tuple[type[Exception], ...],
) -> RawSplit:
    try:
        with contextlib.closing(connect()) as connection:
            table = _table([str(name) for (name,) in connection.execute(tables).fetchall()], connection, config, path)
            select = f"select * from {_quoted(table)}"

            def rows() -> Iterator[SizedRow]:
                found = connection.execute(select)
                names = [str(column[0]) for column in found.description]
                while fetched := found.fetchmany(FETCHED_ROWS):
                    yield from (_row(names, cells) for cells in fetched)

            split = split_of_objects(rows, path, config, scratch)
    except errors as error:
        reason = neutral(str(error).splitlines()[0].rstrip(".")) if str(error) else type(error).__name__
        raise DataError(f"it cannot be read as {kind}: {reason}.", file=path.name) from None
    note = f"a {kind} database, table {neutral(table)!r} (--sheet)."
    inside = split.unfolded and replace(split.unfolded, notes=(note,))
    return replace(split, notes=(note, *split.notes), unfolded=inside)


def _table(names: Sequence[str], connection: Any, config: DataConfig, path: Path) -> str:
    """Return the table of that name, or the only one with rows."""
    listed = ", ".join(map(neutral, names))
    if config.sheet is not None:
        found = own_name(config.sheet, names)
        if found is None:
            raise DataError(f"there is no table {config.sheet!r}.", f"Tables: {listed or 'none'}.", file=path.name)
        return found
    filled = [name for name in names if connection.execute(f"select 1 from {_quoted(name)} limit 1").fetchone()]
    if not filled:
        raise DataError("the database has no table with rows.", file=path.name)
    if len(filled) > 1:
        likeliest = max(filled, key=lambda name: _known_columns(name, connection))
        raise DataError(
            f"more than one table has rows: {', '.join(map(neutral, filled))}.",
            f"Choose one: --sheet {shlex.quote(likeliest)}",
            file=path.name,
            go_on=("--sheet", likeliest),
        )
    return filled[0]


def _known_columns(table: str, connection: Any) -> tuple[int, int]:
    """Return how many of text and label a table has by its columns' names, and then its number of rows."""
    described = connection.execute(f"select * from {_quoted(table)} limit 0").description
    names = {plain(str(column[0])) for column in described}
    found = sum(bool(names & known) for known in (TEXT_NAMES, LABEL_NAMES))
    (rows,) = connection.execute(f"select count(*) from {_quoted(table)}").fetchone()
    return found, rows


def _quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def _row(names: Sequence[str], cells: Sequence[Any]) -> SizedRow:
    row = {name: _plain(cell) for name, cell in zip(names, cells, strict=True)}
    return row, sum(len(cell) for cell in row.values() if isinstance(cell, str))


def _plain(cell: Any) -> Any:
    """Convert values that only databases have to the types of the other readers."""
    if isinstance(cell, decimal.Decimal):
        return float(cell)
    if isinstance(cell, datetime.date | datetime.time | uuid.UUID):
        return str(cell)
    return cell
