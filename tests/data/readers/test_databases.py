"""SQLite and DuckDB files are sources that are read and never changed."""

from __future__ import annotations

import contextlib
import decimal
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.data_files import everything, labelled, load
from whet.errors import DataError, EnvironmentFault

ROWS = labelled(40)


def sqlite(path: Path, **tables: list[tuple[Any, ...]]) -> Path:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        for name, rows in tables.items():
            quoted = name.replace('"', '""')
            connection.execute(f'create table "{quoted}" (text, label)')
            connection.executemany(f'insert into "{quoted}" values (?, ?)', rows)
    return path


def duckdb_file(path: Path, rows: list[tuple[Any, ...]]) -> Path:
    duckdb = pytest.importorskip("duckdb")
    with contextlib.closing(duckdb.connect(str(path))) as connection:
        connection.execute("create table reviews (text varchar, label varchar, price decimal(6, 2), day date)")
        connection.executemany("insert into reviews values (?, ?, 1.5, '2024-02-03')", rows)
    return path


@pytest.mark.parametrize("make", [lambda path: sqlite(path, rows=ROWS), lambda path: duckdb_file(path, ROWS)])
def test_the_rows_of_the_one_table_are_read_and_the_file_stays(tmp_path: Path, make: Any) -> None:
    path = make(tmp_path / "rows.db")
    before = path.read_bytes()
    assert everything(load(path)) == ROWS
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["rows.db"]


def test_an_empty_table_does_not_count_and_a_second_one_is_asked_for(tmp_path: Path) -> None:
    assert everything(load(sqlite(tmp_path / "one.db", rows=ROWS, empty=[]))) == ROWS
    path = sqlite(tmp_path / "two.db", users=[("an", "x")], **{'odd "name"': ROWS})
    with pytest.raises(DataError, match="more than one table has rows: users") as caught:
        load(path)
    assert caught.value.go_on == ("--sheet", 'odd "name"')  # it has more rows, and columns of known names
    assert everything(load(path, sheet='ODD "name"')) == ROWS
    with pytest.raises(DataError, match="there is no table 'other'"):
        load(path, sheet="other")


def test_a_view_is_not_run(tmp_path: Path) -> None:
    path = sqlite(tmp_path / "rows.db", rows=ROWS)
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "create view endless as with recursive n(x) as (select 1 union all select x + 1 from n) select x from n"
        )
    assert everything(load(path)) == ROWS


def test_a_journal_is_read_too(tmp_path: Path) -> None:
    path = sqlite(tmp_path / "rows.db", rows=ROWS[:20])
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("pragma journal_mode = wal")
        connection.executemany("insert into rows values (?, ?)", ROWS[20:])
        connection.commit()
        assert everything(load(path)) == ROWS


@pytest.mark.parametrize("start", [b"SQLite format 3\0", b"\0" * 8 + b"DUCK"])
def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path, start: bytes) -> None:
    (tmp_path / "rows.db").write_bytes(start + b"\1" * 9000)
    with pytest.raises(DataError, match=r"it cannot be read as (SQLite|DuckDB): ") as caught:
        load(tmp_path / "rows.db")
    assert "\n" not in caught.value.message


def test_blobs_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("create table rows (text, label, picture)")
        connection.executemany("insert into rows values (?, ?, x'00ff')", ROWS)
    assert everything(load(path)) == ROWS


def test_a_field_that_is_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"too big|larger than 1 MB"):
        load(sqlite(tmp_path / "rows.db", rows=[*ROWS, ("long " * 300_000, "bad")]))


def test_duckdb_is_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = duckdb_file(tmp_path / "rows.db", ROWS)
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(EnvironmentFault, match=r"pip install 'whet\[duckdb\]'"):
        load(path)


def test_decimals_are_numbers(tmp_path: Path) -> None:
    path = duckdb_file(tmp_path / "rows.db", [(words, decimal.Decimal(n) / 8) for n, (words, _) in enumerate(ROWS)])
    assert load(path).task.kind == "regression"
