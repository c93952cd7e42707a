"""A tokenizer's statistics of a split: tokens, unknown ones, truncation, texts that become equal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whet.data.example_files import SplitRows
from whet.data.text_hashes import row_keys
from whet.data.tokens.table import Tokens

BLOCK_TOKENS = 2_000_000
SAME_ROWS = 100_000
"""Number of rows of a split that are searched for texts that become equal."""


@dataclass(frozen=True)
class Alphabet:
    """The tokens of a tokenizer that do not represent any text."""

    unknown: int | None
    """The token for text without a token of its own; None if that cannot occur."""
    special: tuple[int, ...]
    """Tokens that frame or pad a row."""

    @classmethod
    def of(cls, tokenizer: Any) -> Alphabet:
        """Read it from a tokenizer of transformers. A token that also frames rows tells nothing about the text."""
        frame = {getattr(tokenizer, f"{name}_token_id", None) for name in ("cls", "sep", "pad", "mask", "bos", "eos")}
        unknown = getattr(tokenizer, "unk_token_id", None)
        special = tuple(int(each) for each in tokenizer.all_special_ids if each != unknown or each in frame)
        return cls(None if unknown in frame else unknown, special)


@dataclass(frozen=True)
class TokenFacts:
    """Counts over the rows of a split or of a sample."""

    rows: int = 0
    tokens: int = 0
    """Tokens of the texts that the model reads, without the frame."""
    unknown: int = 0
    unknown_rows: int = 0
    """Rows with no other tokens."""
    cut_rows: int = 0
    cut_tokens: int = 0
    window_rows: int = 0
    """Rows that are read in several windows."""
    windows: int = 0
    """Number of these windows."""
    same: int = 0
    """Different texts with equal tokens."""
    same_places: tuple[int, ...] = ()
    """Up to five such rows, by their numbers in the source."""
    sampled: bool = False

    @property
    def unread(self) -> float:
        """Share of the text that is cut off."""
        return self.cut_tokens / max(self.tokens + self.cut_tokens, 1)

    def as_dict(self, words: float) -> dict[str, Any]:
        """Return plain numbers; `words` is the mean number of words per row."""
        whole = (self.tokens + self.cut_tokens) / max(self.rows, 1)
        return {
            "rows": self.rows,
            "tokens": self.tokens,
            "per_word": round(whole / words, 2) if words else None,
            "unknown": round(self.unknown / max(self.tokens, 1), 4),
            "unknown_rows": self.unknown_rows,
            "cut_rows": self.cut_rows,
            "unread": round(self.unread, 4),
            "window_rows": self.window_rows,
            "windows": self.windows,
            "same": self.same,
            "sampled": self.sampled,
        }


def token_facts(tokens: Tokens, split: SplitRows, alphabet: Alphabet, *, sampled: bool = False) -> TokenFacts:
    """Count over every token once; `split` has the rows of the tokens."""
    read, unknown, unknown_rows = unknown_tokens(tokens, alphabet)
    same, places = _same(tokens, split)
    cut = tokens.truncation
    windows = tokens.windows(np.arange(len(tokens), dtype=np.int64))
    return TokenFacts(
        rows=len(tokens),
        tokens=read,
        unknown=unknown,
        unknown_rows=unknown_rows,
        cut_rows=cut.rows,
        cut_tokens=cut.tokens,
        window_rows=int((windows > 1).sum()),
        windows=int(windows[windows > 1].sum()),
        same=same,
        same_places=places,
        sampled=sampled,
    )


def unknown_tokens(tokens: Tokens, alphabet: Alphabet) -> tuple[int, int, int]:
    """Return the number of tokens of the texts, of unknown ones, and of rows with no others."""
    read, unknown, unknown_rows, texts_begin = 0, 0, 0, tokens.begins
    kinds = _kinds(alphabet)
    for start, end in _row_blocks(texts_begin):
        ids = np.asarray(tokens.ids[texts_begin[start] : texts_begin[end]])
        found = kinds.take(ids, mode="clip")
        begins = texts_begin[start:end] - texts_begin[start]
        texts = np.add.reduceat((found != FRAME).astype(np.int64), begins)
        strange = np.add.reduceat((found == UNKNOWN).astype(np.int64), begins)
        read, unknown = read + int(texts.sum()), unknown + int(strange.sum())
        unknown_rows += int(((strange == texts) & (strange > 0)).sum())
    return read, unknown, unknown_rows


KNOWN, FRAME, UNKNOWN = 0, 1, 2


def _kinds(alphabet: Alphabet) -> NDArray[np.uint8]:
    """Return the kind of each token, with one more entry than the special tokens need, for all others."""
    marked = [*alphabet.special, *([] if alphabet.unknown is None else [alphabet.unknown])]
    kinds = np.zeros(max(marked, default=0) + 2, np.uint8)
    kinds[list(alphabet.special)] = FRAME
    if alphabet.unknown is not None:
        kinds[alphabet.unknown] = UNKNOWN
    return kinds


def _row_blocks(offsets: NDArray[np.int64]) -> Iterable[tuple[int, int]]:
    """Yield ranges of rows with about a million tokens each."""
    start, rows = 0, len(offsets) - 1
    while start < rows:
        end = int(np.searchsorted(offsets, offsets[start] + BLOCK_TOKENS, side="right")) - 1
        end = min(max(end, start + 1), rows)
        yield start, end
        start = end


def _same(tokens: Tokens, split: SplitRows) -> tuple[int, tuple[int, ...]]:
    """Return the number of different texts with the tokens of another one, and five of their rows."""
    rows = min(len(tokens), SAME_ROWS)
    if rows < 2:
        return 0, ()
    hashes = row_hashes(tokens, rows)
    _, group, size = np.unique(hashes, return_inverse=True, return_counts=True)
    members = np.flatnonzero(size[group] > 1)
    if not len(members):
        return 0, ()
    table = split.table.take(members)
    pairs = table.column("pair").combine_chunks() if "pair" in split.column_names else None
    texts = row_keys(table.column("text").combine_chunks(), pairs)
    both = np.stack([group[members].astype(np.uint64), texts], axis=1)
    distinct, first = np.unique(both, axis=0, return_index=True)
    _, inverse, texts_a_group = np.unique(distinct[:, 0], return_inverse=True, return_counts=True)
    merged = np.sort(first[texts_a_group[inverse] > 1])
    numbers = table.column("row").take(merged[:5]).to_pylist() if "row" in table.column_names else []
    return len(merged), tuple(int(number) for number in numbers)


def row_hashes(tokens: Tokens, rows: int) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each of the first rows: of its tokens and their positions."""
    parts = [_row_hashes(tokens, start, end) for start, end in _row_blocks(tokens.begins[: rows + 1])]
    return np.concatenate([np.zeros(0, np.uint64), *parts])


def _row_hashes(tokens: Tokens, start: int, end: int) -> NDArray[np.uint64]:
    begins = tokens.begins[start : end + 1]
    offsets = begins - begins[0]
    ids = np.asarray(tokens.ids[begins[0] : begins[-1]]).astype(np.uint64)
    place = np.arange(len(ids)) - np.repeat(offsets[:-1], np.diff(offsets))
    mixed = ids + place.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(1)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return np.add.reduceat(mixed ^ (mixed >> np.uint64(31)), offsets[:-1])
