"""A cache of computed results: folders named by a hash of their inputs.

An entry is a folder `ROOT/KIND/KEY`. It is built in a temporary folder next to it and renamed, so it is complete or
absent. `cache_manifest` verifies it before use, and a damaged entry is built again.

There are two locks next to it (see `file_locks`). A process that uses the entry shares `KEY.lock` until it ends, so
that trimming never deletes the entry; that file's time is the entry's last use. A process that builds the entry holds
`KEY.building` alone, so that other processes wait instead of repeating the work.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import math
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.data.cache_manifest import Damaged, prove, read_manifest, size_of, write_manifest
from whet.errors import EnvironmentFault, UsageError
from whet.utils.file_locks import exclusive, exclusive_now, lock, still_named
from whet.utils.text import Echo

DEFAULT_LIMIT_GB = 20.0
GB = 1_000_000_000
BUILDS = 3
"""How often to rebuild an entry that is damaged right after it was built."""

_LIMIT = "limit"
_SCRATCH = ".building-"
_LOCKS = (".lock", ".building")

# Locks of the entries in use, held until this process ends, because arrays may be mapped from them at any time. None in
# a read-only folder, where no process can delete entries.
_held: dict[Path, int | None] = {}


@dataclass(frozen=True)
class Entry:
    """A folder of the cache, as `whet cache` lists it."""

    kind: str
    key: str
    path: Path
    note: str
    size: int
    used: float
    """Time of the last use, in seconds since 1970."""


def cache_root() -> Path:
    """Return the cache's folder: WHET_CACHE, else `whet` in the user's cache folder."""
    if chosen := os.environ.get("WHET_CACHE"):
        return expand_home(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else expand_home("~/.cache")) / "whet"


def expand_home(name: str) -> Path:
    """Return the path with `~` replaced, if the system has a home folder."""
    try:
        return Path(name).expanduser()
    except RuntimeError:  # a container may run as a user without an account
        raise EnvironmentFault(
            f"There is no home folder for {name!r}: HOME is not set, and the system has none either.",
            "Set HOME, or set WHET_CACHE to a folder that can be written and give paths without ~.",
        ) from None


def fingerprint(*parts: Any) -> str:
    """Return 32 hexadecimal digits that depend on each part's value, type and position."""
    digest = hashlib.blake2b(digest_size=16)
    _feed(digest, parts)
    return digest.hexdigest()


def _feed(digest: Any, part: Any) -> None:
    if isinstance(part, dict):
        part = ("dict", *sorted(part.items()))
    if isinstance(part, tuple | list):
        digest.update(b"(%d:" % len(part))
        for item in part:
            _feed(digest, item)
        return
    data: bytes | memoryview
    if isinstance(part, str):
        tag, data = b"s", part.encode("utf-8", "surrogatepass")
    elif isinstance(part, bytes | bytearray | memoryview):
        tag, data = b"b", memoryview(part).cast("B")
    elif part is None or isinstance(part, bool | int | float):
        tag, data = type(part).__name__.encode(), repr(part).encode()
    else:
        raise TypeError(f"fingerprint takes text, bytes, numbers and lists of them, not {type(part).__name__}")
    digest.update(tag + b"%d:" % len(data))
    digest.update(data)


def get_or_build(
    kind: str,
    key: str,
    build: Callable[[Path], None],
    *,
    root: Path | None = None,
    note: str = "",
    on_wait: Callable[[], None] | None = None,
    echo: Echo = lambda line: None,
) -> Path:
    """Return the folder of this entry; build it with `build(empty_folder)` if it is missing or damaged.

    A damaged entry is reported. One process builds; others that need the same entry wait and call `on_wait`, which
    may raise. The entry stays until this process ends. If `build` raises, nothing is left behind.
    """
    home = (cache_root() if root is None else root) / kind
    path = home / key
    with _disk_faults(home):
        home.mkdir(parents=True, exist_ok=True)
    for attempt in range(BUILDS + 1):
        with _disk_faults(home):
            _hold(path, on_wait)
            damage = _damage(path)
            if not damage:
                return path
            if attempt == BUILDS:
                break
            if not attempt and os.path.lexists(path):
                echo(f"The cache entry {kind}/{key[:12]} is damaged ({damage}): it is built again.")
            with exclusive(_building_lock_of(path), on_wait):
                if _damage(path):  # otherwise another process has built it meanwhile
                    _build(path, build, note)
                    trim(root=home.parent, keep=path)
    raise EnvironmentFault(
        f"The cache entry {str(path)!r} is damaged as soon as it is built: {damage}.",
        "The disk may be failing, or another program may write there: set WHET_CACHE to another folder.",
    )


def entries(root: Path | None = None) -> list[Entry]:
    """Return every entry, including damaged ones, least recently used first."""
    root = cache_root() if root is None else root
    found = []
    for path in sorted(root.glob("*/*")):
        if path.name.startswith(_SCRATCH) or not path.is_dir() or path.name.endswith(_LOCKS):
            continue
        try:
            manifest = read_manifest(path)
            note, size = str(manifest["note"]), sum(file["bytes"] for file in manifest["files"].values())
        except Damaged as damage:
            note, size = f"damaged: {damage}", size_of(path)
        with contextlib.suppress(OSError):  # removed by another process meanwhile
            lock_path = _lock_of(path)
            used = (lock_path if lock_path.exists() else path).stat().st_mtime
            found.append(Entry(path.parent.name, path.name, path, note, size, used))
    return sorted(found, key=lambda entry: entry.used)


def trim(limit_gb: float | None = None, *, root: Path | None = None, keep: Path | None = None) -> list[Entry]:
    """Remove the least recently used entries until the cache fits, except those in use. Returns the removed ones."""
    root = cache_root() if root is None else root
    limit = (read_limit(root) if limit_gb is None else limit_gb) * GB
    _sweep(root)
    there = entries(root)
    size = sum(entry.size for entry in there)
    removed = []
    for entry in there:
        if size <= limit:
            break
        if entry.path != keep and _remove(entry.path):
            size -= entry.size
            removed.append(entry)
    return removed


def clear(root: Path | None = None) -> list[Entry]:
    """Remove every unused entry. Returns the removed ones."""
    return trim(-1.0, root=root)


def read_limit(root: Path | None = None) -> float:
    """Return the size limit in GB set by `whet cache --limit`, or the default."""
    try:
        limit = float(((cache_root() if root is None else root) / _LIMIT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return DEFAULT_LIMIT_GB
    return limit if math.isfinite(limit) and limit >= 0 else DEFAULT_LIMIT_GB


def write_limit(limit_gb: float, root: Path | None = None) -> None:
    """Set the size limit for all later runs."""
    root = cache_root() if root is None else root
    if not 0 <= limit_gb < float("inf"):
        raise UsageError(f"The cache limit is {limit_gb!r}.", "It must be a number of gigabytes, 0 or more.")
    with _disk_faults(root):
        root.mkdir(parents=True, exist_ok=True)
        (root / _LIMIT).write_text(f"{limit_gb}\n", encoding="utf-8")


def in_use(path: Path) -> bool:
    """Return whether a live process uses this entry."""
    with exclusive_now(_lock_of(path)) as alone:
        return not alone


def _build(path: Path, build: Callable[[Path], None], note: str) -> None:
    scratch = _scratch(path, str(os.getpid()))
    scratch.mkdir()
    try:
        with _source_faults():
            build(scratch)
        write_manifest(scratch, _place(path), note)
        _put_in_place(scratch, path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _put_in_place(scratch: Path, path: Path) -> None:
    """Rename the new entry over a damaged one. Without working locks, another process may do the same meanwhile."""
    for attempt in range(BUILDS):
        try:
            if os.path.lexists(path) and _damage(path):
                _move_to_trash(path)
            scratch.rename(path)
            return
        except OSError:
            if not _damage(path):  # another process was first: use its entry
                return
            if attempt == BUILDS - 1:
                raise


def _damage(path: Path) -> str:
    """Return why the entry cannot be used; empty if it is complete."""
    try:
        prove(path, _place(path), _held.get(path))
    except Damaged as damage:
        return str(damage)
    return ""


def _remove(path: Path) -> bool:
    lock_path = _lock_of(path)
    with exclusive_now(lock_path) as alone:
        if not alone:
            return False
        try:
            _move_to_trash(path)
        except OSError:
            return False
        _delete(lock_path)
        return True


def _move_to_trash(path: Path) -> None:
    """Rename the entry first, so that no process sees half of it. Files mapped from it stay readable."""
    doomed = _scratch(path, "gone")
    path.rename(doomed)
    _delete(doomed)


def _delete(path: Path) -> None:
    """Delete a file or folder with its contents; anything that cannot be deleted stays."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def _sweep(root: Path) -> None:
    """Remove entries left half built by killed processes: their locks are free."""
    for scratch in root.glob(f"*/{_SCRATCH}*"):
        path = scratch.with_name(scratch.name.removeprefix(_SCRATCH).rsplit("-", 2)[0])
        building = _building_lock_of(path)
        with exclusive_now(building) as alone:
            if alone:
                _delete(scratch)
                _delete(building)
        if alone and not path.exists():
            with exclusive_now(_lock_of(path)) as unused:
                if unused:
                    _delete(_lock_of(path))


def _place(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def _scratch(path: Path, mark: str) -> Path:
    return path.with_name(f"{_SCRATCH}{path.name}-{mark}-{secrets.token_hex(4)}")


def _lock_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")


def _building_lock_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.building")


def _hold(path: Path, on_wait: Callable[[], None] | None) -> None:
    """Share the entry's lock until the process ends."""
    descriptor = _held.get(path)
    if descriptor is not None and still_named(descriptor, _lock_of(path)):
        return
    _release(path)
    try:
        _held[path] = lock(_lock_of(path), shared=True, on_wait=on_wait)
    except OSError:
        if not path.is_dir():
            raise
        _held[path] = None  # an entry in a read-only folder


def _release(path: Path) -> None:
    descriptor = _held.pop(path, None)
    if descriptor is not None:
        os.close(descriptor)


class _SourceFault(Exception):
    """Carries an OSError of reading a source past the handlers for the cache."""

    def __init__(self, error: OSError) -> None:
        self.error = error


@contextlib.contextmanager
def _source_faults() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _FULL or error.errno in _CLOSED:
            raise
        raise _SourceFault(error) from None


_FULL = (errno.ENOSPC, errno.EDQUOT)
_CLOSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)


@contextlib.contextmanager
def _disk_faults(path: Path) -> Iterator[None]:
    try:
        yield
    except _SourceFault as fault:
        raise fault.error from None
    except OSError as error:
        full = "Free some room, run `whet cache --clear`, or set WHET_CACHE to a folder on another disk."
        hint = full if error.errno in _FULL else "Set WHET_CACHE to a folder that can be written."
        raise EnvironmentFault(f"Cannot write the cache in {str(path)!r}: {error.strerror or error}.", hint) from None
