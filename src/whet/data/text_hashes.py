"""Keys that say whether two rows have the same text: blind to case, blanks and the order within a pair."""

from __future__ import annotations

from typing import Any
from unicodedata import normalize

STRANGE_BLANKS = r"[\pZ\s]{2,}|[\t-\r\x{1680}\x{2028}\x{2029}]"
SPREAD = 0x9E3779B97F4A7C15
"""An odd constant that spreads the bits of a hash before it is joined with another."""


def normalised(texts: Any) -> Any:
    """Texts as they are compared: compatible characters joined, lower case, one blank between words."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = texts.cast(pa.large_string())
    ascii_only = pc.fill_null(pc.string_is_ascii(texts), True)
    if not pc.all(ascii_only).as_py():
        # Arrow has no case folding, which makes one of GROSS and groß; Python's takes its time, so only here.
        foreign = pc.invert(ascii_only)
        folded = [normalize("NFKC", text).casefold() for text in texts.filter(foreign).to_pylist()]
        texts = pc.replace_with_mask(texts, foreign, pa.array(folded, pa.large_string()))
    texts = pc.ascii_lower(texts)
    # Only what is not already a single blank: replacing every blank by itself takes ten times as long.
    texts = pc.replace_substring_regex(texts, pattern=STRANGE_BLANKS, replacement=" ")
    return pc.utf8_trim(texts, characters=" ")


def text_hashes(texts: Any) -> Any:
    """A 64-bit hash of each text that was normalised (nulls count as empty)."""
    import numpy as np
    from pandas.util import hash_array

    values = texts.fill_null("").to_numpy(zero_copy_only=False)
    return hash_array(values.astype(object), categorize=False) if len(values) else np.zeros(0, np.uint64)


def row_keys(texts: Any, pairs: Any | None) -> Any:
    """One 64-bit key a row; a pair and the same pair swapped have the same key."""
    return keys_of(normalised(texts), None if pairs is None else normalised(pairs))


def keys_of(texts: Any, pairs: Any | None) -> Any:
    """The same for texts that were normalised before."""
    import numpy as np

    first = text_hashes(texts)
    if pairs is None:
        return first
    second = text_hashes(pairs)
    low, high = np.minimum(first, second), np.maximum(first, second)
    return (low * np.uint64(SPREAD)) ^ ((high << np.uint64(31)) | (high >> np.uint64(33)))
