"""Checksums of a cache entry, written when it is built and compared before it is used.

`entry.json` holds the size and the BLAKE2b checksum of every file, the path of the entry, and a checksum of itself.

An entry is hashed in full at its first use after a boot. Afterwards the lock file holds a mark: a digest of the
manifest, of the boot, and of device, inode, size, modification time and change time of each file. No program can
write to a file without updating its change time, and none can set that time. So an entry with the same mark is the
one that was hashed. Files that changed within the last seconds get no mark: file system clocks are coarse, and a
second change could go unnoticed. A damaged or missing mark only costs the full check. The mark does not notice a disk
that changes bytes by itself; the next boot does.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MANIFEST = "entry.json"
FORMAT = 2
SETTLED_NS = 3_000_000_000
"""Age of a file from which on any change updates its change time, even with a coarse clock."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_MARK_BYTES = 32


class Damaged(Exception):
    """An entry that differs from what was written; the text has the reason."""


def write_manifest(folder: Path, place: str, note: str) -> None:
    """Write the checksums of every file in the folder. `place` is the final path: KIND/KEY."""
    files = {}
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        with open(file, "rb") as opened:
            files[file.relative_to(folder).as_posix()] = {"bytes": file.stat().st_size, "blake2b": _sum(opened)}
    content = {"format": FORMAT, "place": place, "note": note, "files": files}
    (folder / MANIFEST).write_bytes(_canonical({**content, "blake2b": _digest(_canonical(content)).hex()}))


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest; raise Damaged if it does not match its own checksum."""
    try:
        raw = (folder / MANIFEST).read_bytes()
        content = json.loads(raw)
        own = content.pop("blake2b", "")
    except FileNotFoundError:
        raise Damaged(f"{MANIFEST} is missing") from None
    except OSError as error:
        raise Damaged(f"{MANIFEST} cannot be read: {error.strerror or error}") from None
    except (ValueError, AttributeError, TypeError, RecursionError):
        raise Damaged(f"{MANIFEST} is not a manifest") from None
    if not own and set(content) == {"note", "files"}:
        raise Damaged("it has no checksums: an earlier version wrote it")
    if _canonical({**content, "blake2b": own}) != raw or _digest(_canonical(content)).hex() != own:
        raise Damaged(f"{MANIFEST} does not match its own checksum")
    if content["format"] != FORMAT:
        raise Damaged(f"it has format {content['format']}, and this version reads {FORMAT}")
    return dict(content)


def prove(folder: Path, place: str, lock: int | None) -> None:
    """Raise Damaged unless the entry is unchanged. `lock` is an open descriptor of its lock file."""
    manifest = read_manifest(folder)
    if manifest["place"] != place:
        raise Damaged(f"it is the entry {manifest['place']}")
    # Read the times before the contents: a later change has other times.
    now = _time_of(lock)
    stats = {name: _stat(folder / name, entry["bytes"]) for name, entry in manifest["files"].items()}
    settled = now - max((each.st_ctime_ns for each in stats.values()), default=0) >= SETTLED_NS
    mark = _mark(manifest, stats) if settled else None
    if mark is not None and mark == _read_mark(lock):
        return
    for name, entry in manifest["files"].items():
        _compare(folder / name, entry["blake2b"])
    if mark is not None:
        _write_mark(lock, mark)


def size_of(folder: Path) -> int:
    """Return the bytes of all files in it, in any state."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(parent, name)).st_size
    return total


def _stat(file: Path, size: int) -> os.stat_result:
    try:
        found = os.lstat(file)
    except FileNotFoundError:
        raise Damaged(f"{file.name} is missing") from None
    except OSError as error:
        raise Damaged(f"{file.name} cannot be read: {error.strerror or error}") from None
    if not stat.S_ISREG(found.st_mode):
        raise Damaged(f"{file.name} is not a file")
    if found.st_size != size:
        raise Damaged(f"{file.name} has {found.st_size} bytes instead of {size}")
    return found


def _compare(file: Path, expected: str) -> None:
    try:
        with open(file, "rb") as opened:
            found = _sum(opened)
    except OSError as error:
        raise Damaged(f"{file.name} cannot be read: {error.strerror or error}") from None
    if found != expected:
        raise Damaged(f"{file.name} does not match its checksum")


def _mark(manifest: Mapping[str, Any], stats: Mapping[str, os.stat_result]) -> bytes | None:
    """None if it is unknown whether the machine has been restarted."""
    try:
        boot = _BOOT.read_bytes()
    except OSError:
        return None
    places = [[name, s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns] for name, s in stats.items()]
    return _digest(boot + _canonical({"manifest": manifest, "files": places}))


def _read_mark(lock: int | None) -> bytes:
    with contextlib.suppress(OSError):
        return b"" if lock is None else os.pread(lock, _MARK_BYTES + 1, 0)
    return b""


def _write_mark(lock: int | None, mark: bytes) -> None:
    with contextlib.suppress(OSError):  # a read-only lock file: the next use checks in full again
        if lock is not None:
            os.ftruncate(lock, os.pwrite(lock, mark, 0))


def _time_of(lock: int | None) -> int:
    """Return the time of the file system's clock, in nanoseconds; 0 if it is unknown."""
    try:
        if lock is None:
            return 0
        os.utime(lock)
        return os.fstat(lock).st_mtime_ns
    except (OSError, TypeError, NotImplementedError):
        return 0


def _sum(file: Any) -> str:
    return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=_MARK_BYTES)).hexdigest()


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_MARK_BYTES).digest()


def _canonical(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, ensure_ascii=False).encode("utf-8", "surrogatepass")
