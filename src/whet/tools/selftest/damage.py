"""Damages the files of a run in all the ways of the self-test."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Damage:
    """One kind of damage to a checkpoint."""

    name: str
    inflict: Callable[[Path, random.Random], None]


def _some_file(folder: Path, chosen: random.Random) -> Path:
    return chosen.choice(sorted(folder.iterdir()))


def flip_bit(folder: Path, chosen: random.Random) -> None:
    file = _some_file(folder, chosen)
    data = bytearray(file.read_bytes())
    data[chosen.randrange(len(data))] ^= 1 << chosen.randrange(8)
    file.write_bytes(data)


def truncate(folder: Path, chosen: random.Random) -> None:
    file = _some_file(folder, chosen)
    os.truncate(file, chosen.randrange(file.stat().st_size))


def delete_file(folder: Path, chosen: random.Random) -> None:
    _some_file(folder, chosen).unlink()


def delete_all(folder: Path, chosen: random.Random) -> None:
    shutil.rmtree(folder)


def append_bytes(folder: Path, chosen: random.Random) -> None:
    with open(_some_file(folder, chosen), "ab") as file:
        file.write(chosen.randbytes(chosen.randint(1, 64)))


def zero_block(folder: Path, chosen: random.Random) -> None:
    """The result of a power cut on some file systems: the right length without the content."""
    file = _some_file(folder, chosen)
    file.write_bytes(bytes(file.stat().st_size))


def link_file(folder: Path, chosen: random.Random) -> None:
    file = _some_file(folder, chosen)
    outside = folder.parent / f".outside-{file.name}"
    shutil.move(file, outside)
    file.symlink_to(outside)


def name_outside(folder: Path, chosen: random.Random) -> None:
    """A valid manifest that names a file outside the checkpoint."""
    from whet.training.checkpoints import MANIFEST, manifest_bytes

    manifest = json.loads((folder / MANIFEST).read_bytes())
    name = chosen.choice(sorted(manifest["files"]))
    outside = folder.parent / f".outside-{name}"
    shutil.copy(folder / name, outside)
    manifest["files"][f"../{outside.name}"] = manifest["files"].pop(name)
    (folder / MANIFEST).write_bytes(manifest_bytes(manifest["step"], manifest["files"]))


def swap_files(folder: Path, chosen: random.Random) -> None:
    """Two valid files exchanged."""
    one, other = chosen.sample(sorted(folder.iterdir()), 2)
    kept = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(kept)


DAMAGES = tuple(
    Damage(name, inflict)
    for name, inflict in (
        ("flipped bit", flip_bit),
        ("truncated", truncate),
        ("file deleted", delete_file),
        ("folder deleted", delete_all),
        ("bytes appended", append_bytes),
        ("zeroed", zero_block),
        ("link", link_file),
        ("../ name", name_outside),
        ("files swapped", swap_files),
    )
)


def corrupt_and_load(checkpoints: str, scratch: str, count: int, seed: int, result: str) -> None:
    """Damage copies of these checkpoints; check that each damage is noticed and the newest complete one is found."""
    from whet.training.checkpoints import CheckpointFolder

    chosen = random.Random(seed)
    original = CheckpointFolder(Path(checkpoints))
    best = {step: int(original.load(step).values["state"]["best_step"]) for step in original.steps()}
    tally = {damage.name: {"tried": 0, "noticed": 0, "fell back right": 0} for damage in DAMAGES}
    for number in range(count):
        copy = CheckpointFolder(Path(scratch) / f"copy-{number}")
        shutil.copytree(original.path, copy.path)
        damage = DAMAGES[number % len(DAMAGES)]
        newest = original.steps()[-1]
        others = [step for step in original.steps() if step != newest and chosen.random() < 0.25]
        for step in (newest, *others):
            damage.inflict(copy.folder(step), chosen)
        whole = set(original.steps()) - {newest, *others}
        expected = max((step for step in whole if best[step] < 0 or best[step] in whole), default=None)
        found, passed_over = copy.load_newest(original.steps())
        row = tally[damage.name]
        row["tried"] += 1
        row["noticed"] += bool(passed_over)
        row["fell back right"] += (found.step if found else None) == expected
        shutil.rmtree(copy.path)
    Path(result).write_text(json.dumps(tally), encoding="utf-8")
