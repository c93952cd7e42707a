"""Texts are encoded in portions: bounded by bytes and by number, and never none."""

from __future__ import annotations

import pyarrow as pa
import pytest

from whet.data.tokens import words


@pytest.mark.parametrize(
    ("texts", "portions"),
    [
        (["aaaa", "bbbb", "ccc", "d", "e", "f"], [2, 3, 1]),
        (["a" * 50, "b" * 50, "c"], [1, 1, 1]),
        (["", "", "", "", ""], [3, 2]),
        (["aaaaa", "aaaaa", "a"], [2, 1]),
        ([], []),
    ],
)
def test_portions_hold_so_many_bytes_and_texts(
    texts: list[str], portions: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words, "ENCODE_BYTES", 10)
    monkeypatch.setattr(words, "ENCODE_TEXTS", 3)
    found = list(words._portions(pa.array(texts, pa.large_string())))
    assert [len(portion) for portion in found] == portions
    assert [text for portion in found for text in portion] == texts
