"""Opens files: detects compression from the content, and reports the byte offset of invalid text."""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from whet.errors import DataError, EnvironmentFault

MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bz2"}
HARMLESS_BYTES, MAX_TIMES = 200_000_000, 200
COMPRESSED_SUFFIXES = (".gz", ".gzip", ".zst", ".zstd", ".bz2")
FOREIGN_TEXT = {codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}


def plain_suffix(path: str | Path) -> str:
    """Return the suffix of the format: `.csv` for `reviews.csv.gz`."""
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    while suffixes and suffixes[-1] in COMPRESSED_SUFFIXES:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def first_bytes(path: Path, count: int = 4096) -> bytes:
    """Return the beginning of the file's decompressed content."""
    with open_binary(path) as stream:
        try:
            return stream.read(count)
        except OSError as error:
            raise broken_compression(path, error) from None


def open_binary(path: Path) -> BinaryIO:
    """Return the content of a file as bytes, decompressed if its first bytes show a compression."""
    import pyarrow as pa

    try:
        with open(path, "rb") as file:
            start = file.read(4)
    except OSError as error:
        raise unreadable(path, error) from None
    kind = next((kind for magic, kind in MAGIC.items() if start.startswith(magic)), None)
    if kind is None:
        return open(path, "rb")
    return cast(BinaryIO, _Unpacked(path, pa.input_stream(str(path), compression=kind, buffer_size=1 << 20)))


class _Unpacked(io.RawIOBase):
    """Reads a compressed file up to a proportional size: a small file can unpack without end."""

    def __init__(self, path: Path, stream: Any) -> None:
        self._path, self._stream, self._count = path, stream, 0
        self._most = max(HARMLESS_BYTES, MAX_TIMES * path.stat().st_size)

    def read(self, size: int = -1) -> bytes:
        data = bytes(self._stream.read(min(size, self._most + 1) if size >= 0 else self._most + 1))
        self._count += len(data)
        if self._count > self._most:
            raise DataError(
                f"it unpacks to more than {MAX_TIMES} times its size, which no table of texts does.",
                "If it is right all the same, unpack it first.",
                file=self._path.name,
            )
        return data

    def close(self) -> None:
        self._stream.close()
        super().close()


def unreadable(path: Path, error: OSError) -> Exception:
    """Return the error for a file that cannot be opened."""
    if isinstance(error, FileNotFoundError):
        return DataError(f"There is no file {str(path)!r}.")
    if isinstance(error, IsADirectoryError):
        return DataError(f"{str(path)!r} is a folder.", "Give a file.")
    return EnvironmentFault(f"Cannot read {str(path)!r}: {error.strerror or error}.")


def broken_compression(path: Path, error: Exception) -> DataError:
    return DataError(f"the compressed content is broken: {error}.", file=path.name)


class TextReader(io.RawIOBase):
    """Passes bytes on and checks them, so that a decoding error can name the position in the file."""

    def __init__(self, path: Path) -> None:
        self.path, self._stream = path, open_binary(path)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._stream.read(len(buffer))
        except (OSError, EOFError) as error:
            raise broken_compression(self.path, error) from None
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._stream.close()
        super().close()


def open_text(path: Path, encoding: str) -> io.TextIOWrapper:
    """Open text with unchanged line ends. UTF-8 may start with a BOM; surrogates are counted later."""
    try:
        name = codecs.lookup(encoding).name
    except LookupError:
        raise DataError(
            f"There is no encoding {encoding!r}.", "Try --encoding utf-8, utf-16, latin-1 or cp1252."
        ) from None
    if name == "utf-8":
        name = "utf-8-sig"
        start = first_bytes(path, 4)
        for bom, foreign in FOREIGN_TEXT.items():
            if start.startswith(bom):
                raise DataError(
                    f"byte 0 is the mark of {foreign.upper()}, not of UTF-8 text.",
                    f"Use --encoding {foreign}.",
                    file=path.name,
                    go_on=("--encoding", foreign),
                )
    raw = io.BufferedReader(TextReader(path), 1 << 20)
    errors = "surrogatepass" if name.startswith("utf") else "strict"
    return io.TextIOWrapper(raw, encoding=name, errors=errors, newline="")


def lines(path: Path, encoding: str, longest: int) -> Iterator[str]:
    """Yield lines with their ends. A line of more than `longest` characters raises before it fills the memory."""
    with open_text(path, encoding) as text:
        readline = text.readline
        try:
            while line := readline(longest + 1):
                if len(line) > longest:
                    raise OverlongLine(longest)
                yield line
        except UnicodeDecodeError:
            raise undecodable(path, encoding) from None


class OverlongLine(Exception):
    """A line that is too long."""


def undecodable(path: Path, encoding: str) -> DataError:
    """Return where the bytes stop being text, by decoding again: the buffered reader does not know the offset."""
    decoder = codecs.getincrementaldecoder(encoding)("surrogatepass" if "utf" in encoding.lower() else "strict")
    offset, rows = 0, 0
    with open_binary(path) as stream:
        while True:
            block = stream.read(1 << 20)
            pending = len(decoder.getstate()[0])
            try:
                decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                at = offset - pending + error.start
                rows += error.object[: error.start].count(b"\n") + 1
                value = error.object[error.start]
                return DataError(
                    f"byte {at} (line {rows}) is 0x{value:02x}, which is not {encoding.upper()} text.",
                    "If the file is in another encoding, name it: --encoding latin-1, cp1252 or utf-16.",
                    file=path.name,
                    go_on=("--encoding", "cp1252" if _reads_as(path, "cp1252") else "latin-1"),
                )
            offset += len(block)
            rows += block.count(b"\n")
            if not block:
                return DataError(f"the file is not {encoding.upper()} text.", file=path.name)


def _reads_as(path: Path, encoding: str) -> bool:
    decoder = codecs.getincrementaldecoder(encoding)()
    with open_binary(path) as stream:
        try:
            while block := stream.read(1 << 20):
                decoder.decode(block)
        except UnicodeDecodeError:
            return False
    return True


def mend_surrogates(value: str) -> tuple[str, int]:
    """Return the text with surrogate pairs joined and lone ones replaced by U+FFFD, and the number replaced."""
    mended = value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return mended, mended.count("\ufffd") - value.count("\ufffd")
