"""Reads Parquet and Arrow files in batches, with the label names that the file declares."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from whet.config import DataConfig
from whet.data.readers.raw_table import Batches, Part, RawSplit, batch_rows, from_table
from whet.errors import DataError
from whet.utils.text import neutral


def read_parquet(path: Path, config: DataConfig, scratch: Path) -> RawSplit:
    """Read a Parquet file, only the requested columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(str(path)) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
            groups = range(file.metadata.num_row_groups)
            size = sum(file.metadata.row_group(index).total_byte_size for index in groups)
            _ = schema.names  # invalid column names show here
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _not_readable(path, "Parquet", error) from None

    def read(columns: Sequence[str] | None = None) -> Batches:
        try:
            with pq.ParquetFile(str(path)) as file:
                names = None if columns is None else list(columns)
                for batch in file.iter_batches(batch_rows(size, rows), columns=names):
                    yield batch if names is None else batch.select(names)
        except (pa.ArrowException, OSError) as error:
            raise _not_readable(path, "Parquet", error) from None

    return _split(schema, read, Part(path.name, rows, path.stat().st_size))


def read_arrow(path: Path, config: DataConfig, scratch: Path) -> RawSplit:
    """Read an Arrow file (IPC file or stream, Feather), mapped into memory."""
    import pyarrow as pa

    try:
        source = pa.memory_map(str(path))
        try:
            table = pa.ipc.open_file(source).read_all()
        except pa.ArrowInvalid:
            source.seek(0)
            table = pa.ipc.open_stream(source).read_all()
        _ = table.schema.names
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _not_readable(path, "Arrow", error) from None
    split = from_table(table, path.name)
    return _split(table.schema, split.read, Part(path.name, table.num_rows, path.stat().st_size))


def _split(schema: Any, read: Any, part: Part) -> RawSplit:
    import pyarrow as pa

    if not part.rows:
        raise DataError(f"the file has columns ({', '.join(schema.names)}) and no rows.", file=part.file)
    double = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if double:
        raise DataError(f"it has more than one column {double[0]!r}.", file=part.file)
    nested = tuple(field.name for field in schema if pa.types.is_struct(field.type))
    kept = pa.schema([field for field in schema if field.name not in nested], metadata=schema.metadata)

    def read_kept(columns: Sequence[str] | None = None) -> Batches:
        for batch in read(kept.names if columns is None else columns):
            try:
                batch.validate(full=True)
            except pa.ArrowInvalid as error:
                raise DataError(f"its content is damaged: {_first_line(error)}.", file=part.file) from None
            yield batch

    return RawSplit(kept, read_kept, (part,), declared_names(schema.metadata or {}), nested)


def declared_names(metadata: dict[bytes, bytes]) -> dict[str, tuple[str, ...]]:
    """Return label names from the features that the datasets library writes into Arrow and Parquet files."""
    try:
        features = json.loads(metadata.get(b"huggingface", b"{}"))["info"]["features"]
        found = {}
        for column, feature in features.items():
            inner = feature.get("feature", feature) if isinstance(feature, dict) else {}
            if isinstance(inner, dict) and inner.get("_type") == "ClassLabel" and inner.get("names"):
                found[column] = tuple(str(name) for name in inner["names"])
        return found
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def _not_readable(path: Path, kind: str, error: Exception) -> DataError:
    return DataError(f"it cannot be read as {kind}: {_first_line(error)}.", file=path.name)


def _first_line(error: Exception) -> str:
    return neutral(str(error).splitlines()[0].rstrip(".")) if str(error) else type(error).__name__
