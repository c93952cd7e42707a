"""Keys that say whether two rows have the same text: blind to case, blanks and the order within a pair."""

from __future__ import annotations

from typing import Any

SPREAD = 0x9E3779B97F4A7C15
"""An odd constant that spreads the bits of a hash before it is joined with another."""


def normalised(texts: Any) -> Any:
    """Texts as they are compared: compatible characters joined, lower case, one blank between words."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = pc.utf8_normalize(texts.cast(pa.large_string()), form="NFKC")
    texts = pc.utf8_lower(texts)
    texts = pc.replace_substring_regex(texts, pattern=r"[\pZ\s]+", replacement=" ")
    return pc.utf8_trim(texts, characters=" ")


def text_hashes(texts: Any) -> Any:
    """A 64-bit hash of each normalised text (nulls count as empty)."""
    import numpy as np
    from pandas.util import hash_array

    values = normalised(texts).fill_null("").to_numpy(zero_copy_only=False)
    return hash_array(values.astype(object), categorize=False) if len(values) else np.zeros(0, np.uint64)


def row_keys(texts: Any, pairs: Any | None) -> Any:
    """One 64-bit key a row; a pair and the same pair swapped have the same key."""
    import numpy as np

    first = text_hashes(texts)
    if pairs is None:
        return first
    second = text_hashes(pairs)
    low, high = np.minimum(first, second), np.maximum(first, second)
    return (low * np.uint64(SPREAD)) ^ ((high << np.uint64(31)) | (high >> np.uint64(33)))
