"""The tokens of a split: computed once, cached by content, flat arrays without padding, mapped from disk."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from whet.data.cache import fingerprint, get_or_build
from whet.data.tokens.array_files import ArrayWriter, forget_pages, open_array, slice_indices
from whet.data.tokens.encoders import Encoded, choose_encoder, has_types, token_for_nothing
from whet.data.tokens.pieces import Long
from whet.utils.text import Echo

if TYPE_CHECKING:
    from whet.data.example_files import SplitRows
    from whet.task import Task

# Part of every cache key: increase it if the file format or the computation changes.
FORMAT = 1
# Rows in memory at a time: enough for words to repeat, small compared with the libraries.
CHUNK_BYTES = 8_000_000
CHUNK_ROWS = 65_536

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Truncation:
    """The effect of the length limit: rows and tokens cut, by text."""

    rows: int = 0
    """Rows that lost tokens."""
    tokens: int = 0
    """Tokens cut from both texts."""
    first_rows: int = 0
    first_tokens: int = 0
    second_rows: int = 0
    second_tokens: int = 0

    def plus(self, chunk: Encoded) -> Truncation:
        first, second = chunk.cut_first, chunk.cut_second
        return Truncation(
            rows=self.rows + int(((first + second) > 0).sum()),
            tokens=self.tokens + int((first + second).sum()),
            first_rows=self.first_rows + int((first > 0).sum()),
            first_tokens=self.first_tokens + int(first.sum()),
            second_rows=self.second_rows + int((second > 0).sum()),
            second_tokens=self.second_tokens + int(second.sum()),
        )


@dataclass(frozen=True)
class Tokens:
    """Rows one after another: row i is `ids[offsets[i]:offsets[i + 1]]`.

    A text (or a pair) is one row, or several windows. Labels, lengths and statistics of a split are per text; only
    the model computes per row.
    """

    ids: NDArray[np.int32]
    offsets: NDArray[np.int64]
    types: NDArray[np.uint8] | None
    labels: NDArray[Any] | None
    """int64 [n], or float32 [n, k] (multilabel) or [n] (regression); None if any text is unlabelled."""
    truncation: Truncation
    fingerprint: str
    texts: NDArray[np.int64] | None = None
    """Text i is the rows from `texts[i]` to `texts[i + 1]`; None if every text is one row."""

    def __len__(self) -> int:
        return len(self.begins) - 1

    @property
    def begins(self) -> NDArray[np.int64]:
        """Start of each text's tokens, and the end of the last one's."""
        return self.offsets if self.texts is None else self.offsets[self.texts]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of tokens read of each text; tokens in two windows count twice."""
        return np.diff(self.begins)

    @property
    def row_lengths(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)

    def row(self, index: int) -> NDArray[np.int32]:
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    def rows_of(self, texts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of these texts, text after text."""
        if self.texts is None:
            return texts
        starts = self.texts[texts]
        return slice_indices(starts, self.texts[texts + 1] - starts)

    def text_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the text of each of these rows."""
        return rows if self.texts is None else np.searchsorted(self.texts, rows, side="right") - 1

    def windows(self, texts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of rows of each of these texts."""
        return np.ones(len(texts), np.int64) if self.texts is None else self.texts[texts + 1] - self.texts[texts]

    def taken(self, texts: NDArray[np.int64]) -> Tokens:
        """Return only these texts, in this order."""
        rows, windows = self.rows_of(texts), self.windows(texts)
        where = slice_indices(self.offsets[rows], self.row_lengths[rows])
        return dataclasses.replace(
            self,
            ids=self.ids[where],
            offsets=_ends(self.row_lengths[rows]),
            types=None if self.types is None else self.types[where],
            labels=None if self.labels is None else self.labels[texts],
            truncation=Truncation(),
            fingerprint=fingerprint(self.fingerprint, np.ascontiguousarray(texts).data),
            texts=None if self.texts is None else _ends(windows),
        )


def _ends(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the starts of consecutive parts of these sizes, and the end of the last one."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])


def tokens_of(chunk: Encoded) -> Tokens:
    """Return rows in memory as a table without labels."""
    texts = None if chunk.windows is None else _ends(chunk.windows)
    return Tokens(chunk.ids, _ends(chunk.lengths), chunk.types, None, Truncation().plus(chunk), "", texts)


def tokenize(
    split: SplitRows,
    tokenizer: Any,
    *,
    max_length: int,
    task: Task,
    cache: Path | None,
    long: Long = "head",
    on_progress: Progress | None = None,
    echo: Echo = lambda line: None,
) -> Tokens:
    """Return the tokens of a split with columns `text`, `pair` (if any) and `label` (if any).

    `cache` is the cache's root; without it nothing is kept. `on_progress` is called with the number of finished rows
    after every chunk, and with 0 before that and while another process computes the same; it may raise. `echo` gets a
    line about a damaged cache entry, which is built again from the texts.
    """
    tick = on_progress or (lambda rows: None)
    labels = _labels(split, task)
    how = (max_length,) if long == "head" else (max_length, long)
    key = fingerprint(FORMAT, tokenizer_fingerprint(tokenizer), *how, text_fingerprint(split, lambda: tick(0)))
    marked = fingerprint(key, task.kind, b"" if labels is None else np.ascontiguousarray(labels).data)

    def build(folder: Path) -> None:
        _write(folder, split, tokenizer, max_length, long, tick)

    if cache is None:
        # The maps outlive the files' names; where they cannot, the system removes the folder.
        with TemporaryDirectory(prefix="whet-", ignore_cleanup_errors=True) as name:
            build(Path(name))
            return _read(Path(name), labels, marked)
    note = f"{len(split):,} rows, at most {max_length} tokens"
    folder = get_or_build("tokens", key, build, root=cache, note=note, on_wait=lambda: tick(0), echo=echo)
    tick(len(split))
    return _read(folder, labels, marked)


_TRIED = (
    "A text of some words, e.g. 1,234.5 of the U.S.A.'s -- isn't it?",
    "Zwölf naïve Äpfel – “quoted” … ",
    " two  spaces,\ta tab\nand a line\u00a0apart",
    "犬と猫 ไทย 한국어 🙂",
    "[SEP] </s> <unk> [MASK] ##ing",
    "",
    "long " * 600,
)
"""Texts on which an encoder is tried besides those of its first call, which may be one short text."""


class TextTokenizer:
    """Converts texts to tokens in memory, for prediction. It remembers the words it has encoded.

    Threads may share it; they take turns.
    """

    def __init__(self, tokenizer: Any, max_length: int, long: Long = "head") -> None:
        self._tokenizer, self._max_length, self._long = tokenizer, max_length, long
        self._encoders: dict[bool, Any] = {}
        self._read = self._cut = 0
        self._turn = threading.Lock()

    def __call__(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> Tokens:
        with self._turn:
            return self._tokens(texts, pairs)

    def _tokens(self, texts: Sequence[str], pairs: Sequence[str] | None) -> Tokens:
        import pyarrow as pa

        first = pa.array(texts, pa.large_string())
        second = None if pairs is None else pa.array(pairs, pa.large_string())
        if not len(first):
            return Tokens(np.zeros(0, np.int32), np.zeros(1, np.int64), None, None, Truncation(), "")
        kind = second is not None
        if kind not in self._encoders:
            tried = pa.array(_TRIED, pa.large_string())
            backwards = pa.array(_TRIED[::-1], pa.large_string())
            beside = None if second is None else pa.concat_arrays([backwards, second])
            self._encoders[kind] = choose_encoder(
                self._tokenizer, pa.concat_arrays([tried, first]), beside, self._max_length, self._long
            )
        tokens = tokens_of(self._encoders[kind](first, second).never_empty(token_for_nothing(self._tokenizer)))
        frame = self._tokenizer.num_special_tokens_to_add(pair=kind) * len(tokens.row_lengths)
        self._read, self._cut = self._read + len(tokens.ids) - frame, self._cut + tokens.truncation.tokens
        return tokens

    @property
    def unread(self) -> float:
        """Share of all text so far that was cut off."""
        return self._cut / max(1, self._cut + self._read)


def text_fingerprint(split: SplitRows, tick: Callable[[], None] = lambda: None) -> str:
    """Return a hash of the texts alone: not of paths, times, chunks or other columns."""
    columns = _text_columns(split)
    lengths = [hashlib.blake2b(digest_size=16) for _ in columns]
    contents = [hashlib.blake2b(digest_size=16) for _ in columns]
    for chunk in _chunks(split):
        tick()
        for column, length, content in zip(chunk, lengths, contents, strict=True):
            offsets, data = _string_buffers(column)
            length.update(np.diff(offsets).data)
            content.update(data)
    return fingerprint(columns, len(split), [part.hexdigest() for part in (*lengths, *contents)])


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """Return a hash of everything that a tokenizer's output depends on."""
    settings = (
        type(tokenizer).__name__,
        tokenizer.truncation_side,
        has_types(tokenizer),
        bool(tokenizer.split_special_tokens),
    )
    if tokenizer.is_fast:
        import tokenizers

        # The part before this holds truncation and padding, left over from the last call.
        _, name, rest = tokenizer.backend_tokenizer.to_str().partition('"added_tokens"')
        assert name
        return fingerprint(settings, tokenizers.__version__, rest)
    import transformers

    with TemporaryDirectory(prefix="whet-") as folder:
        tokenizer.save_pretrained(folder)
        files = [(str(file.name), file.read_bytes()) for file in sorted(Path(folder).iterdir())]
    return fingerprint(settings, transformers.__version__, files)


def _write(folder: Path, split: SplitRows, tokenizer: Any, max_length: int, long: Long, tick: Progress) -> None:
    encoder = None
    truncation, rows = Truncation(), 0
    with (
        ArrayWriter(folder / "ids.npy", np.int32) as ids,
        ArrayWriter(folder / "types.npy", np.uint8) as types,
        ArrayWriter(folder / "offsets.npy", np.int64) as offsets,
        ArrayWriter(folder / "texts.npy", np.int64) as texts,
    ):
        offsets.append(np.zeros(1, np.int64))
        texts.append(np.zeros(1, np.int64))
        windows = 0
        for first, *rest in _chunks(split):
            second = rest[0] if rest else None
            encoder = encoder or choose_encoder(tokenizer, first, second, max_length, long)
            chunk = encoder(first, second).never_empty(token_for_nothing(tokenizer))
            offsets.append(ids.count + np.cumsum(chunk.lengths))
            ids.append(chunk.ids)
            if chunk.types is not None:
                types.append(chunk.types)
            if chunk.windows is not None:
                texts.append(windows + np.cumsum(chunk.windows))
                windows += len(chunk.lengths)
            truncation, rows = truncation.plus(chunk), rows + len(first)
            tick(rows)
    about = {"types": has_types(tokenizer), "windows": windows > 0, "ledger": dataclasses.asdict(truncation)}
    (folder / "tokens.json").write_text(json.dumps(about), encoding="utf-8")


def _read(folder: Path, labels: NDArray[Any] | None, marked: str) -> Tokens:
    about = json.loads((folder / "tokens.json").read_text(encoding="utf-8"))
    return Tokens(
        ids=open_array(folder / "ids.npy"),
        offsets=open_array(folder / "offsets.npy"),
        types=open_array(folder / "types.npy") if about["types"] else None,
        labels=labels,
        truncation=Truncation(**about["ledger"]),
        fingerprint=marked,
        texts=open_array(folder / "texts.npy") if about.get("windows") else None,
    )


def _text_columns(split: SplitRows) -> list[str]:
    return ["text", "pair"] if "pair" in split.column_names else ["text"]


def _chunks(split: SplitRows) -> Iterator[list[Any]]:
    """Yield the text columns, some rows at a time, as Arrow arrays without nulls."""
    import pyarrow as pa

    names = _text_columns(split)
    only = split.table.select(names)
    each = max(1, split.table.nbytes // max(1, len(split)))
    rows = max(1, min(CHUNK_ROWS, CHUNK_BYTES // each))
    for start in range(0, len(split), rows):
        table = only.slice(start, rows)
        # One type for all texts, so that columns can be joined.
        texts = [table[name].combine_chunks().cast(pa.large_string()) for name in names]
        yield [column.fill_null("") for column in texts]
        forget_pages([split.file] if split.file else [])


def _string_buffers(column: Any) -> tuple[NDArray[Any], Any]:
    """Return offsets and bytes of a string array without copying."""
    _, places, data = column.buffers()
    if len(column) == 0 or data is None:
        return np.zeros(len(column) + 1, np.int64), b""
    offsets = np.frombuffer(places, np.int64, len(column) + 1, column.offset * 8)
    return offsets, memoryview(data)[int(offsets[0]) : int(offsets[-1])]


def _labels(split: SplitRows, task: Task) -> NDArray[Any] | None:
    if "label" not in split.column_names:
        return None
    return label_array(split.table.column("label").combine_chunks(), task.kind)


def label_array(column: Any, kind: str) -> NDArray[Any] | None:
    """Return labels for the loss; None if any is missing."""
    if column.null_count or not len(column):
        return None if column.null_count else _no_labels(kind)
    if kind != "multilabel":
        return np.asarray(column.to_numpy(zero_copy_only=False), np.float32 if kind == "regression" else np.int64)
    flat = column.flatten()
    if flat.null_count:
        return None
    values = np.asarray(flat.to_numpy(zero_copy_only=False), np.float32)
    return values.reshape(len(column), -1)


def _no_labels(kind: str) -> NDArray[Any]:
    return np.zeros(0, np.float32 if kind == "regression" else np.int64)
