"""Locks between processes: held by a descriptor, and dropped by the system with the process that holds it.

A killed process blocks nobody, and a lock file that one left behind means nothing by itself.
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
except ImportError:  # Windows: no locks between processes; renaming and the age rule have to do
    fcntl = None

POLL_SECONDS = 0.05
# Without locks nobody can tell whether a folder is in use, so only what was left alone for a day may go.
SAFE_AGE_SECONDS = 24 * 3600.0


def lock(path: Path, *, shared: bool, on_wait: Callable[[], None] | None = None) -> int:
    """A descriptor that holds the lock. `on_wait` is called while another process holds it, and may raise."""
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
    """Hold the lock alone; the file goes with it."""
    descriptor = lock(path, shared=False, on_wait=on_wait)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # a lock file that stays means nothing
            path.unlink()
        os.close(descriptor)


@contextlib.contextmanager
def exclusive_now(path: Path) -> Iterator[bool]:
    """Try to hold the lock alone, without waiting; says whether it worked.

    Where there are no locks, it says whether the file was left alone for long enough.
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
            return os.open(path, os.O_RDONLY)  # a file of another user, or in a folder that may only be read
        except FileNotFoundError:
            raise error from None


def still_named(descriptor: int, path: Path) -> bool:
    """A lock on a file that was removed protects nothing: the next process locks another file of that name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
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
