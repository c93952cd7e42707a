"""Reads the rows of a split from disk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class SplitRows:
    """The columns text, pair (for pairs), label (if requested) and row.

    This is not a `datasets.Dataset`: importing that library takes a second.
    """

    table: pa.Table
    file: Path | None = None
    """The file that the table is mapped from."""

    @classmethod
    def open(cls, file: Path) -> SplitRows:
        import pyarrow as pa

        return cls(pa.ipc.open_stream(pa.memory_map(str(file))).read_all(), file)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def column_names(self) -> list[str]:
        return list(self.table.column_names)

    def column(self, name: str) -> list[Any]:
        """Return all values of a column; None if there is no such column."""
        return list(self.table.column(name).to_pylist()) if name in self.column_names else []

    def row(self, index: int) -> dict[str, Any]:
        return dict(self.table.slice(index, 1).to_pylist()[0])

    def taken(self, indices: Any) -> SplitRows:
        """Return only these rows, in this order."""
        return SplitRows(self.table.take(indices))

    def batches(self) -> Iterator[Any]:
        """Yield all rows by plain reads: pages of a memory map would count as memory of the process."""
        import pyarrow as pa

        if self.file is None:
            yield from self.table.to_batches()
            return
        with pa.OSFile(str(self.file)) as source:
            yield from pa.ipc.open_stream(source)
