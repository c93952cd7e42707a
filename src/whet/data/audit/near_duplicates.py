"""Finds near-duplicates: MinHash signatures, buckets by band, and an exact comparison within buckets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from whet.data.audit.columns import SplitColumns
from whet.data.text_hashes import SPREAD, normalised

LIKENESS = 0.8
"""Smallest share of words and word pairs in common."""
MIN_WORDS = 5
"""Shorter texts are similar too easily: "not bad at all" and "not bad"."""
BANDS, BAND_ROWS = 12, 5
"""Texts with a similarity of 0.8 share a bucket with a probability of 99%, of 0.5 with 31%."""
NEIGHBOURS = 3
"""Each text of a bucket is compared with this many following ones and with the first, so that the work stays linear."""
SEED = 42
CHUNK = 10_000


@dataclass(frozen=True)
class NearPairs:
    """Pairs of similar texts in the first rows of all splits."""

    pairs: Any
    """Two columns of rows, counted through the first rows of all splits."""
    starts: dict[str, tuple[int, int]]
    """Start and end of each split's rows."""

    @classmethod
    def of(cls, splits: Mapping[str, SplitColumns]) -> NearPairs:
        import numpy as np
        import pyarrow as pa

        starts, before = {}, 0
        for name, split in splits.items():
            starts[name] = (before, before + split.head.num_rows)
            before += split.head.num_rows
        keys = np.concatenate([split.keys[: split.head.num_rows] for split in splits.values()])
        texts = pa.concat_arrays([split.joined_texts() for split in splits.values()])
        return cls(near_duplicates(texts, keys), starts)

    def between(self, earlier: str, later: str) -> Any:
        """Return the pairs between two splits, as row numbers within each."""
        import numpy as np

        found, offsets = np.ones(len(self.pairs), bool), []
        for column, name in enumerate((earlier, later)):
            start, end = self.starts[name]
            found &= (self.pairs[:, column] >= start) & (self.pairs[:, column] < end)
            offsets.append(start)
        return self.pairs[found] - np.array(offsets)


def near_duplicates(texts: Any, keys: Any) -> Any:
    """Return pairs (i, j), i < j, of rows with similar but not equal texts, as an array [n, 2].

    `texts` is an Arrow array; `keys` are equal for equal texts, of which only the first is compared.
    """
    import numpy as np

    _, first = np.unique(keys, return_index=True)
    chosen = np.sort(first)
    hashes, offsets, signatures = _signed(texts.take(chosen))
    # n words make 2n - 1 shingles.
    long_enough = np.flatnonzero(np.diff(offsets) >= 2 * MIN_WORDS - 1)
    if len(long_enough) < 2:
        return np.zeros((0, 2), np.int64)
    signatures = signatures[long_enough]
    candidates = _candidates(signatures)
    agreeing = _agreement(signatures, candidates)
    # The estimate has a deviation of about 0.05 here, so no pair near the limit is lost.
    likely = long_enough[candidates[agreeing >= LIKENESS - 0.2]]

    @lru_cache(maxsize=4096)
    def shingles(row: int) -> frozenset[int]:
        return frozenset(hashes[offsets[row] : offsets[row + 1]].tolist())

    alike = [pair for pair in likely.tolist() if _likeness(shingles(pair[0]), shingles(pair[1])) >= LIKENESS]
    return chosen[np.array(alike, np.int64).reshape(-1, 2)]


def _signed(texts: Any) -> tuple[Any, Any, Any]:
    """Return all texts' shingles in one array, the start of each text, and the signatures."""
    import numpy as np
    from rensa import RMinHash

    hashes, sizes, signatures = [], [], []
    for start in range(0, len(texts), CHUNK):
        flat, lengths = _shingles(texts.slice(start, CHUNK))
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.uint64)
        matrix = RMinHash.digest_matrix_from_flat_token_hashes(flat, offsets, BANDS * BAND_ROWS, SEED)
        signatures.append(np.array(matrix.to_rows(), np.uint32))
        # Half of each hash is enough for comparing two texts, and takes half the memory.
        hashes.append(flat.astype(np.uint32))
        sizes.append(lengths)
    if not hashes:
        return np.zeros(0, np.uint32), np.zeros(1, np.int64), np.zeros((0, BANDS * BAND_ROWS), np.uint32)
    return np.concatenate(hashes), np.cumsum(np.concatenate([[0], *sizes])), np.concatenate(signatures)


def _shingles(texts: Any) -> tuple[Any, Any]:
    """Return hashes of each text's words and word pairs, text after text, and their number per text."""
    import numpy as np
    import pyarrow.compute as pc
    from pandas.util import hash_array

    words = pc.utf8_split_whitespace(normalised(texts))
    lengths = pc.list_value_length(words).fill_null(0).to_numpy().astype(np.int64)
    encoded = words.flatten().dictionary_encode()
    distinct = encoded.dictionary.to_numpy(zero_copy_only=False).astype(object)
    if not len(distinct):
        return np.zeros(0, np.uint64), lengths
    single = hash_array(distinct, categorize=False)[encoded.indices.to_numpy()]
    rows = np.repeat(np.arange(len(lengths)), lengths)
    inside = rows[1:] == rows[:-1]
    double = (single[:-1] * np.uint64(SPREAD) ^ single[1:])[inside]
    order = np.argsort(np.concatenate([rows, rows[:-1][inside]]), kind="stable")
    return np.concatenate([single, double])[order], lengths + np.maximum(lengths - 1, 0)


def _candidates(signatures: Any) -> Any:
    """Return pairs of rows that share a bucket."""
    import numpy as np

    count = len(signatures)
    found = []
    for band in range(BANDS):
        bucket = np.zeros(count, np.uint64)
        for column in range(band * BAND_ROWS, (band + 1) * BAND_ROWS):
            bucket = (bucket ^ signatures[:, column]) * np.uint64(SPREAD)
        order = np.argsort(bucket, kind="stable")
        ordered = bucket[order]
        for step in range(1, NEIGHBOURS + 1):
            same = ordered[step:] == ordered[:-step]
            found.append(_coded(order[:-step][same], order[step:][same], count))
        starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
        firsts = np.repeat(order[starts], np.diff(np.concatenate([starts, [count]])))
        found.append(_coded(firsts, order, count)[firsts != order])
    coded = np.unique(np.concatenate(found))
    return np.stack([coded // count, coded % count], axis=1)


def _coded(one: Any, other: Any, count: int) -> Any:
    """Encode two row numbers as one, the smaller first: much faster to sort than pairs."""
    import numpy as np

    return np.minimum(one, other) * count + np.maximum(one, other)


def _agreement(signatures: Any, candidates: Any) -> Any:
    """Return the share of equal signature entries, which estimates the similarity."""
    import numpy as np

    agreeing = np.zeros(len(candidates))
    for start in range(0, len(candidates), 200_000):
        part = candidates[start : start + 200_000]
        agreeing[start : start + len(part)] = (signatures[part[:, 0]] == signatures[part[:, 1]]).mean(axis=1)
    return agreeing


def _likeness(one: frozenset[int], other: frozenset[int]) -> float:
    """Return the number of common shingles over that of all shingles."""
    common = len(one & other)
    return common / (len(one) + len(other) - common)
