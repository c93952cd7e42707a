"""Converts chunks of texts to rows for a model: special tokens, token types, truncation.

Every row equals `tokenizer(text, pair, truncation=True, max_length=…)`. This is verified on a sample of the data
first; a tokenizer that differs is called directly.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from whet.data.tokens.array_files import slice_indices
from whet.data.tokens.pieces import Long, choose_pieces
from whet.data.tokens.words import Flat, WordEncoder, cut_of
from whet.errors import UsageError

CALL_ROWS = 1000
SAMPLE_ROWS = 16

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Encoded:
    """Rows of a chunk, one after another, and the number of tokens cut from the first and the second text of each."""

    ids: NDArray[np.int32]
    lengths: Counts
    types: NDArray[np.uint8] | None
    cut_first: Counts
    cut_second: Counts
    windows: Counts | None = None
    """Number of rows of each text; None if each has one."""

    def never_empty(self, token: int) -> Encoded:
        """Add this token to rows without any: a model cannot read empty rows."""
        empty = self.lengths == 0
        if not empty.any():
            return self
        at = np.cumsum(self.lengths)[empty]
        types = None if self.types is None else np.insert(self.types, at, 0)
        return replace(self, ids=np.insert(self.ids, at, token), lengths=np.maximum(self.lengths, 1), types=types)


class Encoder(Protocol):
    """Converts texts, and their pairs if there are any, to rows. Arrow arrays without nulls."""

    def __call__(self, first: Any, second: Any | None) -> Encoded: ...


def choose_encoder(tokenizer: Any, first: Any, second: Any | None, max_length: int, long: Long = "head") -> Encoder:
    """Return the fast encoder if it equals the tokenizer on rows of this chunk; otherwise the tokenizer.

    Tokenizers only return the head of a text. Other parts are built from the tokenizer's own tokens.
    """
    call, pairs = CallingEncoder(tokenizer, max_length), second is not None
    fast = FastEncoder.of(tokenizer, max_length, pairs=pairs)
    slow = None if long == "head" else FastEncoder.calling(tokenizer, max_length, pairs=pairs)
    rows = _sample(first)
    sample = first.take(rows), None if second is None else second.take(rows)
    for each in (fast, slow):
        if each is not None and _same(each(*sample), call(*sample)):
            return replace(each, long=long)
    if long == "head":
        return call
    raise UsageError(
        f"--long is {long!r}, and this model's tokenizer puts rows together in a way of its own.",
        "Leave --long out: the head of each text is read.",
    )


def _sample(texts: Any) -> Any:
    """Return the first rows and the longest ones, which show the truncation."""
    import pyarrow as pa
    import pyarrow.compute as pc

    longest = np.argsort(pc.binary_length(texts).to_numpy(), kind="stable")[-SAMPLE_ROWS:]
    return pa.array(np.unique(np.concatenate([np.arange(min(SAMPLE_ROWS, len(texts))), longest])))


def _same(one: Encoded, other: Encoded) -> bool:
    if (one.types is None) != (other.types is None):
        return False
    types = one.types is None or other.types is None or np.array_equal(one.types, other.types)
    return types and np.array_equal(one.ids, other.ids) and np.array_equal(one.lengths, other.lengths)


def has_types(tokenizer: Any) -> bool:
    """Return whether the model distinguishes first and second text by token types."""
    return "token_type_ids" in tokenizer.model_input_names


def token_for_nothing(tokenizer: Any) -> int:
    """Return the token for a text without any."""
    names = ("unk_token_id", "eos_token_id", "pad_token_id")
    return next((found for name in names if (found := getattr(tokenizer, name, None)) is not None), 0)


@dataclass(frozen=True)
class Frame:
    """The special tokens before, between and after the texts of a row: ids and token types."""

    ids: tuple[tuple[int, ...], ...]
    """Special tokens before the first text, after it, and after the second text of a pair."""
    types: tuple[tuple[int, ...], ...]
    text_types: tuple[int, ...]

    @property
    def size(self) -> int:
        return sum(map(len, self.ids))


def frame_of(backend: Any, pairs: bool) -> Frame | None:
    """Read the frame from an encoded example; None if rows are not plain texts within special tokens."""
    example = next((word for word in ("a", "the", "1", ".") if _plain(backend, word)), None)
    if example is None:
        return None
    encoding = backend.encode(example, example if pairs else None)
    ids: list[list[int]] = [[]]
    types: list[list[int]] = [[]]
    text_types: list[set[int]] = []
    texts: list[list[int]] = []
    for token, kind, side in zip(encoding.ids, encoding.type_ids, encoding.sequence_ids, strict=True):
        if side is None:
            ids[-1].append(token)
            types[-1].append(kind)
            continue
        if side == len(texts):
            texts.append([])
            text_types.append(set())
            ids.append([])
            types.append([])
        if side != len(texts) - 1 or ids[-1]:
            return None
        texts[-1].append(token)
        text_types[-1].add(kind)
    expected = [_plain(backend, example)] * (1 + pairs)
    if texts != expected or any(len(kinds) != 1 for kinds in text_types):
        return None
    return Frame(tuple(map(tuple, ids)), tuple(map(tuple, types)), tuple(kinds.pop() for kinds in text_types))


def _plain(backend: Any, text: str) -> list[int]:
    return list(backend.encode(text, add_special_tokens=False).ids)


def called_frame(tokenizer: Any, pairs: bool) -> Frame | None:
    """Return the frame of any tokenizer from the result of a call; None if the texts are not found in it."""
    plain = tokenizer("a", add_special_tokens=False)["input_ids"]
    found = tokenizer("a", "a" if pairs else None, verbose=False)
    ids, kinds = found["input_ids"], found.get("token_type_ids") or [0] * len(found["input_ids"])
    frame_ids: list[tuple[int, ...]] = []
    frame_types: list[tuple[int, ...]] = []
    text_types: list[int] = []
    before = 0
    for _ in range(1 + pairs):
        at = next((at for at in range(before, len(ids)) if plain and ids[at : at + len(plain)] == plain), None)
        if at is None:
            return None
        frame_ids.append(tuple(ids[before:at]))
        frame_types.append(tuple(kinds[before:at]))
        text_types.append(kinds[at])
        before = at + len(plain)
    return Frame((*frame_ids, tuple(ids[before:])), (*frame_types, tuple(kinds[before:])), tuple(text_types))


@dataclass(frozen=True)
class CalledWords:
    """Returns the tokens of texts without special ones, by calling the tokenizer."""

    call: CallingEncoder

    def __call__(self, texts: Any) -> Flat:
        return self.call.plain(texts)


@dataclass(frozen=True)
class FastEncoder:
    """Encodes distinct words with the Rust tokenizer; adds the frame and truncates with numpy, a chunk at a time."""

    encode: WordEncoder | CalledWords
    frame: Frame
    max_length: int
    with_types: bool
    from_left: bool
    long: Long = "head"
    odd_to_first: bool = False
    """Whether the first text of a pair keeps an odd token; see `longest_first`."""

    @classmethod
    def of(cls, tokenizer: Any, max_length: int, *, pairs: bool) -> FastEncoder | None:
        backend = private_backend(tokenizer)
        frame = None if backend is None else frame_of(backend, pairs)
        if backend is None or frame is None:
            return None
        _require_room(max_length, frame, pairs)
        left = tokenizer.truncation_side == "left"
        return cls(WordEncoder(backend, cut_of(backend.to_str())), frame, max_length, has_types(tokenizer), left)

    @classmethod
    def calling(cls, tokenizer: Any, max_length: int, *, pairs: bool) -> FastEncoder | None:
        """Return the same encoder with the tokens of any tokenizer, which is called for them."""
        frame = called_frame(tokenizer, pairs)
        if frame is None:
            return None
        _require_room(max_length, frame, pairs)
        return cls(
            CalledWords(CallingEncoder(tokenizer, max_length)),
            frame,
            max_length,
            has_types(tokenizer),
            from_left=tokenizer.truncation_side == "left",
            odd_to_first=not tokenizer.is_fast,
        )

    def __call__(self, first: Any, second: Any | None) -> Encoded:
        texts = self._encode(first, second)
        room = self.max_length - self.frame.size
        whole = [text.lengths for text in texts]
        kept = longest_first(whole, room, odd_to_first=self.odd_to_first)
        pieces = choose_pieces(whole, kept, self.long, from_left=self.from_left)
        lengths = sum(kept, np.full(len(first), self.frame.size, np.int64))[pieces.owner]
        total = int(lengths.sum())
        ids = np.empty(total, np.int32)
        types = np.empty(total, np.uint8) if self.with_types else None
        at = np.cumsum(lengths) - lengths
        for part, (specials, kinds) in enumerate(zip(self.frame.ids, self.frame.types, strict=True)):
            if part:
                text, kind_of_text = texts[part - 1], self.frame.text_types[part - 1]
                for start, count in pieces.parts[part - 1]:
                    at = _place(text, text.starts[pieces.owner] + start, count, at, ids, types, kind_of_text)
            for special, kind in zip(specials, kinds, strict=True):
                ids[at] = special
                if types is not None:
                    types[at] = kind
                at = at + 1
        nothing = np.zeros(len(first), np.int64)
        cuts = [nothing if self.long == "windows" else text - keep for text, keep in zip(whole, kept, strict=True)]
        return Encoded(ids, lengths, types, cuts[0], cuts[1] if len(cuts) > 1 else nothing, pieces.windows)

    def _encode(self, first: Any, second: Any | None) -> list[Flat]:
        import pyarrow as pa

        if second is None:
            return [self.encode(first)]
        # Encoded together, because the two texts of a pair share most of their words.
        both = self.encode(pa.concat_arrays([first, second]))
        rows, tokens = len(first), int(both.lengths[: len(first)].sum())
        return [Flat(both.ids[:tokens], both.lengths[:rows]), Flat(both.ids[tokens:], both.lengths[rows:])]


def _require_room(max_length: int, frame: Frame, pairs: bool) -> None:
    if max_length <= frame.size:
        raise UsageError(
            f"max_length is {max_length}, and this model's special tokens alone take {frame.size}.",
            f"It must be at least {frame.size + 1 + pairs}.",
        )


def _place(
    text: Flat, starts: Counts, count: Counts, at: Counts, ids: NDArray[Any], types: NDArray[Any] | None, kind: int
) -> Counts:
    """Copy a part of one text to its place in every row; return the next free places."""
    target = slice_indices(at, count)
    ids[target] = text.ids.take(slice_indices(starts, count))
    if types is not None:
        types[target] = kind
    return at + count


def longest_first(lengths: list[Counts], room: int, *, odd_to_first: bool = False) -> list[Counts]:
    """Return how many tokens of each text remain: the longer one is cut first, then both alike.

    An odd token is kept by the longer text, or by the second of two equal ones, as in the Rust tokenizers; those in
    Python give it to the first text.
    """
    if len(lengths) == 1:
        return [np.minimum(lengths[0], room)]
    first, second = lengths
    short, long = np.minimum(first, second), np.maximum(first, second)
    over = short + long > room
    both = over & (short > room // 2)
    keep_short = np.where(both, room // 2, short)
    keep_long = np.where(both, room - room // 2, np.where(over, room - short, long))
    swapped = (both | (first > second)) if odd_to_first else first > second
    return [np.where(swapped, keep_long, keep_short), np.where(swapped, keep_short, keep_long)]


def private_backend(tokenizer: Any) -> Any | None:
    """Return a copy of the Rust tokenizer without truncation and padding; None if there is none.

    It is a copy, because a tokenizer keeps the settings of its last call, and other code may use it.
    """
    from tokenizers import Tokenizer

    if not getattr(tokenizer, "is_fast", False):
        return None
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = tokenizer.split_special_tokens
    return backend


@dataclass(frozen=True)
class CallingEncoder:
    """Calls any tokenizer: slower, and correct by definition."""

    tokenizer: Any
    max_length: int

    def __call__(self, first: Any, second: Any | None) -> Encoded:
        rows, kinds = self._call(first, second, truncation=True, max_length=self.max_length)
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        ids = np.fromiter(chain.from_iterable(rows), np.int32, int(lengths.sum()))
        types = None if kinds is None else np.fromiter(chain.from_iterable(kinds), np.uint8, len(ids))
        return Encoded(ids, lengths, types, *self._cuts(first, second))

    def plain(self, texts: Any) -> Flat:
        """Return the tokens of texts without special ones, uncut."""
        rows, _ = self._call(texts, None, add_special_tokens=False)
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        return Flat(np.fromiter(chain.from_iterable(rows), np.int32, int(lengths.sum())), lengths)

    def _cuts(self, first: Any, second: Any | None) -> tuple[Counts, Counts]:
        whole = [self.plain(side).lengths for side in (first, second) if side is not None]
        room = self.max_length - self.tokenizer.num_special_tokens_to_add(pair=second is not None)
        kept = longest_first(whole, room, odd_to_first=not self.tokenizer.is_fast)
        cuts = [before - after for before, after in zip(whole, kept, strict=True)]
        return cuts[0], cuts[1] if len(cuts) > 1 else np.zeros_like(cuts[0])

    def _call(self, first: Any, second: Any | None, **settings: Any) -> tuple[list[list[int]], list[list[int]] | None]:
        rows: list[list[int]] = []
        kinds: list[list[int]] | None = [] if has_types(self.tokenizer) else None
        for start in range(0, len(first), CALL_ROWS):
            texts = first.slice(start, CALL_ROWS).to_pylist()
            pairs = None if second is None else second.slice(start, CALL_ROWS).to_pylist()
            with _quiet():
                found = self.tokenizer(texts, pairs, return_attention_mask=False, verbose=False, **settings)
            rows += found["input_ids"]
            if kinds is not None:
                kinds += found["token_type_ids"]
        return rows, kinds


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence Python tokenizers, which warn about every truncated pair; `truncation` counts them."""
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
