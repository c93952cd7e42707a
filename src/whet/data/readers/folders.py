"""Folders as sources: files named after splits, or one sub-folder a label that holds text files."""

from __future__ import annotations

import re
from pathlib import Path

from whet.config import DataConfig
from whet.data.column_names import SPLITS
from whet.data.readers.raw_table import BATCH_ROWS, Part, RawSplit, Spill
from whet.data.readers.source import DELIMITED, Source
from whet.data.readers.text_files import plain_suffix
from whet.errors import DataError

TABLES = (
    *(suffix for suffix in DELIMITED if suffix != ".txt"),
    ".json", ".jsonl", ".ndjson", ".parquet", ".pq", ".arrow", ".feather", ".xlsx",
)  # fmt: skip
UNLABELLED = ("unsup", "unsupervised", "unlabeled", "unlabelled")


def split_of(path: Path) -> str | None:
    """The split that a name stands for: train.csv, dev_full.tsv, snli_1.0_test.jsonl."""
    words = re.split(r"[-_ .]+", path.name.casefold())
    found = {SPLITS[word] for word in words if word in SPLITS}
    return found.pop() if len(found) == 1 else None


def find_folder(folder: Path) -> Source:
    """Split files, or sub-folders of text files, or an error that says what is there."""
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith((".", "_")))
    tables = [entry for entry in entries if entry.is_file() and plain_suffix(entry) in TABLES]
    folders = [entry for entry in entries if entry.is_dir()]
    if not tables and folders:
        data = folder / "data"
        if [entry.name for entry in folders] == ["data"] and split_files(data):
            return find_folder(data)
        labelled = _labelled_folders(folder, folders)
        if labelled is not None:
            return labelled
    files = split_files(folder)
    if files:
        kinds = {plain_suffix(path) for paths in files.values() for path in paths}
        if len(kinds) > 1 and any(len({plain_suffix(p) for p in paths}) > 1 for paths in files.values()):
            raise DataError(
                f"the folder {folder.name!r} holds a split in several formats: {', '.join(sorted(kinds))}.",
                "Name one file, or a glob such as 'folder/*.parquet'.",
            )
        return Source("files", folder.name, files)
    if len(tables) == 1:
        return Source("files", tables[0].name, {"train": (tables[0],)})
    if tables and are_parts(tables):
        return Source("files", folder.name, {"train": tuple(tables)})
    inner = next((entry for entry in folders if split_files(entry)), None)
    if inner is not None:
        names = ", ".join(entry.name for entry in folders[:10])
        hint = f"Name one of its folders, such as {str(folder / inner.name)!r}."
        raise DataError(f"{str(folder)!r} holds several data sets: {names}.", hint)
    found = ", ".join(entry.name for entry in entries[:10]) or "nothing"
    raise DataError(
        f"{str(folder)!r} is a folder without train, validation or test files; it holds {found}.",
        "Name a file in it, or a glob such as 'folder/*.csv'.",
    )


def are_parts(tables: list[Path]) -> bool:
    """Whether the files are one table in parts: Parquet files, or others whose names differ by a number alone."""
    kinds = {plain_suffix(path) for path in tables}
    if len(kinds) > 1:
        return False
    return bool(kinds & {".parquet", ".pq"}) or len({re.sub(r"\d+", "#", path.name) for path in tables}) == 1


def split_files(folder: Path) -> dict[str, tuple[Path, ...]]:
    """Table files of a folder that are named after splits."""
    found: dict[str, list[Path]] = {}
    if folder.is_dir():
        for path in sorted(folder.iterdir()):
            split = split_of(path)
            if split and path.is_file() and plain_suffix(path) in TABLES:
                found.setdefault(split, []).append(path)
    return {split: tuple(paths) for split, paths in found.items()}


def _labelled_folders(folder: Path, folders: list[Path]) -> Source | None:
    """pos/ and neg/ here, or in each of train/ and test/."""
    splits = {split_of(entry): entry for entry in folders}
    if all(name is not None for name in splits) and len(splits) == len(folders):
        inner = {
            str(name): [sub for sub in sorted(entry.iterdir()) if sub.is_dir() and not sub.name.startswith(".")]
            for name, entry in splits.items()
        }
    else:
        inner = {"train": folders}
    left_out: list[str] = []
    labels: dict[str, dict[str, list[Path]]] = {}
    for split, subs in inner.items():
        for sub in subs:
            texts = sorted(path for path in sub.iterdir() if path.is_file() and path.suffix.lower() == ".txt")
            if not texts:
                return None
            if sub.name.casefold() in UNLABELLED:
                left_out.append(sub.name)
            else:
                labels.setdefault(split, {})[sub.name] = texts
    if "train" not in labels or len(labels["train"]) < 2:
        return None
    notes = tuple(f"The folder {name!r} is left out: its texts have no label." for name in sorted(set(left_out)))
    return Source("labelled folders", folder.name, value=labels, notes=notes)


def read_labelled_folders(
    labels: dict[str, dict[str, list[Path]]], config: DataConfig, scratch: Path
) -> dict[str, RawSplit]:
    """A row a file, in the order of their names: its text, and its folder's name as the label."""
    return {split: _read_split(split, folders, config, scratch) for split, folders in labels.items()}


def _read_split(split: str, folders: dict[str, list[Path]], config: DataConfig, scratch: Path) -> RawSplit:
    import pyarrow as pa

    spill = Spill(scratch / f"{split}-folders.arrow")
    rows: list[tuple[str, str]] = []
    parts, mended = [], 0

    def flush() -> None:
        if rows:
            texts, names = zip(*rows, strict=True)
            spill.write(pa.record_batch([pa.array(texts, pa.large_string()), pa.array(names)], names=["text", "label"]))
            rows.clear()

    try:
        for label, paths in folders.items():
            size, characters = 0, 0
            for path in paths:
                text, count = _read_text(path, config)
                mended += count
                size += path.stat().st_size
                characters += len(text)
                rows.append((text, label))
                if len(rows) >= BATCH_ROWS or characters > 32_000_000:
                    flush()
                    characters = 0
            parts.append(Part(f"{paths[0].parent.name}/", len(paths), size))
        flush()
    finally:
        spill.close()
    return RawSplit(spill.schema, spill.read, tuple(parts), surrogates=mended)


def _read_text(path: Path, config: DataConfig) -> tuple[str, int]:
    from whet.data.readers.text_files import mend_surrogates, open_text, undecodable

    limit = int(config.max_field_mb * 1_000_000)
    if path.stat().st_size > limit:
        raise DataError(
            f"the text is larger than {config.max_field_mb:g} MB.",
            "Raise --max-field-mb if that is right.",
            file=f"{path.parent.name}/{path.name}",
        )
    try:
        with open_text(path, config.encoding) as stream:
            return mend_surrogates(stream.read())
    except UnicodeDecodeError:
        raise undecodable(path, config.encoding) from None
