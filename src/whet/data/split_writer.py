"""Writes one split of examples: checks texts, converts labels to numbers, numbers the rows."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from whet.config import DataConfig
from whet.data.columns import Columns, label_columns
from whet.data.label_reader import LEFT_OUT, LabelReader
from whet.data.readers.raw_table import RawSplit, Spill
from whet.data.reviewed_labels import ReviewedLabels
from whet.data.splits import NAMES, assign, describe
from whet.data.text_hashes import row_keys
from whet.data.text_repair import repaired
from whet.errors import DataError

LARGEST_BATCH = 256_000_000
MAX_LISTED = 5


class SplitWriter:
    """Writes record batches of text, pair, label and row as an Arrow stream, with counts."""

    def __init__(self, path: Path, name: str, columns: Columns, config: DataConfig) -> None:
        self.path, self.name, self.columns, self.config = path, name, columns, config
        self.rows = self.rare = self.unlabelled = 0
        self.first_unlabelled = 0
        self.empty: list[int] = []
        """Numbers of the rows with an empty text, which are not written."""
        self.repaired: set[int] = set()
        """Numbers of the rows with a repaired text."""
        self.label_counts: Counter[int] = Counter()
        self.reviewed: ReviewedLabels | None = None
        """Decisions about the labels of these rows."""
        self._hashes: dict[str, Any] = {}
        self._writer: Any = None

    def write_all(self, split: RawSplit, reader: LabelReader | None) -> None:
        for batch in self.convert(split, reader):
            self.write(batch)
        self.close()

    def convert(self, split: RawSplit, reader: LabelReader | None) -> Any:
        """Yield batches of examples from the batches of a source."""
        import pyarrow as pa

        wanted = list(self.columns.texts)
        if reader is not None and all(name in split.columns for name in label_columns(split, reader.column)):
            wanted += label_columns(split, reader.column)
        else:
            reader = None
        before = 0
        for source in split.read(wanted):
            arrays = [self._text(split, source.column(name), before, name) for name in self.columns.texts]
            names = ["text", "pair"][: len(arrays)]
            if reader is not None:
                arrays.append(reader.read(split, self.name, source, before))
                names.append("label")
            arrays.append(pa.array(split.numbers(before, source.num_rows), pa.int64()))
            before += source.num_rows
            batch = pa.record_batch(arrays, names=[*names, "row"])
            if reader is not None and reader.places:
                batch = self._without_rare(batch)
            yield self._without_empty(batch)

    def write(self, batch: Any) -> None:
        """Decided labels replace the given ones here, after rows were dealt into splits by the given labels."""
        self._write(batch if self.reviewed is None else self.reviewed.apply(batch))

    def _write(self, batch: Any) -> None:
        import pyarrow as pa

        if batch.nbytes > LARGEST_BATCH and batch.num_rows > 1:
            middle = batch.num_rows // 2
            self._write(batch.slice(0, middle))
            self._write(batch.slice(middle))
            return
        for name in ("text", "pair"):
            if name in batch.schema.names:
                place = batch.schema.names.index(name)
                batch = batch.set_column(place, name, batch.column(place).cast(pa.string()))
        if self._writer is None:
            self._writer = pa.ipc.new_stream(str(self.path), batch.schema)
        self.count(batch)
        self._hash(batch)
        self._writer.write_batch(batch)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def digest(self) -> list[str]:
        """Return a checksum of the split's contents, independent of its files and batches."""
        return [f"{name}:{self._hashes[name].hexdigest()}" for name in sorted(self._hashes)]

    def without_text(self, split: RawSplit, go_on: Sequence[str]) -> DataError:
        """The error for a split with empty texts, or without a row."""
        if not self.empty:
            return split.error(f"no row is left in the {self.name} split.")
        count = "1 row has" if len(self.empty) == 1 else f"{len(self.empty)} rows have"
        listed = ", ".join(map(str, self.empty[:MAX_LISTED])) + (" …" if len(self.empty) > MAX_LISTED else "")
        return split.error(
            f"{count} an empty text (rows {listed}).",
            "Fill them in, or leave them out with --drop-empty.",
            row=self.empty[0],
            column=self.columns.text,
            go_on=go_on,
        )

    def _text(self, split: RawSplit, values: Any, before: int, column: str) -> Any:
        """Return the texts, checked for invalid characters."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        values = values.cast(pa.large_string())
        try:
            values.validate(full=True)
        except pa.ArrowInvalid:
            raise split.error("a text is not valid UTF-8.", column=column) from None
        limit = int(self.config.max_field_mb * 1_000_000)
        large = pc.index(pc.greater(pc.binary_length(values), limit), True).as_py()
        if large >= 0:
            raise split.error(
                f"the text is larger than {self.config.max_field_mb:g} MB.",
                "Raise --max-field-mb if that is right.",
                row=split.number(before + large),
                column=column,
            )
        nul = pc.index(pc.match_substring(values, "\0"), True).as_py()
        if nul >= 0:
            raise split.error(
                "there is a NUL byte in the text.", "Remove it.", row=split.number(before + nul), column=column
            )
        if self.config.repair:
            values, places = repaired(values)
            self.repaired.update(split.numbers(before, len(values))[places].tolist())
        return values

    def _without_rare(self, batch: Any) -> Any:
        """Leave out rows of rare labels; with several labels per row, all rows stay."""
        import pyarrow as pa
        import pyarrow.compute as pc

        labels = batch.column("label")
        if not pa.types.is_integer(labels.type):
            return batch
        kept = batch.filter(pc.fill_null(pc.not_equal(labels, LEFT_OUT), True))
        self.rare += batch.num_rows - kept.num_rows
        return kept

    def _without_empty(self, batch: Any) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        blank = pa.array([False] * batch.num_rows)
        for name in ("text", "pair")[: len(self.columns.texts)]:
            texts = batch.column(name)
            bare = pc.equal(pc.utf8_trim_whitespace(texts), "")
            blank = pc.or_(blank, pc.or_(pc.is_null(texts), pc.fill_null(bare, True)))
        if not pc.any(blank).as_py():
            return batch
        self.empty += batch.column("row").filter(blank).to_pylist()
        return batch.filter(pc.invert(blank))

    def count(self, batch: Any) -> None:
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        self.rows += batch.num_rows
        if "label" not in batch.schema.names:
            self.unlabelled += batch.num_rows
            return
        labels = batch.column("label")
        if labels.null_count:
            if not self.unlabelled:
                place = pc.index(labels.is_null(), True).as_py()
                self.first_unlabelled = batch.column("row")[place].as_py()
            self.unlabelled += labels.null_count
        if pa.types.is_integer(labels.type):
            counts = np.bincount(labels.drop_null().to_numpy())
            self.label_counts.update({place: int(n) for place, n in enumerate(counts) if n})
        elif pa.types.is_list(labels.type):
            for place, total in enumerate(_matrix(labels.drop_null()).sum(axis=0)):
                if total:
                    self.label_counts[place] += int(total)

    def _hash(self, batch: Any) -> None:
        import pyarrow.compute as pc

        for name in batch.schema.names:
            values = batch.column(name)
            hasher = self._hashes.setdefault(name, hashlib.blake2b(digest_size=16))
            if name in ("text", "pair"):
                lengths = self._hashes.setdefault(f"{name} lengths", hashlib.blake2b(digest_size=16))
                lengths.update(pc.binary_length(values).to_numpy())
                _, offsets, data = values.buffers()
                start, end = _ends(values, offsets)
                hasher.update(memoryview(data)[start:end] if data is not None else b"")
            else:
                flat = values if not hasattr(values, "flatten") else values.flatten()
                hasher.update(values.is_null().to_numpy(zero_copy_only=False))
                hasher.update(flat.fill_null(0).to_numpy(zero_copy_only=False))


def _ends(values: Any, offsets: Any) -> tuple[int, int]:
    import numpy as np

    places = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    return (int(places[0]), int(places[-1])) if len(places) else (0, 0)


def _matrix(labels: Any) -> Any:
    """Return rows of 0 and 1 from an Arrow list column without nulls."""
    import numpy as np

    flat = labels.flatten().to_numpy()
    return flat.reshape(len(labels), -1) if len(labels) else np.zeros((0, 1), np.float32)


def _small(labels: Any, kind: str) -> Any:
    """Return labels as an array small enough to keep for all rows."""
    import numpy as np

    if kind == "multilabel":
        return _matrix(labels).astype(np.int8)
    return labels.to_numpy() if kind == "regression" else labels.to_numpy().astype(np.int16)


def write_made_splits(
    split: RawSplit,
    columns: Columns,
    reader: LabelReader,
    config: DataConfig,
    folder: Path,
    scratch: Path,
    shares: dict[str, float],
    reviewed: ReviewedLabels | None = None,
) -> tuple[dict[str, SplitWriter], str]:
    """Write train, and validation or test or both, from the training rows of a source."""
    import numpy as np

    first = SplitWriter(scratch / "unused", "train", columns, config)
    spill = Spill(scratch / "examples.arrow")
    keys, labels, done = np.empty(split.rows, np.uint64), [], 0
    for batch in first.convert(split, reader):
        if not batch.num_rows:
            continue
        first.count(batch)
        if first.unlabelled or first.empty:
            continue
        pairs = batch.column("pair") if columns.pair else None
        keys[done : done + batch.num_rows] = row_keys(batch.column("text"), pairs)
        done += batch.num_rows
        labels.append(_small(batch.column("label"), reader.task.kind))
        spill.write(batch)
    spill.close()
    if first.unlabelled or first.empty or not done:
        return {"train": first}, ""
    sides = assign(
        keys[:done],
        np.concatenate(labels),
        reader.task,
        validation_share=shares["validation"],
        test_share=shares["test"],
        seed=config.split_seed,
    )
    present = [side for side in range(3) if (sides == side).any()]
    writers = {NAMES[s]: SplitWriter(folder / f"{NAMES[s]}.arrow", NAMES[s], columns, config) for s in present}
    for writer in writers.values():
        writer.reviewed = reviewed
    _deal_out(spill, sides, writers)
    writers["train"].rare = first.rare
    return writers, describe(sides, [name for name, share in shares.items() if share > 0])


def _deal_out(spill: Spill, sides: Any, writers: dict[str, SplitWriter]) -> None:
    import pyarrow as pa

    before = 0
    for batch in spill.read():
        own = sides[before : before + batch.num_rows]
        before += batch.num_rows
        for name, writer in writers.items():
            chosen = batch.filter(pa.array(own == NAMES.index(name)))
            if chosen.num_rows:
                writer.write(chosen)
    for writer in writers.values():
        writer.close()
