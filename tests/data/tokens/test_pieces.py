"""What is read of long texts: nothing is lost between windows, and every row is what the tokenizer would have made."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import ByT5Tokenizer

from tests.data.tokens.test_table import bert, make_split, run
from whet.data.tokens.encoders import choose_encoder
from whet.data.tokens.pieces import OVERLAP_PART, choose_pieces
from whet.data.tokens.table import TextTokenizer
from whet.errors import UsageError

LONG = "one two three four five six"
MORE = "cats dogs birds"


def ids(text: str) -> list[int]:
    return bert()(text, add_special_tokens=False)["input_ids"]  # type: ignore[no-any-return]


@given(st.lists(st.integers(0, 90), min_size=1, max_size=6), st.integers(1, 30))
def test_windows_read_every_token_and_overlap(whole: list[int], room: int) -> None:
    lengths = np.array(whole)
    kept = np.minimum(lengths, room)
    pieces = choose_pieces([lengths], [kept], "windows", from_left=False)
    ((starts, counts),) = pieces.parts[0]
    for text, length in enumerate(whole):
        own = pieces.owner == text
        read = [range(start, start + count) for start, count in zip(starts[own], counts[own], strict=True)]
        assert set().union(*read) == set(range(length))
        assert all(len(window) == min(length, room) for window in read)  # none is short
        shared = [one.stop - other.start for one, other in pairwise(read)]
        assert min(shared, default=room) >= room // OVERLAP_PART
        assert pieces.windows is not None
        assert pieces.windows[text] == len(read)


@pytest.mark.parametrize("tokenizer", [bert(), ByT5Tokenizer()], ids=["Rust", "Python"])
def test_each_window_is_framed_like_any_row(tokenizer: Any) -> None:
    tokens = run(make_split([LONG, MORE]), tokenizer, max_length=9, long="windows")
    assert len(tokens) == 2
    for row in range(len(tokens.row_lengths)):
        text = tokenizer.decode(tokens.row(row), skip_special_tokens=True)
        assert tokens.row(row).tolist() == tokenizer(text)["input_ids"]
    parts = [tokenizer.decode(tokens.row(row), skip_special_tokens=True) for row in tokens.rows_of(np.array([0]))]
    assert parts[0][:3] == LONG[:3]
    assert parts[-1][-3:] == LONG[-3:]
    assert tokens.truncation.tokens == 0


def test_head_and_tail_share_a_row() -> None:
    tokens = run(make_split([LONG, MORE]), bert(), max_length=7, long="head-tail")
    words = ids(LONG)
    assert tokens.row(0).tolist() == [101, *words[:3], *words[-2:], 102]
    assert tokens.row(1).tolist() == bert()(MORE)["input_ids"]
    assert tokens.texts is None
    assert tokens.truncation.tokens == len(words) - 5


def test_both_texts_of_a_pair_move_on() -> None:
    tokens = run(make_split([LONG], [MORE]), bert(), max_length=8, long="windows")
    rows = [tokens.row(row).tolist() for row in range(len(tokens.row_lengths))]
    assert rows[0][:2] == [101, ids(LONG)[0]]
    assert rows[-1][-2:] == [ids(MORE)[-1], 102]
    read = set().union(*rows)
    assert read == {101, 102, *ids(LONG), *ids(MORE)}


def test_a_text_that_fits_is_read_as_ever() -> None:
    texts = make_split([MORE, "", "a"])
    whole = run(texts, bert(), max_length=16)
    for long in ("head-tail", "windows"):
        tokens = run(texts, bert(), max_length=16, long=long)
        assert tokens.ids.tolist() == whole.ids.tolist()
        assert tokens.offsets.tolist() == whole.offsets.tolist()
        assert tokens.types.tolist() == whole.types.tolist()


def test_texts_to_predict_are_cut_like_those_to_train_on() -> None:
    texts = [LONG, MORE, "", LONG + MORE]
    trained = run(make_split(texts), bert(), max_length=6, long="windows")
    asked = TextTokenizer(bert(), 6, "windows")(texts)
    assert asked.texts is not None
    assert asked.ids.tolist() == trained.ids.tolist()
    assert asked.texts.tolist() == trained.texts.tolist()


def test_the_share_that_is_not_read_is_counted() -> None:
    tokenize = TextTokenizer(bert(), 5)
    assert tokenize.unread == 0
    tokenize([LONG])
    assert tokenize.unread == pytest.approx((len(ids(LONG)) - 3) / len(ids(LONG)))


def test_texts_taken_out_keep_their_windows_and_labels() -> None:
    tokens = run(make_split([MORE, LONG, "a"], labels=[0, 1, 0]), bert(), max_length=5, long="windows")
    taken = tokens.taken(np.array([2, 1]))
    assert taken.labels.tolist() == [0, 1]
    assert taken.lengths.tolist() == tokens.lengths[[2, 1]].tolist()
    assert [taken.row(row).tolist() for row in taken.rows_of(np.array([1]))] == [
        tokens.row(row).tolist() for row in tokens.rows_of(np.array([1]))
    ]


def test_the_cache_keeps_ways_of_reading_apart(tmp_path: Any) -> None:
    split = make_split([LONG])
    head = run(split, bert(), max_length=5, cache=tmp_path)
    windows = run(split, bert(), max_length=5, cache=tmp_path, long="windows")
    again = run(split, bert(), max_length=5, cache=tmp_path, long="windows")
    assert len({head.fingerprint, windows.fingerprint}) == 2
    assert again.texts.tolist() == windows.texts.tolist()
    assert len(head.row_lengths) == 1 < len(windows.row_lengths)


def test_a_tokenizer_with_rows_of_its_own_kind_is_refused() -> None:
    class Odd(ByT5Tokenizer):  # type: ignore[misc]
        def build_inputs_with_special_tokens(self, first: list[int], second: Any = None) -> list[int]:
            return [7, *first[::-1], 1]

    with pytest.raises(UsageError, match="in a way of its own"):
        choose_encoder(Odd(), pa.array(["abc"], pa.large_string()), None, 16, "windows")
