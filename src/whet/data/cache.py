"""Things that are computed once and kept: folders named by what they were computed from.

An entry is a folder `ROOT/KIND/KEY`. It is built in a temporary folder beside it and renamed, so it is whole
or absent. `KEY.lock` beside it serves three ends: while a process builds the entry it holds the lock alone,
so that other processes wait instead of doing the work again; while a process uses the entry it shares the
lock, so that making room never takes the entry away from it; and the file's time says when the entry was last
used. The system drops locks with the process, so a killed process blocks nobody.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.errors import EnvironmentFault, UsageError

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows: no locks between processes; renaming and the age rule have to do
    fcntl = None

DEFAULT_LIMIT_GB = 20.0
GB = 1_000_000_000
POLL_SECONDS = 0.05
# Without locks nobody can tell whether a folder is in use, so only what was left alone for a day may go.
SAFE_AGE_SECONDS = 24 * 3600.0

_MANIFEST = "entry.json"
_LIMIT = "limit"
_SCRATCH = ".building-"

# Locks of the entries this process uses, held until it ends: arrays may be mapped from them at any time.
_held: dict[Path, int] = {}


@dataclass(frozen=True)
class Entry:
    """One folder of the cache, as `whet cache` lists it."""

    kind: str
    key: str
    path: Path
    note: str
    size: int
    used: float
    """When it was last used, in seconds since 1970."""


def cache_root() -> Path:
    """Where the cache is: WHET_CACHE, else `whet` in the user's cache folder."""
    if chosen := os.environ.get("WHET_CACHE"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "whet"


def fingerprint(*parts: Any) -> str:
    """32 hexadecimal digits that differ when any part differs in value, type or place."""
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


def obtain(
    kind: str,
    key: str,
    build: Callable[[Path], None],
    *,
    root: Path | None = None,
    note: str = "",
    on_wait: Callable[[], None] | None = None,
) -> Path:
    """The folder of this entry, built by `build(empty_folder)` if it is not there.

    One process builds; others that ask for the same entry wait and call `on_wait` meanwhile, which may raise.
    The entry stays until this process ends. What `build` raises comes through, and leaves nothing behind.
    """
    home = (cache_root() if root is None else root) / kind
    path, lock_path = home / key, home / f"{key}.lock"
    with _disk_faults(home):
        home.mkdir(parents=True, exist_ok=True)
        while True:
            _hold(path, lock_path, on_wait)
            if _whole(path):
                _touch(lock_path)
                return path
            _release(path)
            with _alone(lock_path, on_wait, unless=lambda: _whole(path)) as alone:
                if alone and not _whole(path):
                    _build(path, build, note)
                    trim(root=home.parent, keep=path)


def entries(root: Path | None = None) -> list[Entry]:
    """Every whole entry, the one used longest ago first."""
    root = cache_root() if root is None else root
    found = []
    for manifest in sorted(root.glob(f"*/*/{_MANIFEST}")):
        path = manifest.parent
        if path.name.startswith(_SCRATCH):
            continue
        try:
            content = json.loads(manifest.read_text(encoding="utf-8"))
            used = _lock_of(path).stat().st_mtime if _lock_of(path).exists() else manifest.stat().st_mtime
            size = sum(content["files"].values())
            found.append(Entry(path.parent.name, path.name, path, content["note"], size, used))
        except (OSError, ValueError, KeyError):
            continue  # removed by another process, or damaged: `obtain` builds it anew
    return sorted(found, key=lambda entry: entry.used)


def trim(limit_gb: float | None = None, *, root: Path | None = None, keep: Path | None = None) -> list[Entry]:
    """Remove what was used longest ago until the cache fits, but nothing in use. Returns what went."""
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
    """Remove every entry that no process uses. Returns what went."""
    return trim(-1.0, root=root)


def read_limit(root: Path | None = None) -> float:
    """The size limit in GB that `whet cache --limit` set, or the default."""
    try:
        return float(((cache_root() if root is None else root) / _LIMIT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return DEFAULT_LIMIT_GB


def write_limit(limit_gb: float, root: Path | None = None) -> None:
    """Set the size limit for all later runs."""
    root = cache_root() if root is None else root
    if not 0 <= limit_gb < float("inf"):
        raise UsageError(f"The cache limit is {limit_gb!r}.", "It must be a number of gigabytes, 0 or more.")
    with _disk_faults(root):
        root.mkdir(parents=True, exist_ok=True)
        (root / _LIMIT).write_text(f"{limit_gb}\n", encoding="utf-8")


def in_use(path: Path) -> bool:
    """Does a live process use this entry?"""
    with _exclusive_now(_lock_of(path)) as alone:
        return not alone


def _build(path: Path, build: Callable[[Path], None], note: str) -> None:
    scratch = path.with_name(f"{_SCRATCH}{path.name}-{os.getpid()}-{secrets.token_hex(4)}")
    scratch.mkdir()
    try:
        build(scratch)
        files = {str(file.relative_to(scratch)): file.stat().st_size for file in scratch.rglob("*") if file.is_file()}
        manifest = {"note": note, "files": files}
        (scratch / _MANIFEST).write_text(json.dumps(manifest, ensure_ascii=False), encoding="utf-8")
        if path.exists() and not _whole(path):
            shutil.rmtree(path, ignore_errors=True)
        try:
            scratch.rename(path)
        except OSError:
            if not _whole(path):  # otherwise another process, where locks do not work, was first: use its entry
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _whole(path: Path) -> bool:
    """Is everything there that was written? By size: that finds files cut short, and costs nothing."""
    try:
        files = json.loads((path / _MANIFEST).read_text(encoding="utf-8"))["files"]
        return all((path / name).stat().st_size == size for name, size in files.items())
    except (OSError, ValueError, KeyError, AttributeError):
        return False


def _remove(path: Path) -> bool:
    lock_path = _lock_of(path)
    with _exclusive_now(lock_path) as alone:
        if not alone:
            return False
        # Renamed first, so that nobody ever sees half an entry.
        scratch = path.with_name(f"{_SCRATCH}{path.name}-gone-{secrets.token_hex(4)}")
        try:
            path.rename(scratch)
        except OSError:
            return False
        shutil.rmtree(scratch, ignore_errors=True)
        lock_path.unlink(missing_ok=True)
        return True


def _sweep(root: Path) -> None:
    """Remove what killed processes left half built: nobody holds the lock of such an entry."""
    for scratch in root.glob(f"*/{_SCRATCH}*"):
        key = scratch.name.removeprefix(_SCRATCH).rsplit("-", 2)[0]
        path = scratch.with_name(key)
        with _exclusive_now(_lock_of(path)) as alone:
            if alone:
                shutil.rmtree(scratch, ignore_errors=True)
                if not path.exists():
                    _lock_of(path).unlink(missing_ok=True)


def _lock_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")


def _touch(lock_path: Path) -> None:
    with contextlib.suppress(OSError):  # a cache that may only be read still serves
        os.utime(lock_path)


def _hold(path: Path, lock_path: Path, on_wait: Callable[[], None] | None) -> None:
    """Share the entry's lock until the process ends."""
    if path not in _held:
        descriptor = _locked(lock_path, shared=True, on_wait=on_wait)
        assert descriptor is not None
        _held[path] = descriptor


def _release(path: Path) -> None:
    descriptor = _held.pop(path, None)
    if descriptor is not None:
        os.close(descriptor)


@contextlib.contextmanager
def _alone(lock_path: Path, on_wait: Callable[[], None] | None, unless: Callable[[], bool]) -> Iterator[bool]:
    """Hold the lock alone, or learn that there is no more need to.

    Whoever built the entry shares its lock for as long as it lives: waiting for that to end could take for ever.
    """
    descriptor = _locked(lock_path, shared=False, on_wait=on_wait, unless=unless)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


@contextlib.contextmanager
def _exclusive_now(lock_path: Path) -> Iterator[bool]:
    """Try to hold the lock alone, without waiting; says whether it worked.

    Where there are no locks, it says whether the entry was left alone for long enough.
    """
    try:
        descriptor = os.open(lock_path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError:
        yield False
        return
    try:
        locked = _try_lock(descriptor, shared=False)
        if locked is None:
            locked = time.time() - os.fstat(descriptor).st_mtime > SAFE_AGE_SECONDS
        yield locked and _still_named(descriptor, lock_path)
    finally:
        os.close(descriptor)


def _locked(
    lock_path: Path,
    *,
    shared: bool,
    on_wait: Callable[[], None] | None,
    unless: Callable[[], bool] = lambda: False,
) -> int | None:
    """A descriptor that holds the lock; None if `unless` came true before others let go of it."""
    while True:
        try:
            descriptor = os.open(lock_path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError:
            descriptor = os.open(lock_path, os.O_RDONLY)
        try:
            while _try_lock(descriptor, shared=shared) is False:
                if unless():
                    os.close(descriptor)
                    return None
                if on_wait is not None:
                    on_wait()
                time.sleep(POLL_SECONDS)
            if _still_named(descriptor, lock_path):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _still_named(descriptor: int, lock_path: Path) -> bool:
    """Whoever removes an entry removes its lock file; a lock on a file without a name protects nothing."""
    try:
        return os.path.samestat(os.fstat(descriptor), lock_path.stat())
    except FileNotFoundError:
        return False


def _try_lock(descriptor: int, *, shared: bool) -> bool | None:
    """Lock it now: True, or False if another holds it, or None where there are no locks.

    Some network file systems have none: there the atomic rename alone keeps entries whole.
    """
    if fcntl is None:
        return None
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES) else None
    return True


@contextlib.contextmanager
def _disk_faults(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            hint = "Free some room, run `whet cache --clear`, or set WHET_CACHE to a folder on another disk."
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            hint = "Set WHET_CACHE to a folder that can be written."
        else:
            raise
        raise EnvironmentFault(f"Cannot write the cache in {str(path)!r}: {error.strerror or error}.", hint) from None
