"""Arrays in files: written in pieces, mapped for reading, and removed from memory on request."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import DTypeLike, NDArray

_DONT_NEED = 4  # MADV_DONTNEED on Linux


class ArrayWriter:
    """A one-dimensional .npy file that grows."""

    def __init__(self, path: Path, dtype: DTypeLike) -> None:
        self.dtype = np.dtype(dtype)
        self.count = 0
        self._file: BinaryIO = path.open("wb")
        self._write_header()

    def append(self, values: NDArray[Any]) -> None:
        self._file.write(np.ascontiguousarray(values, self.dtype).data)
        self.count += len(values)

    def close(self) -> None:
        # numpy leaves room in the header for the length to grow, so it can be overwritten.
        body = self._file.tell() - self.count * self.dtype.itemsize
        self._file.seek(0)
        self._write_header()
        assert self._file.tell() == body
        self._file.close()

    def _write_header(self) -> None:
        header = {"descr": self.dtype.str, "fortran_order": False, "shape": (self.count,)}
        npy.write_array_header_1_0(self._file, header)

    def __enter__(self) -> ArrayWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._file.close()


def slice_indices(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the indices start, start + 1, … of every slice, one slice after another."""
    before = np.cumsum(lengths) - lengths
    shifts: NDArray[np.int64] = np.repeat(starts - before, lengths)
    return np.arange(len(shifts)) + shifts


def open_array(path: Path) -> NDArray[Any]:
    """Return the mapped array of a .npy file, as a plain array: slices of numpy's memmap class are slow."""
    with path.open("rb") as file:
        npy.read_magic(file)
        (count,), _, _ = npy.read_array_header_1_0(file)
    return np.asarray(np.load(path, mmap_mode="r" if count else None, allow_pickle=False))


def forget_pages(files: Iterable[str | os.PathLike[str]]) -> None:
    """Remove the pages of mapped files from this process's memory; they are read again on access.

    A pass over a large mapped file makes the process as large as the file, until the system needs the memory. Only
    read-only mappings of these files are affected. On systems other than Linux this does nothing.
    """
    names = {os.path.realpath(file) for file in files}
    if not names or not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            fields = line.rstrip("\n").split(maxsplit=5)
            if len(fields) == 6 and fields[5] in names and fields[1].startswith("r--"):
                start, stop = (int(part, 16) for part in fields[0].split("-"))
                libc.madvise(start, stop - start, _DONT_NEED)
