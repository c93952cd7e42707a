from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data_files import labelled, load, text
from whet.data.splits import _deal, assign, strata_of
from whet.errors import DataError
from whet.task import Task

BINARY = Task("binary", ("a", "b"))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 1)), min_size=60, max_size=300), st.integers(0, 9))
def test_no_text_is_on_two_sides(rows: list[tuple[int, int]], seed: int) -> None:
    # Two texts of each label are sure to be there in plenty, so that the split can be made.
    rows = [*rows, *((100 + n, n % 2) for n in range(40))]
    keys, labels = (np.array(column) for column in zip(*rows, strict=True))
    sides = assign(keys, labels, BINARY, validation_share=0.1, test_share=0.1, seed=seed)
    by_key: dict[int, set[int]] = {}
    for key, side in zip(keys.tolist(), sides.tolist(), strict=True):
        by_key.setdefault(key, set()).add(side)
    assert all(len(found) == 1 for found in by_key.values())
    assert set(sides.tolist()) == {0, 1, 2}


def test_every_label_gets_its_share() -> None:
    labels = np.array([0] * 900 + [1] * 100)
    sides = assign(np.arange(1000), labels, BINARY, validation_share=0.1, test_share=0.2, seed=1)
    assert Counter(zip(labels.tolist(), sides.tolist(), strict=True)) == {
        (0, 0): 630, (0, 1): 90, (0, 2): 180, (1, 0): 70, (1, 1): 10, (1, 2): 20,
    }  # fmt: skip


def test_seed_decides_and_nothing_else() -> None:
    keys, labels = np.arange(200), np.arange(200) % 2
    one, same, other = (
        assign(keys, labels, BINARY, validation_share=0.1, test_share=0.1, seed=seed) for seed in (1, 1, 2)
    )
    assert (one == same).all()
    assert (one != other).any()


def test_a_text_repeated_often_stays_in_training() -> None:
    keys = np.concatenate([np.zeros(500, np.int64), np.arange(1, 501)])
    sides = assign(keys, np.arange(1000) % 2, BINARY, validation_share=0.1, test_share=0.1, seed=0)
    assert set(sides[:500].tolist()) == {0}


def test_numbers_are_spread_alike() -> None:
    values = np.linspace(0, 5, 1000).astype(np.float32)
    sides = assign(np.arange(1000), values, Task("regression", ()), validation_share=0.1, test_share=0.1, seed=3)
    assert abs(values[sides == 1].mean() - 2.5) < 0.15


def test_several_labels_each_reach_validation() -> None:
    labels = np.zeros((300, 3), np.float32)
    labels[:, 0], labels[::10, 1], labels[::30, 2] = 1, 1, 1
    sides = assign(
        np.arange(300), labels, Task("multilabel", ("a", "b", "c")), validation_share=0.2, test_share=0, seed=3
    )
    assert labels[sides == 1].any(axis=0).all()


def test_swapped_pairs_stay_together() -> None:
    pairs = [(text(n), text(n + 100)) for n in range(50)]
    swapped = [(second, first) for first, second in pairs]
    examples = load(([*pairs, *swapped], ["a", "b"] * 50))
    owner: dict[frozenset[str], str] = {}
    for name, split in examples.splits.items():
        for row in split:
            assert owner.setdefault(frozenset((row["text"], row["pair"])), name) == name


def test_rows_of_labels_that_are_too_rare_to_split_are_for_training() -> None:
    rows = [*labelled(40), (text(50), "rare"), (text(51), "rare"), (text(52), "once")]
    examples = load(tuple(zip(*rows, strict=True)))
    rare = {examples.task.labels.index(name) for name in ("rare", "once")}
    where = [name for name, split in examples.rows.items() for label in split.column("label") if label in rare]
    assert where == ["train"] * 3


def test_without_two_labels_that_can_be_split_all_rare_ones_are_listed() -> None:
    rows = [*((text(n), "common") for n in range(40)), *((text(90 + n), f"rare {n}") for n in range(12))]
    with pytest.raises(DataError, match=r"too few .* in 3: 'rare 0' \(1\), .*'rare 5' \(1\) and 4 more"):
        load(tuple(zip(*rows, strict=True)))


def test_shares_and_counts_are_said() -> None:
    examples = load(tuple(zip(*labelled(200), strict=True)))
    assert "160 train, 20 validation, 20 test" in examples.messages[-1]
    assert "--validation --test" in examples.messages[-1]


def test_validation_is_taken_from_training_where_only_test_is_given() -> None:
    train, test = (
        {"text": [t for t, _ in rows], "label": [y for _, y in rows]} for rows in (labelled(100), labelled(10))
    )
    examples = load({"train": train, "test": test})
    assert examples.splits.num_rows == {"train": 90, "validation": 10, "test": 10}
    assert examples.origin["splits"] == {"train": "given", "validation": "made", "test": "given"}


def test_no_test_is_made_where_validation_is_given() -> None:
    train, other = (
        {"text": [t for t, _ in rows], "label": [y for _, y in rows]} for rows in (labelled(100), labelled(10))
    )
    assert set(load({"train": train, "validation": other}).splits) == {"train", "validation"}


def test_many_rows_are_split_by_chance_with_the_same_promises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whet.data.splits.LARGE", 1000)
    rng = np.random.default_rng(0)
    labels = np.concatenate([np.zeros(50_000, np.int16), np.ones(200, np.int16)])
    keys = rng.integers(0, 40_000, len(labels)).astype(np.uint64)
    sides = assign(keys, labels, BINARY, validation_share=0.1, test_share=0.2, seed=3)
    assert abs((sides == 1).mean() - 0.1) < 0.01
    assert abs((sides == 2).mean() - 0.2) < 0.01
    assert set(sides[labels == 1].tolist()) == {0, 1, 2}
    owner: dict[int, int] = {}
    assert all(owner.setdefault(key, side) == side for key, side in zip(keys.tolist(), sides.tolist(), strict=True))


@pytest.mark.parametrize(
    ("sizes", "wanted", "sides"),
    [
        ([5, 5, 5], {1: 0.9}, [1, 1, 0]),
        ([1] * 10, {1: 0.2, 2: 0.3}, [1, 1, 2, 2, 2, 0, 0, 0, 0, 0]),
        ([8, 1, 1], {1: 0.2}, [0, 1, 1]),
        ([8, 9, 7], {1: 0.1}, [1, 0, 0]),
    ],
)
def test_each_side_gets_its_share_and_training_keeps_a_text(
    sizes: list[int], wanted: dict[int, float], sides: list[int]
) -> None:
    assert _deal(np.array(sizes), wanted).tolist() == sides


def test_rows_of_several_labels_are_split_by_the_rarest_of_them() -> None:
    labels = np.array([[0, 1, 1], [1, 0, 0], [1, 1, 0], [0, 0, 0], [1, 0, 0]])
    assert strata_of(labels, Task("multilabel", ("x", "y", "z"))).tolist() == [2, 0, 1, 3, 0]


@pytest.mark.parametrize(("rows", "tenths"), [(400, 10), (100, 5), (19, 1)])
def test_numbers_are_split_by_their_rank(rows: int, tenths: int) -> None:
    values = np.random.default_rng(0).permutation(rows) ** 2
    strata = strata_of(values, Task("regression", ()))
    assert np.bincount(strata).tolist() == [rows // tenths] * tenths
    assert (np.diff(strata[np.argsort(values)]) >= 0).all()
