"""Damages to entries of the cache, at random from a seed, and what a run reads after each of them."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.config import DataConfig
from whet.data import cache, cache_manifest
from whet.data.examples import load_examples
from whet.data.tokens.table import tokenize

Read = Callable[[], tuple[list[Any], list[str]]]
"""All that a run takes from the cache, and the lines that were said."""


def write_source(folder: Path) -> None:
    """Two given splits: nothing has to be split, so that building again is quick."""
    for seed, name in enumerate(("train", "validation"), 1):
        rows = [f"row {chr(97 + index)} {name},{index * seed % 2}" for index in range(8)]
        (folder / f"{name}.csv").write_text("\n".join(["text,label", *rows, "one more,0", "and more,1"]) + "\n")


def letter_tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: place for place, word in enumerate(["[UNK]", *"abcdefghijklmnopqrstuvwxyz"])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", model_input_names=["input_ids"])


def reader(root: Path, source: Path, tokenizer: Any) -> Read:
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


# --- trials ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trial:
    """One damage, and what came of it."""

    damage: str
    about: str
    harmless: bool
    same: bool
    """Whether the run read what it had read before."""
    told: bool
    """Whether each damaged entry was named in one line, and nothing else was said."""


def trials(read: Read, root: Path, count: int, seed: int) -> Iterator[Trial]:
    """Half of them with marks of earlier checks, which must not hide a damage."""
    chosen, settled = random.Random(seed), cache_manifest.SETTLED_NS
    expected, said = read()
    assert said == []
    try:
        for number in range(count):
            marked = number // len(ALL) % 2
            cache_manifest.SETTLED_NS = 0 if marked else settled
            if marked:
                assert read() == (expected, [])
                time.sleep(0.011)  # more than a tick of the clock that dates files
            yield _trial(read, root, number, expected, chosen)
    finally:
        cache_manifest.SETTLED_NS = settled


def _trial(read: Read, root: Path, number: int, expected: list[Any], chosen: random.Random) -> Trial:
    inflict = ALL[number % len(ALL)]
    kinds = ("tokens",) if inflict is swap_entries else ("tokens", "examples")
    entry = chosen.choice([found.path for found in cache.entries(root) if found.kind in kinds])
    inflict(entry, chosen)
    found, said = read()
    lines = 0 if inflict in HARMLESS else 2 if inflict is swap_entries else 1
    told = len(said) == lines and all("is damaged (" in line and line.endswith("it is built again.") for line in said)
    name = inflict.__name__.replace("_", " ")
    return Trial(name, f"trial {number}: {name} of {entry.parent.name}: {said}", not lines, found == expected, told)
