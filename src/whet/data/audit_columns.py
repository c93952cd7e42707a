"""A split as the audit sees it: arrays instead of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from whet.data.columns import Task
from whet.data.text_keys import normalised, row_keys

WORDS = r"\S+"


@dataclass(frozen=True)
class SplitColumns:
    """Keys, labels and row numbers of a split as numpy arrays; its texts stay in Arrow."""

    name: str
    table: Any
    keys: Any
    rows: Any
    labels: Any
    """int64 [n] with -1 for none, float32 [n] with NaN for none, float32 [n, k]; None without a column."""
    has_label: Any

    def places(self, indices: Any) -> tuple[tuple[str, int], ...]:
        """The first five of these rows, as a person would count them."""
        return tuple((self.name, int(row)) for row in self.rows[indices[:5]])

    def all_places(self, mask: Any) -> list[tuple[str, int]]:
        return [(self.name, int(row)) for row in self.rows[mask]]

    def head(self, count: int) -> SplitColumns:
        labels = None if self.labels is None else self.labels[:count]
        return SplitColumns(
            self.name,
            self.table.slice(0, count),
            self.keys[:count],
            self.rows[:count],
            labels,
            self.has_label[:count],
        )

    def normalised(self, column: str) -> Any:
        return normalised(_one(self.table.column(column)))

    def joined_texts(self) -> Any:
        """The text, with its pair behind it."""
        import pyarrow as pa
        import pyarrow.compute as pc

        parts = [_one(self.table.column(name)).cast(pa.large_string()) for name in self.texts]
        return parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, pa.scalar(" ", pa.large_string()))

    @property
    def texts(self) -> list[str]:
        return [name for name in ("text", "pair") if name in self.table.column_names]

    def label_codes(self) -> Any:
        """Numbers that differ where labels differ, alike in every split."""
        import numpy as np

        if self.labels.ndim == 1:
            return self.labels
        packed = np.packbits(self.labels > 0, axis=1)
        return np.array([hash(row.tobytes()) for row in packed], np.int64)

    def label_counts(self, task: Task) -> dict[str, int]:
        import numpy as np

        if self.labels is None or task.kind in ("regression", "unlabelled"):
            return {}
        if task.kind == "multilabel":
            counts = self.labels[self.has_label].sum(axis=0)
        else:
            counts = np.bincount(self.labels[self.has_label], minlength=len(task.labels))
        return {name: int(count) for name, count in zip(task.labels, counts, strict=True)}

    def summary(self, task: Task) -> dict[str, Any]:
        """Rows, labels and lengths, for the report."""
        found: dict[str, Any] = {"rows": len(self.rows), "unlabelled": int((~self.has_label).sum())}
        if task.kind == "regression" and self.labels is not None and self.has_label.any():
            known = self.labels[self.has_label]
            found["range"] = [float(known.min()), float(known.mean()), float(known.max())]
        else:
            found["labels"] = self.label_counts(task)
        found["words"] = {name: _lengths(_one(self.table.column(name))) for name in self.texts}
        return found


def _lengths(texts: Any) -> dict[str, float]:
    import numpy as np
    import pyarrow.compute as pc

    words = pc.count_substring_regex(texts, WORDS).to_numpy(zero_copy_only=False)
    if not len(words):
        return {}
    middle, high = np.percentile(words, [50, 95])
    return {
        "mean": round(float(words.mean()), 1),
        "p50": round(float(middle), 1),
        "p95": round(float(high), 1),
        "max": int(words.max()),
    }


def _one(column: Any) -> Any:
    """One array out of a chunked column, with 64-bit offsets so that any size fits."""
    import pyarrow as pa

    chunks = [chunk.cast(pa.large_string()) for chunk in column.chunks]
    return pa.concat_arrays(chunks) if chunks else pa.array([], pa.large_string())


def load_columns(name: str, split: Any) -> SplitColumns:
    """Keys, labels and row numbers of a datasets.Dataset that has no rows selected or formatted away."""
    import numpy as np

    table = split.with_format(None).data.table
    keys = []
    for batch in table.to_batches():
        pair = batch.column("pair") if "pair" in table.column_names else None
        keys.append(row_keys(batch.column("text"), pair))
    rows = table.column("row").to_numpy()
    labels, has_label = _labels(table, len(rows))
    return SplitColumns(name, table, np.concatenate([np.zeros(0, np.uint64), *keys]), rows, labels, has_label)


def _labels(table: Any, rows: int) -> tuple[Any, Any]:
    import numpy as np
    import pyarrow as pa

    if "label" not in table.column_names:
        return None, np.zeros(rows, bool)
    column = table.column("label").combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    has_label = ~np.asarray(column.is_null().to_numpy(zero_copy_only=False), bool)
    if pa.types.is_list(column.type):
        width = len(column.drop_null()[0]) if has_label.any() else 1
        labels = np.zeros((rows, width), np.float32)
        labels[has_label] = column.drop_null().flatten().to_numpy().reshape(-1, width)
        return labels, has_label
    filler = -1 if pa.types.is_integer(column.type) else float("nan")
    return column.fill_null(filler).to_numpy(zero_copy_only=False), has_label
