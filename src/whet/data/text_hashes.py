"""Hashes that are equal for equal texts, ignoring case, white space and the order within a pair."""

from __future__ import annotations

from typing import Any
from unicodedata import normalize

STRANGE_BLANKS = r"[\pZ\s]{2,}|[\t-\r\x{1680}\x{2028}\x{2029}]"
SPREAD = 0x9E3779B97F4A7C15
"""An odd constant that spreads the bits of a hash before it is combined with another."""


def normalised(texts: Any) -> Any:
    """Return normalised texts: compatible characters joined, lower case, one space between words."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = texts.cast(pa.large_string())
    ascii_only = pc.fill_null(pc.string_is_ascii(texts), True)
    if not pc.all(ascii_only).as_py():
        # Arrow has no case folding, which joins GROSS and groß; Python's is slow, so it is used only here.
        foreign = pc.invert(ascii_only)
        folded = [normalize("NFKC", text).casefold() for text in texts.filter(foreign).to_pylist()]
        texts = pc.replace_with_mask(texts, foreign, pa.array(folded, pa.large_string()))
    texts = pc.ascii_lower(texts)
    # Only white space other than a single space: replacing every space takes ten times as long.
    texts = pc.replace_substring_regex(texts, pattern=STRANGE_BLANKS, replacement=" ")
    return pc.utf8_trim(texts, characters=" ")


def text_hashes(texts: Any) -> Any:
    """Return a 64-bit hash of each normalised text (nulls count as empty)."""
    import numpy as np
    from pandas.util import hash_array

    values = texts.fill_null("").to_numpy(zero_copy_only=False)
    return hash_array(values.astype(object), categorize=False) if len(values) else np.zeros(0, np.uint64)


def row_keys(texts: Any, pairs: Any | None) -> Any:
    """Return one 64-bit key per row; a pair and its swap have the same key."""
    return keys_of(normalised(texts), None if pairs is None else normalised(pairs))


def keys_of(texts: Any, pairs: Any | None) -> Any:
    """Return the same for normalised texts."""
    import numpy as np

    first = text_hashes(texts)
    if pairs is None:
        return first
    second = text_hashes(pairs)
    low, high = np.minimum(first, second), np.maximum(first, second)
    return (low * np.uint64(SPREAD)) ^ ((high << np.uint64(31)) | (high >> np.uint64(33)))
