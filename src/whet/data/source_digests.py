"""Hashes of a source's contents: a part of the cache key, so that a changed file is noticed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

from whet.config import DataConfig
from whet.data.readers.raw_table import RawSplit
from whet.data.readers.source import Source, read_source
from whet.data.readers.text_files import unreadable


def digests(found: Source, config: DataConfig) -> list[Any]:
    """Return hashes of the source's bytes or values, so that the cache is never stale."""
    parts: list[Any] = [found.kind]
    for split, paths in found.files.items():
        parts.append([split, *([path.name, _file_digest(path)] for path in paths)])
    if found.kind == "labelled folders":
        for split, folders in found.value.items():
            for label, paths in folders.items():
                parts.append([split, label, *(path.name for path in paths), *map(_file_digest, paths)])
    elif found.kind == "labelled files":
        for split, labels in found.value.items():
            parts.extend([split, label, path.name, _file_digest(path)] for label, path in labels.items())
    elif found.kind == "splits in a file":
        path, names = found.value
        parts.append([_file_digest(path), names])
    elif found.kind in ("hub", "object"):
        splits = read_source(dataclasses.replace(found, files={}), config, Path())
        parts.extend([name, _table_digest(split)] for name, split in splits.items())
    return parts


def _file_digest(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "blake2b").hexdigest()
    except OSError as error:
        raise unreadable(path, error) from None


def _table_digest(split: RawSplit) -> str:
    digest = hashlib.blake2b(str(split.schema.remove_metadata()).encode())
    digest.update(json.dumps([split.class_names, list(split.nested)]).encode())
    for batch in split.read(None):
        digest.update(batch.serialize())
    return digest.hexdigest()
