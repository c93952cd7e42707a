from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from whet.utils import files as disk
from whet.utils.files import replacing, sync_tree, write_file

LARGE = 1 << 20


def pieces_of_one_buffer(number: int) -> Iterator[memoryview]:
    buffer = bytearray(LARGE)
    for each in range(number):
        buffer[:] = bytes([each]) * LARGE
        yield memoryview(buffer)


def test_a_file_is_known_by_its_sum_and_size(tmp_path: Path) -> None:
    written = write_file(tmp_path / "file", iter([b"one", b"", b"two"]))
    assert (tmp_path / "file").read_bytes() == b"onetwo"
    assert written == {"sha256": hashlib.sha256(b"onetwo").hexdigest(), "bytes": 6}


def test_pieces_may_share_one_buffer(tmp_path: Path) -> None:
    written = write_file(tmp_path / "file", pieces_of_one_buffer(8))
    expected = b"".join(bytes([each]) * LARGE for each in range(8))
    assert (tmp_path / "file").read_bytes() == expected
    assert written["sha256"] == hashlib.sha256(expected).hexdigest()


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"theirs")
    with pytest.raises(FileExistsError):
        write_file(tmp_path / "file", iter([b"ours"]))


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_no_failed_sync_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int) -> None:
    calls = 0

    def sync(handle: int) -> None:
        nonlocal calls
        calls += 1
        if calls == failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def until_two_began() -> Iterator[bytes]:
        while calls < 2:
            yield b"piece"

    monkeypatch.setattr(disk, "SYNCED_AT_ONCE", 1)
    monkeypatch.setattr(os, "fsync", sync)
    with pytest.raises(OSError, match="Input/output error"):
        write_file(tmp_path / "file", until_two_began())


def test_a_tree_is_synced_down_to_its_last_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "outer" / "inner").mkdir(parents=True)
    made = [tmp_path / "outer", tmp_path / "outer" / "inner", tmp_path / "outer" / "inner" / "file"]
    made[-1].write_bytes(b"content")
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_ino))
    sync_tree(tmp_path / "outer")
    assert synced == [path.stat().st_ino for path in reversed(made)]


def test_a_replaced_file_or_folder_is_complete_or_as_before(tmp_path: Path) -> None:
    def write_half(place: Path, error: BaseException) -> None:
        with replacing(place) as scratch:
            scratch.write_text("half")
            raise error

    (tmp_path / "file").write_text("before")
    (tmp_path / ".file.tmp").mkdir()  # left by a killed process
    for error in (OSError("full"), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            write_half(tmp_path / "file", error)
        assert (tmp_path / "file").read_text() == "before"
    with replacing(tmp_path / "file") as scratch:
        scratch.write_text("after")
        assert (tmp_path / "file").read_text() == "before"
    assert (tmp_path / "file").read_text() == "after"
    with replacing(tmp_path / "folder") as scratch:
        scratch.mkdir()
        (scratch / "inside").touch()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder", "inside"]


def test_what_gets_its_name_was_synced_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_ino))
    with replacing(tmp_path / "file") as scratch:
        scratch.write_text("content")
    assert synced == [(tmp_path / "file").stat().st_ino]
