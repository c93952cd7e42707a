"""Files that are on the disk, and known by their SHA-256, once their writer says so."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from whet.errors import EnvironmentFault
from whet.utils.background import BackgroundTasks

SYNCED_AT_ONCE = 32 << 20
WORTH_A_THREAD = 1 << 20
"""Bytes from which on a piece is hashed beside: small files ask for no thread, which a machine may refuse."""


def write_file(path: Path, pieces: Iterator[Any]) -> dict[str, Any]:
    """Write, fsync, and say what was written: hash, copy and disk side by side, and other threads go on.

    A piece may lie in a buffer that the next one takes: it is asked for once this one is written and hashed.
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
            sync.result()  # an error is told to one fsync only
        file.flush()
        os.fsync(file.fileno())
    return {"sha256": digest.hexdigest(), "bytes": size}


def unwritable(path: Path, error: OSError, hint: str) -> EnvironmentFault:
    """The error for a file or folder that cannot be written."""
    return EnvironmentFault(f"Cannot write to {str(path)!r}: {error.strerror or error}.", hint)


def sync_file(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Names are on disk only once their folder is."""
    if os.name == "nt":  # Windows opens no folders
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(path: Path) -> None:
    """Everything in a folder, then the folder."""
    for entry in sorted(path.iterdir()):
        sync_tree(entry) if entry.is_dir() else sync_file(entry)
    sync_folder(path)
