"""Splits off validation and test rows: equal shares of every label, and no text in two splits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from whet.errors import DataError, shortened_list
from whet.task import Task

TRAIN, VALIDATION, TEST = 0, 1, 2
NAMES = ("train", "validation", "test")
LARGE = 200_000
"""Rows per label up to which the shares are exact."""
BINS = 10
"""Regression labels are cut into this many groups of equal size, and each is split alike."""


def assign(keys: Any, labels: Any, task: Task, *, validation_share: float, test_share: float, seed: int) -> Any:
    """Return for each row 0 (train), 1 (validation) or 2 (test).

    Rows with the same key (the same text, or a pair and its swap) go to the same split. The result depends only on
    the seed, the keys and the labels. Rows of labels that are too rare for every split are for training. With fewer
    than two labels that can be split, there is nothing to measure.
    """
    import numpy as np

    shares = {VALIDATION: validation_share, TEST: test_share}
    wanted = {side: share for side, share in shares.items() if share > 0}
    strata = strata_of(labels, task)
    sizes = np.bincount(strata)
    if task.kind in ("binary", "multiclass"):
        _refuse_too_rare(keys, strata, task, len(wanted) + 1)
    if sizes.max() <= LARGE:
        return _assign_exactly(keys, strata, wanted, seed)
    # Many rows are split at random, which needs no memory and misses the share by a fraction of a percent.
    small = np.flatnonzero(sizes[strata] <= LARGE)
    sides = _by_chance(keys, wanted, seed)
    if len(small):
        sides[small] = _assign_exactly(keys[small], strata[small], wanted, seed)
        known, first = np.unique(keys[small], return_index=True)
        place = np.minimum(np.searchsorted(known, keys), len(known) - 1)
        same = known[place] == keys
        sides[same] = sides[small][first][place[same]]
    return sides


def _by_chance(keys: Any, wanted: dict[int, float], seed: int) -> Any:
    """Return a split for each key, by a number between 0 and 1 that depends on the key and the seed."""
    import numpy as np

    mixed = keys.astype(np.uint64) ^ np.uint64(seed % 2**32 * 0x9E3779B9 + 1)
    for shift in (33, 29, 32):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(0xFF51AFD7ED558CCD)
    chance = (mixed >> np.uint64(11)).astype(np.float64) / 2.0**53
    sides = np.zeros(len(keys), np.int8)
    start = 0.0
    for side, share in wanted.items():
        sides[(chance >= start) & (chance < start + share)] = side
        start += share
    return sides


def _assign_exactly(keys: Any, strata: Any, wanted: dict[int, float], seed: int) -> Any:
    import numpy as np

    groups, first, members = np.unique(keys, return_index=True, return_inverse=True)
    sizes = np.bincount(members, minlength=len(groups))
    group_strata = strata[first]
    sides = np.zeros(len(groups), np.int8)
    generator = np.random.default_rng(seed)
    for stratum in np.unique(group_strata):
        own = np.flatnonzero(group_strata == stratum)
        # In the order of first appearance, so that the shuffle does not depend on the hash's values.
        own = generator.permutation(own[np.argsort(first[own])])
        if len(own) > len(wanted):
            sides[own] = _deal(sizes[own], wanted)
    return sides[members]


def _deal(sizes: Any, wanted: dict[int, float]) -> Any:
    """Return splits for the shuffled groups of one stratum: each requested split gets its share of the rows."""
    import numpy as np

    sides = np.zeros(len(sizes), np.int8)
    total = int(sizes.sum())
    for side, share in wanted.items():
        target = max(1, round(share * total))
        free = np.flatnonzero(sides == TRAIN)
        # A text that fills a whole split by its repetitions stays in training, if there are others.
        fitting = free[sizes[free] <= target]
        candidates = fitting if len(fitting) else free
        filled = np.cumsum(sizes[candidates]) - sizes[candidates]
        chosen = candidates[filled < target]
        others = len(free) - len(chosen)
        if others < 1:
            chosen = chosen[: len(free) - 1]
        sides[chosen] = side
    return sides


def strata_of(labels: Any, task: Task) -> Any:
    """Return the stratum of each row: its class, the rarest of several labels, or the decile of a number."""
    import numpy as np

    if task.kind == "multilabel":
        counts = labels.sum(axis=0)
        rarity = np.where(labels > 0, counts, np.inf)
        return np.where(labels.any(axis=1), rarity.argmin(axis=1), labels.shape[1])
    if task.kind == "regression":
        ranks = np.argsort(np.argsort(labels, kind="stable"), kind="stable")
        return ranks * min(BINS, max(1, len(labels) // 20)) // max(1, len(labels))
    return labels


def _refuse_too_rare(keys: Any, strata: Any, task: Task, needed: int) -> None:
    """Raise if fewer than two labels have as many different texts as there are splits."""
    import numpy as np

    present = np.unique(strata)
    texts = {int(label): _few_texts(keys[strata == label], needed) for label in present}
    rare = {task.labels[label]: count for label, count in texts.items() if count < needed}
    if len(present) - len(rare) >= min(2, len(present)):
        return
    listed = shortened_list([f"{name!r} ({count})" for name, count in rare.items()], quoted=False)
    raise DataError(
        f"labels have too few different texts to be split in {needed}: {listed}.",
        "Add rows, merge the labels (--rare other), or give your own files: --validation FILE --test FILE.",
        go_on=("--rare", "other"),
    )


def _few_texts(keys: Any, most: int) -> int:
    """Return the number of different texts; a long column is searched only for `most`."""
    import numpy as np

    head = len(np.unique(keys[: 100 * most]))
    return head if head >= most else len(np.unique(keys))


def describe(sides: Any, made: Sequence[str]) -> str:
    """Return the line about how the rows were split."""
    import numpy as np

    counts = np.bincount(sides, minlength=3)
    parts = [f"{counts[side]:,} {NAMES[side]}" for side in range(3) if counts[side]]
    return (
        f"Split made, the same share of each label: {', '.join(parts)} "
        f"(give {' and '.join(made)} yourself with {' '.join('--' + name for name in made)})."
    )
