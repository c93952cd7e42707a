"""Finds equal texts in all splits by one sort: leaks, repetitions and conflicts are read from it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from whet.data.audit.columns import SplitColumns
from whet.task import Task


@dataclass(frozen=True)
class DuplicateIndex:
    """The rows of all splits, sorted so that equal texts are neighbours, in the order of splits and rows.

    Every array holds one small number per row: at ten million rows the audit still fits into a laptop.
    """

    splits: tuple[SplitColumns, ...]
    order: Any
    """Row numbers, counted through all splits."""
    starts: Any
    """The index in `order` at which each text starts."""
    owners: Any
    """The split of each row, in this order."""
    present: Any
    """For each text the splits that contain it, one bit each."""

    def rows_also_in(self, first: int, second: int) -> Any:
        """Return rows of the second split whose text is also in the first."""
        import numpy as np

        both = (1 << first) | (1 << second)
        shared = np.repeat((self.present & both) == both, self._sizes())
        return self._own(second, shared & (self.owners == second))

    def repetitions(self, split: int) -> Any:
        """Return rows whose text occurs earlier in the same split."""
        import numpy as np

        again = np.ones(len(self.order), bool)
        again[self.starts] = False
        again[1:] &= self.owners[1:] == self.owners[:-1]
        return self._own(split, again & (self.owners == split))

    def conflicts(self, task: Task) -> tuple[int, Any]:
        """Return the number of texts with different labels, and their rows, counted through all splits.

        Numbers differ if they are more than a quarter of their range apart, since ratings are never exactly equal.
        """
        import numpy as np

        known = [split.labels[split.has_label] for split in self.splits if split.has_label.any()]
        if not known:
            return 0, np.zeros(0, np.int64)
        allowance = 0.0
        if task.kind == "regression":
            allowance = float(max(part.max() for part in known) - min(part.min() for part in known)) / 4
        labels = [split.label_codes() for split in self.splits if split.labels is not None]
        kind = np.result_type(*(part.dtype for part in labels)) if labels else np.dtype(np.int64)
        low, high = (
            np.concatenate([self._filled(split, kind, end) for split in self.splits])[self.order]
            for end in ("least", "most")
        )
        # Rows without a label are filled so that they change neither the minimum nor the maximum.
        least = np.minimum.reduceat(high, self.starts)
        most = np.maximum.reduceat(low, self.starts)
        apart = most > least if allowance == 0 else np.maximum(most, least) - least > allowance
        labelled = np.concatenate([split.has_label for split in self.splits])[self.order]
        return int(apart.sum()), np.sort(self.order[np.repeat(apart, self._sizes()) & labelled])

    def by_split(self, rows: Any) -> dict[str, Any]:
        """Split rows counted through all splits into sorted row numbers per split."""
        found, before = {}, 0
        for split in self.splits:
            inside = rows[(rows >= before) & (rows < before + len(split))]
            found[split.name] = inside - before
            before += len(split)
        return found

    def _filled(self, split: SplitColumns, kind: Any, end: str) -> Any:
        import numpy as np

        limits = np.finfo(kind) if kind.kind == "f" else np.iinfo(kind)
        filler = limits.min if end == "least" else limits.max
        if split.labels is None:
            return np.full(len(split), filler, kind)
        return np.where(split.has_label, split.label_codes().astype(kind), filler)

    def _sizes(self) -> Any:
        import numpy as np

        return np.diff(np.concatenate([self.starts, [len(self.order)]]))

    def _own(self, split: int, mask: Any) -> Any:
        """Return the row numbers within one split, in order."""
        import numpy as np

        before = sum(len(other) for other in self.splits[:split])
        return np.sort(self.order[mask]) - before

    def place(self, row: int) -> tuple[str, int]:
        for split in self.splits:
            if row < len(split):
                return split.name, int(split.rows[row])
            row -= len(split)
        raise IndexError(row)


def find_duplicates(splits: dict[str, SplitColumns]) -> DuplicateIndex:
    """Build the index by one stable sort over the keys of all splits, which then keep only the keys of their first
    rows."""
    import numpy as np

    sizes = [len(split) for split in splits.values()]
    keys = np.empty(sum(sizes), np.uint64)
    done = 0
    for name, split in splits.items():
        keys[done : done + len(split)] = split.keys
        done += len(split)
        splits[name] = replace(split, keys=split.keys[: split.head.num_rows].copy())
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    places = np.int32 if len(order) < 2**31 else np.int64
    order = order.astype(places)
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]])) if len(keys) else order
    owners = np.repeat(np.arange(len(sizes), dtype=np.uint8), sizes)[order]
    present = np.bitwise_or.reduceat(np.uint8(1) << owners, starts) if len(keys) else owners
    return DuplicateIndex(tuple(splits.values()), order, starts.astype(places), owners, present)
