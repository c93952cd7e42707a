"""Reads predictions.parquet within limits: runs may come from anywhere, and a small file can claim any size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from whet.errors import ArtifactError
from whet.runs.folder import RunFolder

PREDICTIONS = "predictions.parquet"
MAX_BYTES = 4_000_000_000
"""Largest size of a split in memory."""
_READ_ROWS = 8192


def labelled_rows(folder: RunFolder, split: str) -> Any | None:
    """Return the labelled rows of a split as an Arrow table; None if it was not predicted."""
    path = folder.path / PREDICTIONS
    if not path.is_file():
        return None
    import pyarrow as pa

    try:
        # Opened here, because Arrow takes only paths that are text.
        with open(path, "rb") as opened:
            table = _read(opened, path, split)
    except (pa.ArrowException, OSError, UnicodeDecodeError, KeyError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ArtifactError(f"{str(path)!r} is damaged: {reason[:200]}.") from None
    if not table.num_rows:
        return None
    _refuse_impossible(table, path)
    return table


def _read(opened: Any, path: Path, split: str) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    kept, size = [], 0
    schema = pq.read_schema(opened)
    texts = [name for name in ("split", "text", "pair") if name in schema.names]
    opened.seek(0)
    # Repeated values take little room in the file; as dictionaries they take little in memory too.
    with pq.ParquetFile(opened, read_dictionary=texts) as file:
        if file.metadata.num_rows > path.stat().st_size:  # logits alone take a few bytes per row
            raise ArtifactError(f"{str(path)!r} claims {file.metadata.num_rows:,} rows, which it has no room for.")
        for batch in file.iter_batches(_READ_ROWS):
            found = pa.Table.from_batches([batch])
            of_split = pc.equal(found["split"].cast(pa.string()), split)
            found = found.filter(pc.and_(of_split, pc.is_valid(found["label"])))
            size += _unpacked(found)
            if size > MAX_BYTES:
                raise ArtifactError(f"{str(path)!r} holds more than {MAX_BYTES / 1e9:g} GB of {split} rows.")
            if found.num_rows:
                kept.append(_plain(found))
    return pa.concat_tables(kept) if kept else schema.empty_table()


def _unpacked(table: Any) -> int:
    """Return the size of a table in bytes after decoding its dictionaries."""
    import pyarrow as pa
    import pyarrow.compute as pc

    size = 0
    for column in table.columns:
        for chunk in column.chunks:
            if pa.types.is_dictionary(chunk.type):
                lengths = pc.binary_length(chunk.dictionary).take(chunk.indices)
                size += 8 * len(chunk) + (pc.sum(lengths).as_py() or 0)
            else:
                size += chunk.nbytes
    return size


def _plain(table: Any) -> Any:
    import pyarrow as pa

    columns = [
        column.cast(pa.large_string()) if pa.types.is_dictionary(column.type) else column for column in table.columns
    ]
    return pa.table(dict(zip(table.column_names, columns, strict=True)))


def _refuse_impossible(table: Any, path: Path) -> None:
    """Raise unless the columns hold numbers, and complete rows of equal width."""
    import pyarrow as pa

    kinds = [table.schema.field(name).type for name in ("label", "logits")]
    numbers = [kind.value_type if pa.types.is_list(kind) else kind for kind in kinds]
    if not pa.types.is_list(kinds[1]) or not all(pa.types.is_integer(n) or pa.types.is_floating(n) for n in numbers):
        raise ArtifactError(f"{str(path)!r} is damaged: its labels and logits are no numbers.")
    for name in ("label", "logits"):
        if pa.types.is_list(table.schema.field(name).type):
            _refuse_ragged(table[name], path)


def _refuse_ragged(column: Any, path: Path) -> None:
    import pyarrow.compute as pc

    widths = np.unique(pc.list_value_length(column).to_numpy(zero_copy_only=False))
    if len(widths) != 1 or not widths[0] > 0:
        raise ArtifactError(f"{str(path)!r} is damaged: its rows have different widths.")
