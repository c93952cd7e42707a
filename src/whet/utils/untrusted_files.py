"""Files that somebody else may have made: read within limits, and never written through a link."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MAX_TEXT = 256_000_000
"""The largest description (JSON) that is read at once. Real ones have kilobytes; a sparse file can claim any size."""
MAX_LINE = 64_000_000
PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
"""A file name that leads nowhere else."""


def read_text(path: Path, most: int = MAX_TEXT) -> str:
    """The text of a file; ValueError where it is larger than that or no UTF-8."""
    size = path.stat().st_size
    if size > most:
        raise ValueError(f"it has {size:,} bytes, and at most {most:,} are read")
    return path.read_text(encoding="utf-8-sig")


def parse_json(text: str | bytes) -> Any:
    """JSON; ValueError for everything that is none, nested too deeply included."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def whole_lines(path: Path, most: int = MAX_LINE) -> Iterator[bytes]:
    """Lines that have an end; one that is cut off at the end of the file is left out. ValueError for one too long."""
    with open(path, "rb") as file:
        while line := file.readline(most + 1):
            if line.endswith(b"\n"):
                yield line
            elif len(line) > most:
                raise ValueError(f"a line has more than {most:,} bytes")


def replace_file(path: Path, content: bytes) -> None:
    """Write a file whole or not at all; a link in its place is replaced, and what it leads to is left alone."""
    scratch = path.with_name(f".{path.name}.tmp")
    scratch.unlink(missing_ok=True)
    # A link that comes to this place in between is refused: the file must be a new one.
    handle = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        with open(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(handle)
        os.replace(scratch, path)
    except OSError:
        scratch.unlink(missing_ok=True)
        raise
