from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whet.data.examples import load_examples
from whet.data.folds import KEPT, assign_folds, fold_numbers
from whet.errors import DataError, UsageError

SENTENCE = "the quick brown fox jumps over the lazy dog near the old stone bridge at dawn"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 2)), min_size=12, max_size=200), st.integers(0, 9))
def test_no_text_is_in_two_folds(rows: list[tuple[int, int]], seed: int) -> None:
    keys, labels = (np.array(column) for column in zip(*rows, strict=True))
    folds = assign_folds(keys, labels, 3, seed)
    for key in np.unique(keys):
        assert len(np.unique(folds[keys == key])) == 1


def test_every_fold_gets_its_share_of_every_label() -> None:
    labels = np.array([0] * 60 + [1] * 25 + [2] * 5)
    folds = assign_folds(np.arange(90), labels, 5, 1)
    assert [np.bincount(folds[labels == label]).tolist() for label in range(3)] == [[12] * 5, [5] * 5, [1] * 5]


def test_folds_are_level_where_labels_do_not_divide() -> None:
    labels = np.repeat(np.arange(8), 7)
    sizes = np.bincount(assign_folds(np.arange(56), labels, 5, 1))
    assert sizes.max() - sizes.min() <= 1


def test_a_text_repeated_often_takes_no_other_label_from_its_fold() -> None:
    keys, labels = np.array([0] * 10 + [*range(1, 21)]), np.array([0] * 20 + [1] * 10)
    folds = assign_folds(keys, labels, 5, 1)
    assert np.bincount(folds[labels == 1]).tolist() == [2] * 5


def test_the_only_text_of_a_label_is_never_held_out() -> None:
    labels = np.array([0] * 10 + [1] * 10 + [2, 2])
    keys = np.array([*range(20), 20, 20])
    folds = assign_folds(keys, labels, 5, 1)
    assert (folds[:20] != KEPT).all()
    assert (folds[20:] == KEPT).all()


def test_the_seed_decides_and_not_the_values_of_the_keys() -> None:
    labels = np.arange(40) % 2
    one, same, other = (assign_folds(np.arange(40), labels, 5, seed) for seed in (1, 1, 2))
    assert (one == same).all()
    assert (one != other).any()
    assert (assign_folds(np.arange(40)[::-1] * 7 + 3, labels, 5, 1) == one).all()


def folds_of(rows: list[tuple[str, str]], folds: int | str = "auto") -> tuple[list[int], int]:
    table = [{"text": words, "label": label} for words, label in rows]
    numbers, k = fold_numbers(load_examples({"train": table}, whole_below=100), folds, 1)
    return numbers.tolist(), k


def rows_of(**counts: int) -> list[tuple[str, str]]:
    letters = "abcdefghijklmnopqrstuvwxyz"
    return [(f"{label} text {letter}", label) for label, many in counts.items() for letter in letters[:many]]


def test_the_rarest_label_limits_how_many_folds_there_are() -> None:
    assert folds_of(rows_of(bad=10, good=10))[1] == 5
    assert folds_of(rows_of(bad=10, good=3))[1] == 3
    assert folds_of(rows_of(bad=10, good=10, rare=1))[1] == 5


def test_near_duplicates_are_in_one_fold() -> None:
    rows = [*rows_of(bad=10, good=10), (SENTENCE, "bad"), (f"{SENTENCE} today", "bad")]
    folds, _ = folds_of(rows)
    assert folds[-1] == folds[-2] != KEPT


def test_texts_of_one_template_are_not_all_in_one_fold() -> None:
    rows = [(f"{SENTENCE} number {n}", ("bad", "good")[n % 2]) for n in range(30)]
    assert len(set(folds_of(rows)[0])) == 5


@pytest.mark.parametrize(
    ("rows", "folds", "error", "said"),
    [
        ([("one text", "bad"), ("one text", "good")], "auto", DataError, "All 2 training rows have the same text"),
        (rows_of(bad=10, good=1), "auto", DataError, r"fewer than 2 different texts: 'good' \(1\)"),
        (rows_of(bad=10, good=3), 4, UsageError, "folds is 4, and the rarest label has 3 different texts"),
    ],
)
def test_rows_that_no_fold_can_hold_are_refused(
    rows: list[tuple[str, str]], folds: int | str, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        folds_of(rows, folds)
