"""Recognises a source and chooses its reader: a path, a glob, standard input, a name, or a Python object."""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from whet.config import DataConfig
from whet.data.cache import expand_home
from whet.data.column_names import SPLITS
from whet.data.readers.arrow_files import read_arrow, read_parquet
from whet.data.readers.csv_files import read_delimited
from whet.data.readers.databases import SQLITE_START, is_duckdb, read_duckdb, read_sqlite
from whet.data.readers.excel_files import read_excel
from whet.data.readers.json_files import read_json
from whet.data.readers.raw_table import RawSplit, join
from whet.data.readers.text_files import COMPRESSED_SUFFIXES, first_bytes, plain_suffix
from whet.errors import DataError, UsageError, WhetError

Reader = Callable[[Path, DataConfig, Path], RawSplit]
FOREIGN = {
    b"\x89HDF\r\n": ("an HDF5 file", "Save the rows as CSV, JSON lines or Parquet."),
    b"Obj\x01": ("an Avro file", "Save the rows as Parquet or JSON lines."),
}
"""Files with tables that are not supported, by their first bytes."""
DELIMITED = (".csv", ".tsv", ".tab", ".txt", ".psv")
SUFFIXES: dict[str, Reader] = {
    **dict.fromkeys(DELIMITED, read_delimited),
    **dict.fromkeys((".json", ".jsonl", ".ndjson", ".jsonlines"), read_json),
    **dict.fromkeys((".parquet", ".pq"), read_parquet),
    **dict.fromkeys((".arrow", ".feather", ".ipc"), read_arrow),
    **dict.fromkeys((".xlsx", ".xlsm"), read_excel),
}
"""The reader of a file by its ending, where its first bytes do not tell."""
TABLES = tuple(suffix for suffix in SUFFIXES if suffix != ".txt")
"""Endings by which a folder's tables are found; a .txt file may hold anything."""


@dataclass(frozen=True)
class Source:
    """The source behind a name, before anything is read."""

    kind: str
    """`files`, `labelled folders`, `labelled files`, `splits in a file`, `hub` or `object`."""
    name: str
    files: dict[str, tuple[Path, ...]] = field(default_factory=dict)
    """Files by split."""
    value: Any = None
    notes: tuple[str, ...] = ()


def find_source(source: Any, config: DataConfig, scratch: Path) -> Source:
    """Return the source behind a name. Only names are read, and for standard input its bytes."""
    if not isinstance(source, str | os.PathLike):
        return Source("object", "data", value=source)
    name = os.fspath(source)
    if not name:
        raise DataError("no data was named.", "Give a file, a folder, a data set's name, or - for standard input.")
    if "\0" in name:
        raise DataError("the name of the source holds a NUL byte.")
    if name == "-":
        origin = Source("files", "standard input", {"train": (_spool(_standard_input(), scratch),)})
    else:
        origin = _find_path(name, scratch)
    return _with_given_splits(_with_splits_inside(origin, config), config)


def _with_splits_inside(source: Source, config: DataConfig) -> Source:
    """Return a source with the splits of a JSON file that holds a list of rows per split."""
    from whet.data.readers.json_files import splits_inside

    paths = source.files.get("train", ())
    if list(source.files) != ["train"] or len(paths) != 1:
        return source
    start = first_bytes(paths[0])
    if not start or reader_of(paths[0], start) is not read_json:
        return source
    names = splits_inside(paths[0], config)
    return Source("splits in a file", source.name, value=(paths[0], names), notes=source.notes) if names else source


def _find_path(name: str, scratch: Path) -> Source:
    from whet.data.readers.folders import find_folder

    path = expand_home(name)
    try:
        if not path.exists() and name.startswith("sample/"):
            path = Path(__file__).parents[2] / name
        if path.is_dir():
            return find_folder(path)
        if path.is_file():
            return Source("files", path.name, {"train": (path,)})
        if path.is_fifo():  # as in: whet check <(zcat old.gz new.gz)
            with open(path, "rb") as stream:
                return Source("files", path.name, {"train": (_spool(stream, scratch),)})
        if path.exists():
            raise DataError(f"{name!r} is neither a file nor a folder.", "Give a file.")
    except OSError as error:
        raise DataError(f"the name {name[:80]!r} cannot be a path: {error.strerror}.") from None
    if glob.has_magic(name):
        return _find_glob(name)
    if _like_hub_name(name):
        return Source("hub", name, value=name)
    raise DataError(f"There is no file or folder {name!r}.", _neighbours(path))


def _find_glob(pattern: str) -> Source:
    from whet.data.readers.folders import split_of

    paths = sorted(Path(match) for match in glob.glob(pattern, recursive=True) if Path(match).is_file())
    if not paths:
        raise DataError(f"No file matches {pattern!r}.")
    named = {path: split_of(path) for path in paths}
    files: dict[str, list[Path]] = {}
    for path in paths:
        files.setdefault(named[path] if all(named.values()) else "train", []).append(path)  # type: ignore[arg-type]
    return Source("files", pattern, {split: tuple(of_split) for split, of_split in files.items()})


def _like_hub_name(name: str) -> bool:
    parts = name.split("/")
    plain = all(part and part.replace("-", "").replace("_", "").replace(".", "").isalnum() for part in parts)
    return plain and len(parts) <= 3 and not plain_suffix(name) and not name.startswith((".", "~"))


def _neighbours(path: Path) -> str:
    return _did_you_mean(path) or "Check the path."


def _did_you_mean(path: Path) -> str:
    """Return the neighbour with the same name but another suffix, or else one with a similar name."""
    from difflib import get_close_matches

    try:
        names = sorted(entry.name for entry in path.parent.iterdir()) if path.parent.is_dir() else []
    except OSError:
        names = []
    names.sort(key=lambda name: plain_suffix(name) not in TABLES)  # readable sources first
    bare = {name: _without_ending(name, TABLES) for name in names}
    own = _without_ending(path.name, TABLES)
    near = get_close_matches(own, [each for each in bare.values() if each], n=1, cutoff=0.6)
    close = [own] if own in bare.values() else near
    similar = [name for name in names if bare[name] in close] or get_close_matches(path.name, names, n=1, cutoff=0.6)
    return f"Did you mean {str(path.with_name(similar[0]))!r}?" if similar else ""


def _without_ending(name: str, endings: tuple[str, ...]) -> str:
    """`reviews` for `Reviews.csv.gz`."""
    bare = name.casefold()
    while Path(bare).suffix in (*endings, *COMPRESSED_SUFFIXES):
        bare = bare[: -len(Path(bare).suffix)]
    return bare


def _with_given_splits(source: Source, config: DataConfig) -> Source:
    """Return the source with the files of --validation and --test."""
    files = dict(source.files)
    for split, given in (("validation", config.validation), ("test", config.test)):
        if given is None:
            continue
        path = expand_home(given)
        if not path.is_file():
            raise DataError(f"There is no file {given!r} (--{split}).", _neighbours(path))
        files[split] = (path,)
    return Source(source.kind, source.name, files, source.value, source.notes)


def _standard_input() -> BinaryIO:
    if sys.stdin is None:  # the caller closed it
        raise UsageError("The source is '-', and standard input is closed.", "Give a file, or pipe the rows in.")
    return sys.stdin.buffer


def readable_twice(name: str, scratch: Path) -> str:
    """Return the source, or a file with the contents of one that can be read only once: standard input, a pipe."""
    try:
        if name == "-":
            return str(_spool(_standard_input(), scratch))
        if expand_home(name).is_fifo():
            with open(expand_home(name), "rb") as stream:
                return str(_spool(stream, scratch))
    except OSError as error:
        raise DataError(f"the name {name[:80]!r} cannot be a path: {error.strerror}.") from None
    return name


def _spool(stream: BinaryIO, scratch: Path) -> Path:
    """Write a stream to disk, because it is read more than once."""
    path = scratch / "standard input"
    with open(path, "wb") as file:
        while block := stream.read(1 << 20):
            file.write(block)
    return path


def read_source(source: Source, config: DataConfig, scratch: Path) -> dict[str, RawSplit]:
    """Return the splits of a source, with their columns."""
    if source.kind == "hub":
        from whet.data.readers.hub import load_hub

        try:
            splits = read_objects(load_hub(source.value), source.name)
        except WhetError as error:
            error.hint = f"{_did_you_mean(Path(source.name))} {error.hint}".strip()
            raise
    elif source.kind == "object":
        splits = read_objects(source.value, source.name)
    elif source.kind == "labelled folders":
        from whet.data.readers.folders import read_labelled_folders

        splits = read_labelled_folders(source.value, config, scratch)
    elif source.kind == "labelled files":
        from whet.data.readers.folders import read_labelled_files

        splits = read_labelled_files(source.value, config, scratch)
    elif source.kind == "splits in a file":
        from whet.data.readers.json_files import read_split_inside

        path, names = source.value
        splits = {split: read_split_inside(path, name, config, scratch) for split, name in names.items()}
    else:
        splits = {}
    for split, paths in source.files.items():
        splits[split] = join([read_file(path, config, scratch) for path in paths])
    return splits


def read_objects(value: Any, name: str) -> dict[str, RawSplit]:
    """Return the splits of a Python object: those of a mapping, or one called train."""
    from whet.data.readers.python_objects import is_split_map, read_object

    if not is_split_map(value):
        return {"train": read_object(value, name)}
    assert isinstance(value, Mapping)
    splits: dict[str, RawSplit] = {}
    for key, table in value.items():
        split = SPLITS.get(str(key).casefold(), str(key))
        if split in splits:
            raise DataError(f"two splits are called {split}: {', '.join(map(str, value))}.")
        splits[split] = read_object(table, f"{name}[{str(key)!r}]")
    return splits


def read_file(path: Path, config: DataConfig, scratch: Path) -> RawSplit:
    """Read one file by its first bytes, or else by its name."""
    start = first_bytes(path, 4096)
    if not start:
        raise DataError("the file is empty.", file=path.name)
    reader = reader_of(path, start)
    if config.sheet is not None and reader not in (read_excel, read_sqlite, read_duckdb):
        message = f"sheet is {config.sheet!r}, and this is neither an Excel file nor a database."
        raise DataError(message, "Leave --sheet out.", file=path.name)
    return reader(path, config, scratch)


def reader_of(path: Path, start: bytes) -> Reader:
    """Return the reader for a file with this name and these first bytes."""
    for magic, (what, advice) in FOREIGN.items():
        if start.startswith(magic):
            raise DataError(f"this is {what}.", advice, file=path.name)
    if start.startswith(SQLITE_START):
        return read_sqlite
    if is_duckdb(start):
        return read_duckdb
    suffix = plain_suffix(path)
    for magic, reader in ((b"PAR1", read_parquet), (b"ARROW1", read_arrow), (b"PK\x03\x04", read_excel)):
        if start.startswith(magic):
            return reader
    if suffix in SUFFIXES:
        return SUFFIXES[suffix]
    if suffix in (
        ".xls",
        ".ods",
        ".pdf",
        ".doc",
        ".docx",
        ".zip",
        ".tar",
        ".pkl",
        ".pickle",
        ".pt",
        ".bin",
        ".h5",
        ".arff",
        ".xml",
        ".sav",
        ".dta",
        ".rds",
    ):
        raise DataError(
            f"files of the kind {suffix} are not read.",
            "Save it as CSV, JSON lines, Parquet or .xlsx.",
            file=path.name,
        )
    if start.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"["):
        return read_json
    return read_delimited
