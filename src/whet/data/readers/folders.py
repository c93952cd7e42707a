"""Reads folders: files named after splits, or one subfolder of text files per label."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

from whet.config import DataConfig
from whet.data.column_names import LABELS, SPLITS, plain
from whet.data.readers.raw_table import BATCH_ROWS, Batches, Part, RawSplit, Spill, join
from whet.data.readers.source import TABLES, Source, read_file
from whet.data.readers.text_files import first_bytes, plain_suffix
from whet.errors import DataError
from whet.utils.text import neutral

BINARY = (
    ".pdf", ".doc", ".docx", ".zip", ".gz", ".tar", ".bz2", ".zst", ".xls", ".ods", ".png", ".jpg", ".jpeg", ".gif",
    ".py", ".pyc", ".pkl", ".pt", ".bin", ".safetensors", ".db", ".sqlite", ".duckdb", ".html", ".xml",
    ".toml", ".yaml",
)  # fmt: skip
ABOUT = ("readme", "license", "licence", "copying", "changelog", "notes", "about")
"""Beginnings of the names of files that describe the others."""
MAX_CLASS_FILES, FEWEST_LINES = 100, 3
UNLABELLED = ("unsup", "unsupervised", "unlabeled", "unlabelled")


def split_of(path: Path) -> str | None:
    """Return the split of a file name: train.csv, dev_full.tsv, snli_1.0_test.jsonl."""
    words = re.split(r"[-_ .]+", path.name.casefold())
    splits = {SPLITS[word] for word in words if word in SPLITS}
    return splits.pop() if len(splits) == 1 else None


def find_folder(folder: Path) -> Source:
    """Find split files, or subfolders of text files, or raise an error that lists the contents."""
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith((".", "_")))
    tables = [entry for entry in entries if entry.is_file() and plain_suffix(entry) in TABLES]
    folders = [entry for entry in entries if entry.is_dir()]
    if not tables and folders:
        data = folder / "data"
        if [entry.name for entry in folders] == ["data"] and split_files(data):
            return find_folder(data)
        labelled = _labelled_folders(folder, folders) or _labelled_files(folder)
        if labelled is not None:
            return labelled
    files = split_files(folder) or _plain_split_files(entries)
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
    if labels := _labelled_files(folder):
        return labels
    inner = next((entry for entry in folders if split_files(entry)), None)
    if inner is not None:
        names = ", ".join(entry.name for entry in folders[:10])
        hint = f"Name one of its folders, such as {str(folder / inner.name)!r}."
        raise DataError(f"{str(folder)!r} holds several data sets: {names}.", hint)
    content = ", ".join(entry.name for entry in entries[:10]) or "nothing"
    raise DataError(
        f"{str(folder)!r} is a folder without train, validation or test files; it holds {content}.",
        "Name a file in it, or a glob such as 'folder/*.csv'.",
    )


def are_parts(tables: list[Path]) -> bool:
    """Return whether the files are parts of one table: Parquet files, or names that differ by a number alone."""
    kinds = {plain_suffix(path) for path in tables}
    if len(kinds) > 1:
        return False
    return bool(kinds & {".parquet", ".pq"}) or len({re.sub(r"\d+", "#", path.name) for path in tables}) == 1


def split_files(folder: Path) -> dict[str, tuple[Path, ...]]:
    """Return table files of a folder that are named after splits."""
    files: dict[str, list[Path]] = {}
    if folder.is_dir():
        for path in sorted(folder.iterdir()):
            split = split_of(path)
            if split and path.is_file() and plain_suffix(path) in TABLES:
                files.setdefault(split, []).append(path)
    return {split: tuple(paths) for split, paths in files.items()}


def _plain_split_files(entries: list[Path]) -> dict[str, tuple[Path, ...]]:
    """Return train.txt, val.txt and test.txt: text files that are named after splits, if there are no tables."""
    named = [(split_of(path), path) for path in entries if _is_plain(path)]
    files: dict[str, list[Path]] = {}
    for split, path in named:
        if split:
            files.setdefault(split, []).append(path)
    return {split: tuple(paths) for split, paths in files.items()} if "train" in files else {}


def _is_plain(path: Path) -> bool:
    """Return whether this is a text file that is no table and describes no other files."""
    return (
        path.is_file()
        and plain_suffix(path) not in (*TABLES, *BINARY, ".md")
        and not path.name.startswith(".")
        and not path.name.casefold().startswith(ABOUT)
    )


def _labelled_files(folder: Path) -> Source | None:
    """Return one file per label: pos.txt and neg.txt with one text per line, reviews.pos and reviews.neg, or tables."""
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith((".", "_")))
    splits = {split_of(entry): entry for entry in entries if entry.is_dir()}
    if splits and all(splits) and len(splits) == len(entries):
        files = {str(name): _files_by_label(entry) for name, entry in splits.items()}
    else:
        files = {"train": {} if splits else _files_by_label(folder)}
    if not files.get("train") or not all(files.values()):
        return None
    note = f"The names of the files are the labels: {', '.join(map(neutral, files['train']))}."
    return Source("labelled files", folder.name, value=files, notes=(note,))


def _files_by_label(folder: Path) -> dict[str, Path]:
    """Return the files by the part in which their names differ; empty unless there is one table per label."""
    entries = [entry for entry in sorted(folder.iterdir()) if not entry.name.startswith((".", "_"))]
    tables = [path for path in entries if path.is_file() and plain_suffix(path) in TABLES]
    files = tables or [path for path in entries if _is_plain(path)]
    others = [path for path in entries if path not in files and not path.name.casefold().startswith(ABOUT)]
    if others or not 2 <= len(files) <= MAX_CLASS_FILES or are_parts(files) or any(map(split_of, files)):
        return {}
    suffixes, stems = {path.suffix for path in files}, {path.stem for path in files}
    if len(suffixes) == 1:
        labels = {path.stem: path for path in files}
    elif len(stems) == 1 and len(suffixes) == len(files):
        labels = {path.suffix.removeprefix("."): path for path in files}
    else:
        return {}
    return labels if tables or all(map(_has_lines, files)) else {}


def _has_lines(path: Path) -> bool:
    return sum(bool(line.strip()) for line in first_bytes(path, 65_536).splitlines()) >= FEWEST_LINES


def read_labelled_files(files: dict[str, dict[str, Path]], config: DataConfig, scratch: Path) -> dict[str, RawSplit]:
    """Return the rows of each file with its label added; one text per line if the files are no tables."""
    lines = dataclasses.replace(config, delimiter="none", header="no")
    splits = {}
    for split, labels in files.items():
        parts = []
        for label, path in labels.items():
            is_table = plain_suffix(path) in TABLES
            rows = read_file(path, config if is_table else lines, scratch)
            if not is_table:
                rows = dataclasses.replace(rows, notes=())
            named = [name for name in rows.columns if plain(name) in {each for tier in LABELS for each in tier}]
            if named:
                raise DataError(
                    f"{str(path.parent)!r} is a folder without train, validation or test files, and its tables have "
                    f"a label of their own, {named[0]!r}, beside their names.",
                    f"Name a file in it, or a glob such as {str(path.parent / ('*' + path.suffix))!r}.",
                )
            parts.append(_with_label(rows, label))
        splits[split] = join(parts)
    return splits


def _with_label(split: RawSplit, label: str) -> RawSplit:
    """Return the rows with one label for all of them."""
    import pyarrow as pa

    field = pa.field("label", pa.string())

    def read(columns: Sequence[str] | None = None) -> Batches:
        own = None if columns is None else [name for name in columns if name != "label"]
        for batch in split.read(own):
            column = pa.array([label] * batch.num_rows, pa.string())
            whole = pa.record_batch([*batch.columns, column], schema=pa.schema([*batch.schema, field]))
            yield whole if columns is None else whole.select(list(columns))

    schema = pa.schema([*split.schema, field])
    return dataclasses.replace(split, schema=schema, read=read, unfolded=None)


def _labelled_folders(folder: Path, folders: list[Path]) -> Source | None:
    """Find pos/ and neg/ here, or in each of train/ and test/."""
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
            files = sorted(path for path in sub.iterdir() if path.is_file() and not path.name.startswith("."))
            texts = [path for path in files if path.suffix.lower() == ".txt"]
            if not texts and all(path.suffix == "" for path in files):
                texts = files  # news groups store articles like this: 51060, 51061, …
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
    """Return one row per file, sorted by name: its text, with its folder's name as the label."""
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
