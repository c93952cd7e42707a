"""Reads files from untrusted sources within limits, and never writes through a link."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from whet.utils.files import replacing

MAX_TEXT = 256_000_000
"""The largest JSON text that is read at once. Real ones have kilobytes; a sparse file can claim any size."""
MAX_LINE = 64_000_000
PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
"""A file name without any path."""


def read_text(path: Path, most: int = MAX_TEXT) -> str:
    """Return the text of a file; ValueError if it is larger than `most` bytes or not UTF-8."""
    size = path.stat().st_size
    if size > most:
        raise ValueError(f"it has {size:,} bytes, and at most {most:,} are read")
    return path.read_text(encoding="utf-8-sig")


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; ValueError for anything invalid, including too deep nesting."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def whole_lines(path: Path, most: int = MAX_LINE) -> Iterator[bytes]:
    """Yield complete lines; an unfinished last line is left out. ValueError for a line that is too long."""
    with open(path, "rb") as file:
        while line := file.readline(most + 1):
            if line.endswith(b"\n"):
                yield line
            elif len(line) > most:
                raise ValueError(f"a line has more than {most:,} bytes")


def replace_file(path: Path, content: bytes) -> None:
    """Write a file by an atomic rename. A link of that name is replaced, and its target is left alone."""
    with replacing(path) as scratch, open(scratch, "xb") as file:  # "x" refuses a link created in the meantime
        file.write(content)
