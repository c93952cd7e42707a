"""Damaged entries of the cache: each is noticed, said in one line and built again, with the same result."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cache_damages import letter_tokenizer, reader, trials, write_source
from whet.data import cache, cache_manifest
from whet.errors import EnvironmentFault

TRIALS = 216


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WHET_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_random_damages_are_noticed_and_change_nothing(root: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    write_source(source)
    for trial in trials(reader(root, source, letter_tokenizer()), root, TRIALS, seed=24):
        assert trial.same, trial.about
        assert trial.told, trial.about


# --- marks of earlier checks ----------------------------------------------------------------------------------------


def write(text: str) -> Callable[[Path], None]:
    def build(folder: Path) -> None:
        (folder / "content").write_text(text)

    return build


def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are hashed from here on."""
    names: list[str] = []
    compare = cache_manifest._compare

    def noted(file: Path, expected: str) -> None:
        names.append(file.name)
        compare(file, expected)

    monkeypatch.setattr(cache_manifest, "_compare", noted)
    return names


@pytest.fixture
def marked(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An entry that was hashed once since this machine was started."""
    monkeypatch.setattr(cache_manifest, "SETTLED_NS", 0)
    path = cache.get_or_build("kind", "key", write("content"), root=root)
    time.sleep(0.011)
    return path


@pytest.mark.skipif(not cache_manifest._BOOT.exists(), reason="only Linux tells one boot from another")
def test_an_entry_is_hashed_once_a_boot(marked: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = hashed(monkeypatch)
    assert not cache._damage(marked)
    assert names == []
    monkeypatch.setattr(cache_manifest, "_BOOT", tmp_path / "boot")
    (tmp_path / "boot").write_text("another")
    assert not cache._damage(marked)
    assert names == ["content"]


def test_a_file_that_changed_a_moment_ago_gives_no_mark(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = cache.get_or_build("kind", "key", write("content"), root=root)
    names = hashed(monkeypatch)
    assert not cache._damage(path)
    assert names == ["content"]


@pytest.mark.parametrize("mark", [b"", b"x" * 32, b"x" * 500])
def test_a_damaged_mark_costs_a_full_check(marked: Path, mark: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    cache._lock_of(marked).write_bytes(mark)
    names = hashed(monkeypatch)
    assert not cache._damage(marked)
    assert names == ["content"]


def test_a_mark_does_not_hide_a_change_that_keeps_size_and_time(marked: Path) -> None:
    before = (marked / "content").stat()
    (marked / "content").write_text("tnetnoc")
    os.utime(marked / "content", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert cache._damage(marked) == "content does not match its checksum"


# --- other processes and the world ----------------------------------------------------------------------------------

OBTAIN = """
import sys, time
from pathlib import Path
from whet.data import cache
from whet.utils import file_locks
if sys.argv[2] == "without locks":
    file_locks.fcntl = None
def build(folder):
    time.sleep(0.05)
    (folder / "content").write_text("whole")
print("ready", flush=True)
sys.stdin.readline()
path = cache.get_or_build("kind", "key", build, root=Path(sys.argv[1]), echo=print)
print("has", (path / "content").read_text())
"""


@pytest.mark.parametrize("locks", ["locks", "without locks"])
@pytest.mark.parametrize("damaged", [True, False])
def test_processes_that_want_the_same_entry_at_once_all_get_it(root: Path, locks: str, damaged: bool) -> None:
    if damaged:
        (root / "kind" / "key").mkdir(parents=True)
    command = [sys.executable, "-c", OBTAIN, str(root), locks]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    processes = [subprocess.Popen(command, text=True, **pipes) for _ in range(4)]
    assert [process.stdout.readline() for process in processes if process.stdout] == ["ready\n"] * 4
    for process in processes:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        *said, last = process.communicate()[0].splitlines()
        assert last == "has whole", said
        assert len(said) <= damaged
    assert [path.name for path in sorted((root / "kind").glob("[!.]*")) if path.suffix != ".building"] == [
        "key",
        "key.lock",
    ]


def test_a_damaged_entry_that_another_process_takes_away_is_no_fault(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without locks, both find the damage, and one of them moves it first."""
    (root / "kind" / "key").mkdir(parents=True)
    real = cache._move_to_trash

    def too_late(path: Path) -> None:
        monkeypatch.setattr(cache, "_move_to_trash", real)
        path.rmdir()
        real(path)

    monkeypatch.setattr(cache, "_move_to_trash", too_late)
    path = cache.get_or_build("kind", "key", lambda folder: (folder / "content").write_text("whole"), root=root)
    assert (path / "content").read_text() == "whole"


def test_an_entry_that_does_not_stay_whole_is_a_fault_of_the_environment(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(folder: Path, place: str, note: str) -> None:
        real(folder, place, note)
        (folder / "content").write_text("other")

    real = cache.write_manifest
    monkeypatch.setattr(cache, "write_manifest", lose)
    said: list[str] = []
    with pytest.raises(EnvironmentFault, match="damaged as soon as it is built: content has 5 bytes") as raised:
        cache.get_or_build("kind", "key", write("content"), root=root, echo=said.append)
    assert "WHET_CACHE" in raised.value.hint
    assert said == []


def test_an_entry_of_an_earlier_version_is_built_again(root: Path) -> None:
    path = cache.get_or_build("kind", "key", write("old"), root=root)
    (path / "entry.json").write_text('{"note": "", "files": {"content": 3}}')
    said: list[str] = []
    cache.get_or_build("kind", "key", write("new"), root=root, echo=said.append)
    assert (path / "content").read_text() == "new"
    assert "an earlier version wrote it" in said[0]


def test_a_damaged_entry_is_listed_and_cleared(root: Path) -> None:
    path = cache.get_or_build("kind", "key", write("content"), root=root)
    (path / "entry.json").write_text("[]")
    (entry,) = cache.entries(root)
    assert (entry.note[:7], entry.size) == ("damaged", 9)
    cache._release(path)
    assert [removed.key for removed in cache.clear(root)] == ["key"]


@pytest.fixture
def own_disk(small_disk: Path) -> Iterator[Path]:
    """A small file system, where no lock stays held: it could not be unmounted."""
    yield small_disk
    for path in [path for path in cache._held if path.is_relative_to(small_disk)]:
        cache._release(path)


def test_a_cache_that_may_only_be_read_serves_what_it_has(own_disk: Path) -> None:
    for key in "ab":
        cache._release(cache.get_or_build("kind", key, write(key), root=own_disk))
    (own_disk / "kind" / "b.lock").unlink()
    subprocess.run(["mount", "-o", "remount,ro", own_disk], check=True)
    for key in "ab":
        assert (cache.get_or_build("kind", key, write("no"), root=own_disk) / "content").read_text() == key
    with pytest.raises(EnvironmentFault, match="Read-only file system") as raised:
        cache.get_or_build("kind", "c", write("c"), root=own_disk)
    assert "WHET_CACHE" in raised.value.hint


def test_a_full_disk_costs_no_entry(own_disk: Path) -> None:
    path = cache.get_or_build("kind", "a", write("a"), root=own_disk)
    free = shutil.disk_usage(own_disk).free
    (own_disk / "ballast").write_bytes(bytes(free - 8192))
    with pytest.raises(EnvironmentFault, match="No space left on device"):
        cache.get_or_build("kind", "b", write("b" * 100_000), root=own_disk)
    assert not list((own_disk / "kind").glob(".building-*"))
    assert not cache._damage(path)
    (own_disk / "ballast").unlink()
    found = cache.get_or_build("kind", "b", write("b" * 100_000), root=own_disk)
    assert (found / "content").stat().st_size == 100_000
