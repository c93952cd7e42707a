"""The columns of a split for the audit: a few numbers per row, and the texts of the first rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from whet.data.example_files import SplitRows
from whet.data.text_hashes import keys_of, normalised
from whet.data.text_repair import Damage, find_damage
from whet.task import Task

HEAD_ROWS = 100_000
MAX_PAIRS = 10
HEAD_BYTES = 50_000_000
"""The part of a split whose texts are checked (for near-duplicates and words that give the label away)."""


@dataclass(frozen=True)
class SplitColumns:
    """Numpy arrays with one entry per row, and an Arrow table of the first rows."""

    name: str
    keys: Any
    """Equal for equal texts; after duplicates are found, only those of the first rows are kept."""
    rows: Any
    labels: Any
    """int16 [n] with -1 for none, float32 [n] with NaN for none, int8 [n, k]; None without a column."""
    has_label: Any
    words: dict[str, Any]
    """Words per row, of the text and of its pair."""
    head: Any
    damage: Mapping[str, Damage] = field(default_factory=dict)
    """Rows with repairable texts, by kind of damage."""

    def __len__(self) -> int:
        return len(self.rows)

    def only(self, chosen: Any) -> SplitColumns:
        """Return the rows selected by a mask."""
        return replace(
            self,
            keys=self.keys[chosen],
            rows=self.rows[chosen],
            labels=None if self.labels is None else self.labels[chosen],
            has_label=self.has_label[chosen],
            words={name: counts[chosen] for name, counts in self.words.items()},
            head=self.head.filter(chosen[: self.head.num_rows]),
        )

    def places(self, indices: Any) -> tuple[tuple[str, int], ...]:
        """Return the first five of these rows, counted from 1."""
        return tuple((self.name, int(row)) for row in self.rows[indices[:5]])

    def normalised(self, column: str, rows: int) -> Any:
        """Return the texts of the first rows in normalised form."""
        return normalised(_one(self.head.column(column).slice(0, rows)))

    def joined_texts(self) -> Any:
        """Return the texts of the first rows, each followed by its pair."""
        import pyarrow as pa
        import pyarrow.compute as pc

        parts = [_one(self.head.column(name)) for name in self.words]
        return parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, pa.scalar(" ", pa.large_string()))

    def label_codes(self) -> Any:
        """Return numbers that are equal for equal labels, in all splits."""
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
            counts = self.labels[self.has_label].sum(axis=0, dtype=np.int64)
        else:
            counts = np.bincount(self.labels[self.has_label], minlength=len(task.labels))
        return {name: int(count) for name, count in zip(task.labels, counts, strict=True)}

    def summary(self, task: Task) -> dict[str, Any]:
        """Return rows, labels and lengths for the report."""
        found: dict[str, Any] = {"rows": len(self.rows), "unlabelled": int((~self.has_label).sum())}
        if task.kind == "regression" and self.labels is not None and self.has_label.any():
            known = self.labels[self.has_label]
            found["range"] = [float(known.min()), float(known.mean()), float(known.max())]
        else:
            found["labels"] = self.label_counts(task)
        if task.kind == "multilabel" and self.labels is not None and self.has_label.any():
            found |= several_labels(self.labels[self.has_label], task.labels)
        found["words"] = {name: _distribution(counts) for name, counts in self.words.items()}
        return found


def several_labels(labels: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return how many labels rows have, and the pairs of labels that occur together most often."""
    import numpy as np
    from scipy import sparse

    counts = labels.sum(axis=1, dtype=np.int64)
    facts = {"mean": round(float(counts.mean()), 3), "most": int(counts.max()), "none": float((counts == 0).mean())}
    chosen = sparse.csr_matrix(labels, dtype=np.int32)
    shared = np.asarray((chosen.T @ chosen).todense())
    own = np.diagonal(shared)
    first, second = np.triu_indices(len(names), 1)
    order = np.argsort(-shared[first, second], kind="stable")[:MAX_PAIRS]
    pairs = []
    for one, other in zip(first[order], second[order], strict=True):
        rows = int(shared[one, other])
        rarer, commoner = (one, other) if own[one] <= own[other] else (other, one)
        if rows:
            share = round(rows / int(own[rarer]), 4)
            pairs.append({"label": names[rarer], "beside": names[commoner], "rows": rows, "share": share})
    return {"labels_a_row": facts, "together": pairs}


def _distribution(words: Any) -> dict[str, float]:
    import numpy as np

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
    """Return a chunked column as one array, with 64-bit offsets for any size."""
    import pyarrow as pa

    chunks = [chunk.cast(pa.large_string()) for chunk in column.chunks]
    return pa.concat_arrays(chunks) if chunks else pa.array([], pa.large_string())


def load_columns(name: str, split: SplitRows, task: Task) -> SplitColumns:
    """Read a split in one pass into arrays of the right size, without copies."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    count = len(split)
    texts: list[str] = [column for column in ("text", "pair") if column in split.column_names]
    keys, rows, has_label = np.empty(count, np.uint64), np.empty(count, np.uint32), np.zeros(count, bool)
    words = {column: np.empty(count, np.int32) for column in texts}
    labels = _empty_labels(task, count) if "label" in split.column_names else None
    head: list[Any] = []
    damage: dict[str, Damage] = {}
    done, room = 0, HEAD_BYTES
    for batch in split.batches():
        here = slice(done, done + batch.num_rows)
        plain = {column: normalised(batch.column(column)) for column in texts}
        keys[here] = keys_of(plain["text"], plain.get("pair"))
        rows[here] = batch.column("row").to_numpy()
        for column in texts:
            find_damage(batch.column(column), rows[here], damage)
        for column in texts:
            # Normalised texts have one space between words.
            words[column][here] = pc.count_substring(plain[column], " ").to_numpy(zero_copy_only=False) + 1
        if labels is not None:
            labels[here], has_label[here] = _labels(batch.column("label"), task)
        if room > 0 and done < HEAD_ROWS:
            head.append(batch.select(texts))
            room -= batch.nbytes
        done += batch.num_rows
    table = pa.Table.from_batches(head) if head else pa.table({column: pa.array([], pa.string()) for column in texts})
    return SplitColumns(name, keys, rows, labels, has_label, words, table.slice(0, HEAD_ROWS), damage)


def _empty_labels(task: Task, count: int) -> Any:
    import numpy as np

    if task.kind == "multilabel":
        return np.empty((count, len(task.labels)), np.int8)
    # There are at most a thousand labels, and possibly very many rows.
    return np.empty(count, np.float32 if task.kind == "regression" else np.int16)


def _labels(column: Any, task: Task) -> tuple[Any, Any]:
    import numpy as np
    import pyarrow as pa

    present = ~np.asarray(column.is_null().to_numpy(zero_copy_only=False), bool)
    if pa.types.is_list(column.type):
        labels = np.zeros((len(column), len(task.labels)), np.int8)
        labels[present] = column.drop_null().flatten().to_numpy().reshape(-1, len(task.labels))
        return labels, present
    filler = -1 if pa.types.is_integer(column.type) else float("nan")
    return column.fill_null(filler).to_numpy(zero_copy_only=False), present
