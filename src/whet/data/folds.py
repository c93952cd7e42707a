"""Folds for cross-validation: equal shares of every label, and no text in two folds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from whet.data.splits import strata_of
from whet.errors import DataError, UsageError, shortened_list

if TYPE_CHECKING:
    from whet.data.examples import Examples
    from whet.task import Task

USUAL = 5
FEWEST = 2
FEW_ROWS = 1_000
"""Below this many training rows, `folds = auto` uses cross-validation."""
KEPT = -1
"""The fold of rows that are never held out, because no other text has their label."""


def assign_folds(keys: Any, labels: Any, k: int, seed: int) -> Any:
    """Return the fold of each row, 0 to k - 1, or -1 for a row that always stays in training.

    Rows with the same key are in the same fold, and each fold has its share of every label (`labels` are integers,
    for example from `splits.strata_of`). A label with only one key cannot be learnt without its rows, so they are
    never held out. The result depends on the arguments alone.
    """
    import numpy as np

    groups, first, members = np.unique(keys, return_index=True, return_inverse=True)
    sizes = np.bincount(members, minlength=len(groups))
    group_labels = np.asarray(labels)[first]
    folds = np.full(len(groups), KEPT, np.int64)
    totals = np.zeros(k, np.int64)
    generator = np.random.default_rng(seed)
    for label in np.unique(group_labels):
        own = np.flatnonzero(group_labels == label)
        if len(own) < FEWEST:
            continue
        # In the order of first appearance, so that the shuffle does not depend on the keys' values.
        own = generator.permutation(own[np.argsort(first[own])])
        counts = np.zeros(k, np.int64)
        for group in own[np.argsort(-sizes[own], kind="stable")].tolist():
            fold = int(np.lexsort((totals, counts))[0])
            folds[group] = fold
            counts[fold] += sizes[group]
            totals[fold] += sizes[group]
    return folds[members]


def fold_numbers(examples: Examples, folds: int | str, seed: int) -> tuple[Any, int]:
    """Return the fold of each training row and the number of folds; `auto` takes up to 5, as the labels allow.

    Raises if the rows or the requested number do not work.
    """
    import numpy as np

    rows, task = examples.rows["train"], examples.task
    labels = strata_of(_label_array(rows, task), task)
    exact = _keys(rows)
    distinct = len(np.unique(exact))
    if distinct < FEWEST:
        said = "There is 1 training row" if len(rows) == 1 else f"All {len(rows):,} training rows have the same text"
        raise DataError(f"{said}: nothing can be learnt and measured.", "Add rows.")
    groups = _with_near_ones(rows, exact, USUAL if folds == "auto" else int(folds))
    texts = _texts_by_label(groups, labels)
    smallest = _smallest(texts, task)
    if folds == "auto":
        k = min(USUAL, smallest)
    else:
        k = int(folds)
        if k > smallest:
            whose = "the rarest label has" if task.labels else "there are"
            raise UsageError(
                f"--folds is {k}, and {whose} {smallest} different texts.",
                f"Choose at most {smallest} folds, or add rows.",
            )
    return assign_folds(groups, labels, k, seed), k


def _smallest(texts: dict[int, int], task: Task) -> int:
    """Return the number of different texts of the rarest measurable label; raise if it is below two."""
    enough = {label: count for label, count in texts.items() if count >= FEWEST}
    if task.kind not in ("binary", "multiclass"):
        return max(FEWEST, min(enough.values(), default=FEWEST)) if task.kind == "multilabel" else sum(texts.values())
    if len(enough) < 2:
        rare = shortened_list(
            [f"{task.labels[label]!r} ({n})" for label, n in texts.items() if n < FEWEST], quoted=False
        )
        raise DataError(
            f"labels have fewer than {FEWEST} different texts: {rare}. Nothing can be held out of them to measure.",
            "Add rows, or leave the labels out.",
        )
    return min(enough.values())


def _texts_by_label(groups: Any, labels: Any) -> dict[int, int]:
    """Return the number of groups of rows per label; a group counts for the label of its first row."""
    import numpy as np

    _, first = np.unique(groups, return_index=True)
    found, counts = np.unique(labels[first], return_counts=True)
    texts = dict.fromkeys(map(int, np.unique(labels)), 0)
    return texts | dict(zip(map(int, found), map(int, counts), strict=True))


def _keys(rows: Any) -> Any:
    import numpy as np

    from whet.data.text_hashes import row_keys

    found = [
        row_keys(batch.column("text"), batch.column("pair") if "pair" in batch.schema.names else None)
        for batch in rows.batches()
    ]
    return np.concatenate(found) if found else np.zeros(0, np.uint64)


def _with_near_ones(rows: Any, keys: Any, k: int) -> Any:
    """Return one number for the rows of each text and its near-duplicates.

    Texts from one template are all similar. If such a chain would fill more than half a fold, only equal texts are
    grouped.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from whet.data.audit.near_duplicates import near_duplicates

    exact = np.unique(keys, return_inverse=True)[1].astype(np.int64)
    names = [name for name in ("text", "pair") if name in rows.column_names]
    head = rows.table.select(names).slice(0, 100_000)
    texts = [pc.fill_null(head[name].combine_chunks().cast(pa.large_string()), "") for name in names]
    joined = texts[0] if len(texts) == 1 else pc.binary_join_element_wise(*texts, pa.scalar(" ", pa.large_string()))
    pairs = near_duplicates(joined, keys[: len(joined)])
    if not len(pairs):
        return exact
    joint = _joined(exact, exact[pairs])
    sizes = np.bincount(joint)
    return np.where(sizes[joint] > max(2, len(joint) // (2 * k)), exact + len(sizes), joint)


def _joined(groups: Any, pairs: Any) -> Any:
    """Return group numbers after joining all pairs, however long the chain."""
    import numpy as np

    parent = np.arange(groups.max() + 1)

    def root(group: int) -> int:
        while parent[group] != group:
            parent[group] = parent[parent[group]]
            group = int(parent[group])
        return group

    for one, other in pairs.tolist():
        first, second = sorted((root(one), root(other)))
        parent[second] = first
    roots = np.array([root(group) for group in range(len(parent))])
    return roots[groups]


def _label_array(rows: Any, task: Task) -> Any:
    from whet.data.tokens.table import label_array

    return label_array(rows.table.column("label").combine_chunks(), task.kind)
