"""Converts texts to token ids and encodes each distinct word once.

A tokenizer that first splits its input at white space gives a word the same ids at every position. Natural text
repeats its words. So Arrow cuts a chunk of texts into words, the tokenizer encodes each distinct word once, and numpy
restores the order. For other tokenizers the "words" are whole texts, which still saves the work for repeated ones.
The ids always equal those of encoding each text by itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from whet.data.tokens.array_files import slice_indices

# `spaces`: white space separates words and has no token (BERT). `leading`: a word is encoded with the space before it
# (GPT-2, RoBERTa). `whole`: unknown, so texts are not cut.
Cut = Literal["spaces", "leading", "whole"]

# An encoding takes some hundred bytes per token until its ids are read: few at a time limit the memory.
ENCODE_BYTES = 1_000_000
ENCODE_TEXTS = 20_000

# Below this many texts, encoding directly is faster than looking their words up.
FEW_TEXTS = 32

# Words up to this length are kept for later chunks: some tens of megabytes.
KNOWN_WORDS = 500_000
KNOWN_BYTES = 64

# Marks the cuts; a chunk that contains this character is not cut.
_MARK = "\x00"
# White space other than a single space between words, where GPT-2's splitting depends on the context.
_TANGLED = r"^ |  |[\t-\r\x{1c}-\x{1f}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}]"


@dataclass(frozen=True)
class Flat:
    """Token ids of several texts, one after another, with the number per text."""

    ids: NDArray[np.int32]
    lengths: NDArray[np.int64]

    @property
    def starts(self) -> NDArray[np.int64]:
        return np.cumsum(self.lengths) - self.lengths


_NOTHING = Flat(np.zeros(0, np.int32), np.zeros(0, np.int64))


def _joined(one: Flat, other: Flat) -> Flat:
    return Flat(np.concatenate((one.ids, other.ids)), np.concatenate((one.lengths, other.lengths)))


def cut_of(serialised: str) -> Cut:
    """Return how texts may be cut for this tokenizer, by its own description.

    Added tokens are searched in the raw text: one with a space would be cut, and one that swallows the next space
    would miss it. NFC never joins anything to a space; other normal forms may.
    """
    parts = json.loads(serialised)
    splitter = parts.get("pre_tokenizer") or {}
    normalizer = (parts.get("normalizer") or {"type": None})["type"]
    added = parts.get("added_tokens", [])
    if parts["model"].get("dropout") or not all(token["content"].isascii() for token in added):
        return "whole"
    if splitter.get("type") in ("BertPreTokenizer", "Whitespace", "WhitespaceSplit"):
        torn = any(map(str.isspace, "".join(token["content"] for token in added)))
        return "spaces" if normalizer in (None, "BertNormalizer") and not torn else "whole"
    if splitter.get("type") == "ByteLevel" and splitter.get("use_regex", True) and normalizer in (None, "NFC"):
        # Tokens for runs of white space only occur in texts that are not cut anyway.
        torn = any(re.search(r"(?<! ) (?! )", token["content"]) or token["rstrip"] for token in added)
        return "leading" if not torn else "whole"
    return "whole"


class WordEncoder:
    """Encodes texts without special tokens; remembers the words of earlier chunks, up to a limit."""

    def __init__(self, backend: Any, cut: Cut) -> None:
        self.backend = backend
        self.cut: Cut = cut
        self._known: Any = None
        self._flat = _NOTHING

    def __call__(self, texts: Any) -> Flat:
        """Return the ids of every text of an Arrow array without nulls."""
        import pyarrow.compute as pc

        if len(texts) == 0:
            return _NOTHING
        if len(texts) <= FEW_TEXTS:
            return _encode_each(self.backend, texts)
        words, counts = _words(texts, self.cut)
        coded = pc.dictionary_encode(words)
        distinct, index = self._look_up(coded.dictionary)
        index = index[coded.indices.to_numpy()]
        tokens = distinct.lengths[index]
        ids = distinct.ids.take(slice_indices(distinct.starts[index], tokens))
        ends = np.concatenate(([0], np.cumsum(tokens)))
        return Flat(ids, np.diff(ends[np.concatenate(([0], np.cumsum(counts)))]))

    def _look_up(self, words: Any) -> tuple[Flat, NDArray[np.int64]]:
        """Return the ids of all known words, and the index of each of these distinct words."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if self._known is None:
            self._known = pa.array([], words.type)
        found = pc.index_in(words, value_set=self._known)
        missing = np.flatnonzero(found.is_null().to_numpy(zero_copy_only=False))
        long = pc.binary_length(words).to_numpy()[missing] > KNOWN_BYTES
        missing = missing[np.argsort(long, kind="stable")]
        new = words.take(pa.array(missing))
        flat = _joined(self._flat, _encode_each(self.backend, new))
        index = found.fill_null(0).to_numpy().astype(np.int64)
        index[missing] = len(self._known) + np.arange(len(new))
        self._remember(new.slice(0, int((~long).sum())), flat)
        return flat, index

    def _remember(self, new: Any, flat: Flat) -> None:
        """Add these words, whose ids follow in `flat` those of the known words."""
        import pyarrow as pa

        count = len(self._known) + len(new)
        # The first words are the common ones, so words beyond the limit are not kept.
        if self.cut != "whole" and count <= KNOWN_WORDS:
            lengths = flat.lengths[:count]
            self._known = pa.concat_arrays([self._known, new])
            self._flat = Flat(flat.ids[: lengths.sum()], lengths)


def _words(texts: Any, cut: Cut) -> tuple[Any, NDArray[np.int64]]:
    """Return all words one after another, and the number per text."""
    import pyarrow.compute as pc

    if cut == "leading":
        if pc.any(pc.match_substring(texts, _MARK)).as_py():
            cut = "whole"
        else:
            tangled = pc.match_substring_regex(texts, _TANGLED)
            texts = pc.if_else(tangled, texts, pc.replace_substring(texts, " ", _MARK + " "))
    if cut == "whole":
        return texts, np.ones(len(texts), np.int64)
    lists = pc.split_pattern(texts, " " if cut == "spaces" else _MARK)
    counts: NDArray[np.int64] = pc.list_value_length(lists).to_numpy().astype(np.int64)
    return lists.flatten(), counts


def _encode_each(backend: Any, texts: Any) -> Flat:
    ids, lengths = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)]
    for part in _portions(texts):
        found = [encoding.ids for encoding in backend.encode_batch_fast(part, add_special_tokens=False)]
        sizes = np.fromiter(map(len, found), np.int64, len(found))
        ids.append(np.fromiter(chain.from_iterable(found), np.int32, int(sizes.sum())))
        lengths.append(sizes)
    return Flat(np.concatenate(ids), np.concatenate(lengths))


def _portions(texts: Any) -> Iterator[list[str]]:
    import pyarrow.compute as pc

    sizes = np.cumsum(pc.binary_length(texts).to_numpy(), dtype=np.int64)
    start = 0
    while start < len(texts):
        done = sizes[start - 1] if start else 0
        stop = int(np.searchsorted(sizes, done + ENCODE_BYTES, side="right"))
        stop = min(max(stop, start + 1), start + ENCODE_TEXTS)
        yield texts.slice(start, stop - start).to_pylist()
        start = stop
