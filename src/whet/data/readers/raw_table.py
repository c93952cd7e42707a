"""The result of every reader: the source's columns, read in batches, never all at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from whet.errors import DataError

BATCH_ROWS = 20_000
"""Rows in memory at a time while a source is read."""

BATCH_BYTES = 32_000_000

Batches = Iterator[Any]
Read = Callable[[Sequence[str] | None], Batches]


@dataclass(frozen=True)
class Part:
    """A file of a split, and its number of rows."""

    file: str
    rows: int
    bytes: int = 0


@dataclass(frozen=True)
class RawSplit:
    """One split of a source: typed columns that can be read repeatedly, batch by batch."""

    schema: Any
    """A pyarrow schema; text files have strings only, so that `001` and `NA` stay as they are."""
    read: Read
    """Yields record batches in source order, with the named columns only."""
    parts: tuple[Part, ...]
    class_names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of integer labels, for columns that declare them."""
    nested: tuple[str, ...] = ()
    """Columns that hold objects: listed in messages, never read."""
    inner: tuple[str, ...] = ()
    """Dotted names inside those objects: columns if the settings name them, as in `--text content.text`."""
    notes: tuple[str, ...] = ()
    """The reader's findings about the files, which the user may overrule."""
    surrogates: int = 0
    """Number of lone surrogates replaced, because UTF-8 cannot encode them."""
    unfolded: RawSplit | None = None
    """Return the same rows with the fields of objects as columns, for a source whose own columns are not enough."""
    label_hint: tuple[str, ...] = ()
    """Flags with which the file would have a label column, if it has none."""
    kept: Any = None
    """Numbers of the remaining rows, counted from 1 in the source; None for all of them."""

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts) if self.kept is None else len(self.kept)

    @property
    def columns(self) -> list[str]:
        return list(self.schema.names)

    def numbers(self, start: int, count: int) -> Any:
        """Return the source numbers of `count` rows from this index on."""
        import numpy as np

        return np.arange(start + 1, start + count + 1) if self.kept is None else self.kept[start : start + count]

    def number(self, place: int) -> int:
        return int(self.numbers(place, 1)[0])

    def only(self, kept: Any) -> RawSplit:
        """Return the same split with only these rows, given by sorted numbers."""

        def read(columns: Sequence[str] | None = None) -> Batches:
            import numpy as np

            before = 0
            for batch in self.read(columns):
                own = self.numbers(before, batch.num_rows)
                before += batch.num_rows
                if not len(own):
                    continue
                first, behind = np.searchsorted(kept, [own[0], own[-1] + 1])
                if behind - first == len(own):
                    yield batch
                elif behind > first:
                    yield batch.take(np.searchsorted(own, kept[first:behind]))

        return replace(self, read=read, kept=kept)

    def where(self, row: int) -> tuple[str, int]:
        """Return the file of a row of the split (counted from 1), and the row's number in that file."""
        for part in self.parts:
            if row <= part.rows:
                return part.file, row
            row -= part.rows
        return (self.parts[-1].file if self.parts else ""), row

    def error(
        self, message: str, hint: str = "", *, row: int | None = None, column: str = "", go_on: Sequence[str] = ()
    ) -> DataError:
        """Return a data error that names file, row and column."""
        if row is None:
            file = self.parts[0].file if len(self.parts) == 1 else ""
            return DataError(message, hint, file=file, column=column, go_on=go_on)
        file, own_row = self.where(row)
        return DataError(message, hint, file=file, row=own_row, column=column, go_on=go_on)


def batch_rows(size: int, rows: int) -> int:
    """Return the rows per batch for data of this size: fewer if they are long."""
    return max(1, min(BATCH_ROWS, BATCH_BYTES * rows // max(size, 1)))


class Spill:
    """An Arrow file in a temporary folder: a streaming reader writes it once, later passes read it."""

    def __init__(self, path: Path) -> None:
        self.path, self.rows = path, 0
        self._writer: Any = None
        self.schema: Any = None

    def write(self, batch: Any) -> None:
        import pyarrow as pa

        if self._writer is None:
            self.schema = batch.schema
            self._writer = pa.ipc.new_file(str(self.path), batch.schema)
        self._writer.write_batch(batch)
        self.rows += batch.num_rows

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def read(self, columns: Sequence[str] | None = None) -> Batches:
        """Plain reads instead of a memory map, whose pages would count as memory of the process."""
        import pyarrow as pa

        if self.schema is None:
            return
        options = None
        if columns is not None:
            options = pa.ipc.IpcReadOptions(included_fields=[self.schema.names.index(c) for c in columns])
        with pa.OSFile(str(self.path)) as file:
            reader = pa.ipc.open_file(file, options=options)
            for index in range(reader.num_record_batches):
                batch = reader.get_batch(index)
                yield batch if columns is None else batch.select(list(columns))


def from_table(table: Any, file: str, class_names: dict[str, tuple[str, ...]] | None = None) -> RawSplit:
    """Return a split from a pyarrow table in memory (or mapped)."""

    def read(columns: Sequence[str] | None = None) -> Batches:
        wanted = table if columns is None else table.select(list(columns))
        yield from wanted.to_batches(max_chunksize=batch_rows(table.nbytes, table.num_rows))

    return RawSplit(table.schema, read, (Part(file, table.num_rows),), class_names or {})


def join(splits: Sequence[RawSplit]) -> RawSplit:
    """Join several files of one split; they must have the same columns."""
    import pyarrow as pa

    first = splits[0]
    for other in splits[1:]:
        if set(other.columns) != set(first.columns):
            raise other.error(
                f"its columns are {', '.join(other.columns)}, but {first.parts[0].file} has "
                f"{', '.join(first.columns)}.",
                "Files that are read together must have the same columns.",
            )
    try:
        schema = pa.unify_schemas(
            [pa.schema([split.schema.field(name) for name in first.columns]) for split in splits],
            promote_options="permissive",
        )
    except (pa.ArrowTypeError, pa.ArrowInvalid) as error:
        raise DataError(
            f"{first.parts[0].file} and the files read with it differ in a column's type: {error}."
        ) from None

    def read(columns: Sequence[str] | None = None) -> Batches:
        names = first.columns if columns is None else list(columns)
        target = pa.schema([schema.field(name) for name in names])
        for split in splits:
            for batch in split.read(names):
                yield batch if batch.schema.equals(target) else batch.cast(target)

    return RawSplit(
        schema,
        read,
        tuple(part for split in splits for part in split.parts),
        first.class_names,
        tuple(dict.fromkeys(name for split in splits for name in split.nested)),
        tuple(dict.fromkeys(name for split in splits for name in split.inner)),
        tuple(dict.fromkeys(note for split in splits for note in split.notes)),
        sum(split.surrogates for split in splits),
        _joined_insides(splits),
        first.label_hint,
    )


def _joined_insides(splits: Sequence[RawSplit]) -> RawSplit | None:
    insides = [split.unfolded for split in splits if split.unfolded is not None]
    return join(insides) if len(insides) == len(splits) else None
