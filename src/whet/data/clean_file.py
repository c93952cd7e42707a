"""`whet check SOURCE --write FILE`: writes the remaining rows with all their columns and repaired texts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from whet.config import DataConfig
from whet.data.columns import column_kind
from whet.data.examples import Examples
from whet.data.export import Chunk, OwnRows, Row, own_rows, picked, refuse_output, refuse_own_file, write_rows
from whet.data.label_values import as_names
from whet.data.text_repair import repair, repaired
from whet.errors import UsageError

FOLDER_FORMAT = ".csv"


def cleaning(config: DataConfig) -> DataConfig:
    """Return the settings for a written file: without a choice of the user, all safe repairs."""
    return config if config.drops or config.repair else dataclasses.replace(config, drop=("all",), repair=("text",))


def is_folder(output: str) -> bool:
    return output.endswith("/") or Path(output).is_dir()


def refuse_place(output: str, source: str) -> None:
    """Refuse a path that cannot be written or that is the source itself, before the source is read."""
    if not is_folder(output):
        refuse_output(Path(output), source)
    elif Path(output).exists() and Path(source).exists() and Path(output).samefile(source):
        raise UsageError(f"{source!r} is both read and written.", "Choose another folder to write.")


def write_clean(source: str, config: DataConfig, examples: Examples, output: str, scratch: Path) -> dict[Path, int]:
    """Write the rows of each given split of a source that can be read twice; return the files with their rows."""
    own = own_rows(source, config, scratch)
    numbers: dict[str, list[int]] = {name: [] for name in own}
    for name, rows in examples.rows.items():
        numbers["train" if examples.origin["splits"][name] == "made" else name] += rows.column("row")
    left = {name: sorted(rows) for name, rows in numbers.items() if rows}
    if is_folder(output):
        Path(output).mkdir(parents=True, exist_ok=True)
        places = {name: Path(output) / f"{name}{FOLDER_FORMAT}" for name in left}
    elif len(left) == 1:
        places = {name: Path(output) for name in left}
    else:
        folder = str(Path(output).with_suffix("")) + "/"
        raise UsageError(
            f"The source has the splits {', '.join(left)}, and {output!r} is one file.",
            f"Give a folder: --write {folder}",
            go_on=("--write", folder),
        )
    for path in places.values():
        refuse_own_file(path, own)
    return {path: _write(path, own[name], left[name], config, examples) for name, path in places.items()}


def _write(path: Path, tables: Sequence[OwnRows], rows: list[int], config: DataConfig, examples: Examples) -> int:
    """Write one file; return its number of rows."""
    columns = list(dict.fromkeys(name for table in tables for name in table.columns))
    names = {name for table in tables if table.table is not None for name in table.table.class_names}
    declared = {name: tables[0].table.class_names[name] for name in names} if tables[0].table is not None else {}
    texts = examples.columns.texts if config.repair else ()
    chunks = (_cleaned(chunk, texts, declared) for chunk in picked(tables, rows))
    write_rows(path, columns, chunks, [{}] * len(rows))
    return len(rows)


def _cleaned(chunk: Chunk, texts: Sequence[str], declared: dict[str, tuple[str, ...]]) -> Chunk:
    if isinstance(chunk, list):
        return [_repaired_row(row, texts) for row in chunk]
    import pyarrow as pa

    for name in chunk.schema.names:
        place, values = chunk.schema.names.index(name), chunk.column(name)
        if name in declared:  # a text file does not declare class names
            chunk = chunk.set_column(place, name, as_names(values, declared[name]))
        elif name in texts and column_kind(values.type) == "text":
            chunk = chunk.set_column(place, name, repaired(values.cast(pa.large_string()))[0])
    return chunk


def _repaired_row(row: Row, texts: Sequence[str]) -> Row:
    for name in texts:
        *outer, last = [name] if name in row else name.split(".")
        place: Any = row
        for part in outer:
            place = place.get(part) if isinstance(place, dict) else None
        if isinstance(place, dict) and isinstance(place.get(last), str):
            place[last] = repair(place[last])
    return row


def lines(written: dict[Path, int]) -> Iterator[str]:
    for path, rows in written.items():
        yield f"{rows:,} {'row' if rows == 1 else 'rows'} in {path}"
