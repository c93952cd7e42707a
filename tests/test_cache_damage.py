"""Damaged entries of the cache: each is noticed, said in one line and built again, with the same result."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from whet.config import DataConfig
from whet.data import cache, cache_manifest
from whet.data.examples import load_examples
from whet.data.tokens.table import tokenize
from whet.errors import EnvironmentFault

TRIALS = 216


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two given splits: nothing has to be split, so that building again is quick."""
    folder = tmp_path_factory.mktemp("source")
    for seed, name in enumerate(("train", "validation"), 1):
        rows = [f"row {chr(97 + index)} {name},{index * seed % 2}" for index in range(8)]
        (folder / f"{name}.csv").write_text("\n".join(["text,label", *rows, "one more,0", "and more,1"]) + "\n")
    return folder


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: place for place, word in enumerate(["[UNK]", *"abcdefghijklmnopqrstuvwxyz"])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", model_input_names=["input_ids"])


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WHET_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def read(root: Path, source: Path, tokenizer: Any) -> Callable[[], tuple[list[Any], list[str]]]:
    """All that a run takes from the cache, and the lines that were said."""

    def everything() -> tuple[list[Any], list[str]]:
        said: list[str] = []
        examples = load_examples(str(source), DataConfig(), echo=said.append)
        found: list[Any] = [examples.fingerprint, examples.task, examples.columns, examples.origin]
        for name, rows in examples.rows.items():
            tokens = tokenize(rows, tokenizer, max_length=16, task=examples.task, cache=root, echo=said.append)
            arrays = [None if each is None else each.tolist() for each in (tokens.ids, tokens.offsets, tokens.labels)]
            found.append([name, rows.table.to_pydict(), *arrays, tokens.truncation, tokens.fingerprint])
        return found, said

    return everything


# --- damages --------------------------------------------------------------------------------------------------------


def some_file(entry: Path, chosen: random.Random) -> Path:
    return chosen.choice(sorted(entry.iterdir()))


def flip_byte(entry: Path, chosen: random.Random) -> None:
    file = some_file(entry, chosen)
    data = bytearray(file.read_bytes())
    data[chosen.randrange(len(data))] ^= 1 << chosen.randrange(8)
    file.write_bytes(data)


def flip_byte_and_keep_the_time(entry: Path, chosen: random.Random) -> None:
    before = {file: file.stat() for file in entry.iterdir()}
    flip_byte(entry, chosen)
    for file, stat in before.items():
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def cut_file(entry: Path, chosen: random.Random) -> None:
    file = some_file(entry, chosen)
    os.truncate(file, chosen.randrange(file.stat().st_size))


def empty_file(entry: Path, chosen: random.Random) -> None:
    os.truncate(some_file(entry, chosen), 0)


def zeroed_file(entry: Path, chosen: random.Random) -> None:
    file = some_file(entry, chosen)
    file.write_bytes(bytes(file.stat().st_size))


def delete_file(entry: Path, chosen: random.Random) -> None:
    some_file(entry, chosen).unlink()


def delete_all_files(entry: Path, chosen: random.Random) -> None:
    for file in entry.iterdir():
        file.unlink()


def append_bytes(entry: Path, chosen: random.Random) -> None:
    with open(some_file(entry, chosen), "ab") as file:
        file.write(chosen.randbytes(chosen.randint(1, 64)))


def swap_files(entry: Path, chosen: random.Random) -> None:
    one, other = chosen.sample([file for file in sorted(entry.iterdir()) if file.stat().st_size], 2)
    kept = one.read_bytes()
    assert kept != other.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(kept)


def swap_entries(entry: Path, chosen: random.Random) -> None:
    """Whole, and another one: the tokens of other rows in this place. Both are damaged."""
    other = next(each.path for each in cache.entries(entry.parents[1]) if each.kind == "tokens" and each.path != entry)
    entry.rename(entry.with_name("meanwhile"))
    other.rename(entry)
    entry.with_name("meanwhile").rename(other)


def folder_for_a_file(entry: Path, chosen: random.Random) -> None:
    file = some_file(entry, chosen)
    file.unlink()
    file.mkdir()


def file_for_the_folder(entry: Path, chosen: random.Random) -> None:
    shutil.rmtree(entry)
    entry.write_bytes(chosen.randbytes(8))


def link_for_a_file(entry: Path, chosen: random.Random) -> None:
    file = some_file(entry, chosen)
    if file.name == cache_manifest.MANIFEST:
        file.unlink()
    else:
        file.rename(entry.parent / "elsewhere")
    file.symlink_to(entry.parent / "elsewhere")


def nested_manifest(entry: Path, chosen: random.Random) -> None:
    (entry / cache_manifest.MANIFEST).write_text(chosen.choice(["[" * 100_000, "[]", "7", '{"files": 3}', '"x"', "{}"]))


def stale_lock(entry: Path, chosen: random.Random) -> None:
    lock = entry.with_name(entry.name + chosen.choice([".lock", ".building"]))
    cache._delete(lock)
    lock.write_bytes(chosen.randbytes(chosen.randrange(64)))


def folder_for_the_lock(entry: Path, chosen: random.Random) -> None:
    lock = entry.with_name(f"{entry.name}.lock")
    if not lock.is_dir():
        lock.unlink(missing_ok=True)
        lock.mkdir()


def half_written_folder(entry: Path, chosen: random.Random) -> None:
    left = entry.with_name(f".building-{entry.name}-{chosen.randrange(9999)}-abcd")
    shutil.copytree(entry, left)
    flip_byte(left, chosen)


def deleted_entry(entry: Path, chosen: random.Random) -> None:
    shutil.rmtree(entry)


DAMAGES = (
    flip_byte,
    flip_byte_and_keep_the_time,
    cut_file,
    empty_file,
    zeroed_file,
    delete_file,
    delete_all_files,
    append_bytes,
    swap_files,
    swap_entries,
    folder_for_a_file,
    file_for_the_folder,
    link_for_a_file,
    nested_manifest,
)
HARMLESS = (stale_lock, folder_for_the_lock, half_written_folder, deleted_entry)
"""What leaves nothing wrong to read: there is nothing to say."""
ALL = (*DAMAGES, *HARMLESS)


def test_random_damages_are_noticed_and_change_nothing(
    root: Path, read: Callable[[], tuple[list[Any], list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the trials with marks of earlier checks, which must not hide a damage."""
    chosen = random.Random(24)
    expected, said = read()
    assert said == []
    for trial in range(TRIALS):
        marked = trial // len(ALL) % 2
        monkeypatch.setattr(cache_manifest, "SETTLED_NS", 0 if marked else 3_000_000_000)
        if marked:
            assert read() == (expected, [])
            time.sleep(0.011)  # more than a tick of the clock that dates files
        entry = chosen.choice([found.path for found in cache.entries(root)])
        inflict = ALL[trial % len(ALL)]
        if inflict is swap_entries:
            entry = chosen.choice([found.path for found in cache.entries(root) if found.kind == "tokens"])
        inflict(entry, chosen)
        found, said = read()
        about = f"trial {trial}: {inflict.__name__} of {entry.parent.name}"
        assert found == expected, about
        lines = 0 if inflict in HARMLESS else 2 if inflict is swap_entries else 1
        assert len(said) == lines, (about, said)
        assert all("is damaged (" in line and line.endswith("it is built again.") for line in said), about


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
path = cache.get_or_build("kind", "key", build, root=Path(sys.argv[1]), say=print)
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
