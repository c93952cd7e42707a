"""Writes files and syncs them to disk, with their SHA-256, and gives them their names by atomic renames."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from whet.errors import EnvironmentFault
from whet.utils.background import BackgroundTasks

SYNCED_AT_ONCE = 32 << 20
WORTH_A_THREAD = 1 << 20
"""Smallest piece in bytes that is hashed on another thread; small files use no thread, which the system may refuse."""


def write_file(path: Path, pieces: Iterator[Any]) -> dict[str, Any]:
    """Write and fsync a file; return its SHA-256 and its size. Hashing, copying and disk work run in parallel.

    A piece may be a buffer that is used again for the next one, so the next is taken only after this one is written
    and hashed.
    """
    digest, size, asked = hashlib.sha256(), 0, 0
    with open(path, "xb") as file, BackgroundTasks("whet-disk") as beside:
        syncs: list[Future[None]] = []
        for piece in pieces:
            if len(piece) < WORTH_A_THREAD:
                digest.update(piece)
                size += file.write(piece)
            else:
                hashed = beside.submit(digest.update, piece)
                size += file.write(piece)
                hashed.result()
            if size - asked >= SYNCED_AT_ONCE and (not syncs or syncs[-1].done()):
                syncs, asked = [*syncs, beside.submit(os.fsync, file.fileno())], size
        for sync in syncs:
            sync.result()  # the system reports an error to one fsync only
        file.flush()
        os.fsync(file.fileno())
    return {"sha256": digest.hexdigest(), "bytes": size}


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; what is written there is synced and renamed to `path`, or deleted on error.

    The caller writes a file or a folder. A link of the name `path` is replaced, and its target is left alone. An older
    folder is only replaced if it is empty.
    """
    scratch = path.with_name(f".{path.name}.tmp")
    _remove(scratch)  # left by a process that was killed
    try:
        yield scratch
        sync_tree(scratch) if scratch.is_dir() else sync_file(scratch)
        os.replace(scratch, path)
    finally:
        _remove(scratch)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def unwritable(path: Path, error: OSError, hint: str) -> EnvironmentFault:
    """The error for a file or folder that cannot be written."""
    return EnvironmentFault(f"Cannot write to {str(path)!r}: {error.strerror or error}.", hint)


def sync_file(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Sync a folder: a file's name is on disk only after this."""
    if os.name == "nt":  # Windows cannot open folders
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(path: Path) -> None:
    """Sync everything in a folder, then the folder itself."""
    for entry in sorted(path.iterdir()):
        sync_tree(entry) if entry.is_dir() else sync_file(entry)
    sync_folder(path)
