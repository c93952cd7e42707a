"""Texts to token ids with each distinct word encoded once.

A tokenizer that splits its input at white space before anything else gives a word the same ids wherever it
stands. Natural text repeats its words, so a chunk of texts is cut into words by Arrow, each distinct word
goes through the tokenizer once, and numpy puts the ids back in order. Where a tokenizer does not split so,
the "words" are whole texts, which still saves the work on repeated ones. Either way the ids are those of
encoding each text by itself.
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

# `spaces`: white space separates words and gives no token of its own (BERT's way).
# `leading`: a word is encoded with the space before it (GPT-2's and RoBERTa's way).
# `whole`: nothing is known, so texts are not cut.
Cut = Literal["spaces", "leading", "whole"]

# An encoding takes some hundred bytes a token until its ids are read: few at a time keep memory flat.
ENCODE_BYTES = 1_000_000
ENCODE_TEXTS = 20_000

# So few texts are encoded as they are: looking their words up among all that are known would take longer.
FEW_TEXTS = 32

# Words that are remembered from one chunk to the next, if they are no longer than this: some tens of megabytes.
KNOWN_WORDS = 500_000
KNOWN_BYTES = 64

# Marks the places to cut at; a chunk that holds this character already is not cut.
_MARK = "\x00"
# White space other than a single space between words: there GPT-2's splitting looks at its surroundings.
_TANGLED = r"^ |  |[\t-\r\x{1c}-\x{1f}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}]"


@dataclass(frozen=True)
class Flat:
    """Token ids of several texts, one after another, and how many each has."""

    ids: NDArray[np.int32]
    lengths: NDArray[np.int64]

    @property
    def starts(self) -> NDArray[np.int64]:
        return np.cumsum(self.lengths) - self.lengths


_NOTHING = Flat(np.zeros(0, np.int32), np.zeros(0, np.int64))


def _joined(one: Flat, other: Flat) -> Flat:
    return Flat(np.concatenate((one.ids, other.ids)), np.concatenate((one.lengths, other.lengths)))


def cut_of(serialised: str) -> Cut:
    """How texts may be cut for this tokenizer, from its own description of itself; only what is certain counts.

    Added tokens are looked for in the raw text: one that holds a space would be torn apart, and one that swallows
    the space behind it would miss it. NFC never joins anything to a space; other normal forms may.
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
        # Tokens for runs of white space only occur where texts are not cut anyway.
        torn = any(re.search(r"(?<! ) (?! )", token["content"]) or token["rstrip"] for token in added)
        return "leading" if not torn else "whole"
    return "whole"


class WordEncoder:
    """Ids of texts without special tokens; remembers the words of earlier chunks, up to a bound."""

    def __init__(self, backend: Any, cut: Cut) -> None:
        self.backend = backend
        self.cut: Cut = cut
        self._known: Any = None
        self._flat = _NOTHING

    def __call__(self, texts: Any) -> Flat:
        """Ids of every text of an Arrow array without nulls."""
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
        """Ids of all words there are, and where in them each of these distinct words stands."""
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
        """Keep these words, whose ids stand in `flat` right behind those of the words known already."""
        import pyarrow as pa

        count = len(self._known) + len(new)
        # The words met first are the common ones, so what comes after the bound is not worth a place.
        if self.cut != "whole" and count <= KNOWN_WORDS:
            lengths = flat.lengths[:count]
            self._known = pa.concat_arrays([self._known, new])
            self._flat = Flat(flat.ids[: lengths.sum()], lengths)


def _words(texts: Any, cut: Cut) -> tuple[Any, NDArray[np.int64]]:
    """All words one after another, and how many each text has."""
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
