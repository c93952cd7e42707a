"""Locks between processes, held by a file descriptor: the system releases the lock when the process ends.

A killed process therefore blocks no other process, and a lock file that it left behind has no effect.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows has no such locks: the atomic rename and the age limit must do
    fcntl = None

POLL_SECONDS = 0.05
# Without locks a process cannot see whether a folder is in use, so only folders unused for a day are removed.
SAFE_AGE_SECONDS = 24 * 3600.0


def lock(path: Path, *, shared: bool, on_wait: Callable[[], None] | None = None) -> int:
    """Return a descriptor that holds the lock. `on_wait` is called while another process holds it, and may raise."""
    while True:
        descriptor = _open(path)
        try:
            while _try_lock(descriptor, shared=shared) is False:
                if on_wait is not None:
                    on_wait()
                time.sleep(POLL_SECONDS)
            if still_named(descriptor, path):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


@contextlib.contextmanager
def exclusive(path: Path, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold the lock alone, and remove its file at the end."""
    descriptor = lock(path, shared=False, on_wait=on_wait)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # a leftover lock file has no effect
            path.unlink()
        os.close(descriptor)


@contextlib.contextmanager
def exclusive_now(path: Path) -> Iterator[bool]:
    """Try to take the lock without waiting; yields whether it worked.

    Without locks, it yields whether the file has been unused for long enough.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError:
        yield False
        return
    try:
        locked = _try_lock(descriptor, shared=False)
        if locked is None:
            locked = time.time() - os.fstat(descriptor).st_mtime > SAFE_AGE_SECONDS
        yield locked and still_named(descriptor, path)
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        try:
            return os.open(path, os.O_RDONLY)  # a file of another user, or in a read-only folder
        except FileNotFoundError:
            raise error from None


def still_named(descriptor: int, path: Path) -> bool:
    """Return whether the file still has its name. A lock on a removed file protects nothing, because the next process
    creates and locks another file of that name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _try_lock(descriptor: int, *, shared: bool) -> bool | None:
    """Try to lock now: True, or False if another process holds the lock, or None if the system has no locks.

    Some network file systems have none. There the atomic rename alone keeps entries whole.
    """
    if fcntl is None:
        return None
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES) else None
    return True
