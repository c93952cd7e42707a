from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from whet.data.example_files import SplitRows
from whet.data.tokens.facts import Alphabet, token_facts
from whet.data.tokens.table import Tokens, Truncation

PLAIN = Alphabet(unknown=1, special=(0, 2, 3))


def facts(rows: list[list[int]], texts: list[str], truncation: Truncation | None = None, alphabet: Alphabet = PLAIN):
    ids = np.concatenate(rows).astype(np.int32)
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    split = SplitRows(pa.table({"text": texts, "row": list(range(1, len(texts) + 1))}))
    return token_facts(Tokens(ids, offsets, None, None, truncation or Truncation(), ""), split, alphabet)


def test_unknown_tokens_are_counted_without_the_frame() -> None:
    found = facts([[2, 1, 3], [2, 9, 1, 700, 3]], ["x", "a y b"])
    assert (found.tokens, found.unknown, found.unknown_rows) == (4, 2, 1)


def test_counting_in_blocks_is_counting_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [[2, 1, 3], [2, 9, 1, 700, 3], [2, 9, 3], [2, 1, 3]]
    expected = facts(rows, list("abcd"))
    monkeypatch.setattr("whet.data.tokens.facts.BLOCK_TOKENS", 4)
    assert facts(rows, list("abcd")) == expected


def test_a_tokenizer_that_knows_every_byte_has_no_unknown_tokens() -> None:
    assert facts([[2, 5, 3]], ["x"], alphabet=Alphabet(None, (2, 3))).unknown == 0


def test_texts_that_become_equal_are_counted_and_the_same_text_twice_is_not() -> None:
    found = facts([[2, 1, 3], [2, 7, 3], [2, 1, 3], [2, 7, 3]], ["ก", "same", "ข", "Same"])
    assert (found.same, found.same_places) == (2, (1, 3))


def test_the_order_of_tokens_tells_rows_apart() -> None:
    assert facts([[2, 7, 8, 3], [2, 8, 7, 3]], ["a b", "b a"]).same == 0


def test_share_of_the_text_that_is_not_read() -> None:
    assert facts([[2, 7, 3]], ["a"], Truncation(rows=1, tokens=3)).unread == 0.75


def test_a_token_that_also_frames_rows_is_not_unknown_text(tiny_model_folder: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model_folder)
    assert Alphabet.of(tokenizer).unknown == tokenizer.unk_token_id
    tokenizer.unk_token = tokenizer.sep_token
    assert Alphabet.of(tokenizer).unknown is None
