from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from whet.data.audit.near_duplicates import LIKENESS, near_duplicates
from whet.data.text_hashes import row_keys

WORD = st.sampled_from([f"w{number}" for number in range(300)])


def pairs(texts: list[str]) -> list[tuple[int, int]]:
    array = pa.array(texts, pa.large_string())
    return [tuple(pair) for pair in near_duplicates(array, row_keys(array, None)).tolist()]


def shingles(text: str) -> set[object]:
    words = text.split()
    return {*words, *pairwise(words)}


def test_one_changed_word_is_found_and_case_does_not_matter() -> None:
    sentence = " ".join(f"word{number}" for number in range(20))
    assert pairs([sentence, "something else that is quite unlike it", sentence.upper().replace("WORD3", "x", 1)]) == [
        (0, 2)
    ]


def test_equal_and_short_texts_are_not_near_duplicates() -> None:
    assert pairs(["not bad at all", "not bad at all !", "A b c d e f g", "a b  c d e f g"]) == []


def test_large_bucket_stays_linear() -> None:
    texts = [f"your order with the number {number} was sent to you today by our team in town" for number in range(3000)]
    assert len({later for _, later in pairs(texts)}) > 2900


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(WORD, min_size=5, max_size=15).map(" ".join), min_size=2, max_size=30))
def test_every_pair_found_is_alike(texts: list[str]) -> None:
    for first, second in pairs(texts):
        one, other = shingles(texts[first]), shingles(texts[second])
        assert len(one & other) / len(one | other) >= LIKENESS


def test_empty_input() -> None:
    assert near_duplicates(pa.array([], pa.large_string()), np.zeros(0, np.uint64)).shape == (0, 2)
