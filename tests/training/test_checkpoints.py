"""Checkpoints: complete or absent, proven or passed over."""

from __future__ import annotations

import errno
import json
import os
import random
import resource
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from whet.errors import ArtifactError, EnvironmentFault
from whet.tools.selftest.damage import DAMAGES, Damage, flip_bit
from whet.training.checkpoints import FORMAT, MANIFEST, STATE, Checkpoint, CheckpointFolder, load, manifest_bytes, write
from whet.utils import files as disk
from whet.utils.safetensors_files import safetensors_pieces

FIXTURES = Path(__file__).parent.parent / "fixtures"


def checkpoint(step: int, best: int = -1, size: int = 8) -> Checkpoint:
    tensors = {
        "model": {"weight": torch.arange(size, dtype=torch.float32) + step, "count": torch.tensor(step)},
        "optimizer": {"weight:exp_avg": torch.full((size,), 0.5 * step)},
    }
    return Checkpoint(step, tensors, {"state": {"step": step, "best_step": best}})


def saved(path: Path, *steps: int, best: int = -1, keep: int = 9) -> CheckpointFolder:
    folder = CheckpointFolder(path / "checkpoints", keep=keep)
    for step in steps:
        folder.save(checkpoint(step, best), best)
    folder.wait()
    return folder


def test_what_a_killed_save_left_does_not_stop_the_next(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    (folder / ".writing-step-000003" / "deeper").mkdir(parents=True)
    (folder / ".writing-elsewhere").write_text("a file, which cannot be removed as a folder is")
    found, passed_over = saved(tmp_path, 3).load_newest()
    assert found is not None
    assert passed_over == []
    assert not (folder / ".writing-step-000003").exists()


def test_a_file_of_another_size_is_told_by_its_size(tmp_path: Path) -> None:
    file = saved(tmp_path, 3).folder(3) / "model.safetensors"
    size = file.stat().st_size
    with open(file, "ab") as more:
        more.write(b"x")
    with pytest.raises(ArtifactError, match=f"has {size + 1} bytes and should have {size}"):
        load(file.parent)


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """A real limit of the system: writing past it fails as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_what_is_saved_comes_back_bit_for_bit(tmp_path: Path) -> None:
    found, passed_over = saved(tmp_path, 3).load_newest()
    assert found is not None
    assert not passed_over
    assert found.values == checkpoint(3).values
    for group, tensors in checkpoint(3).tensors.items():
        for name, tensor in tensors.items():
            assert torch.equal(found.tensors[group][name], tensor)


def test_weights_alone_are_loaded_without_the_moments_and_still_proven(tmp_path: Path) -> None:
    folder = saved(tmp_path, 3)
    (folder.folder(3) / "optimizer.safetensors").write_bytes(b"damaged")
    found = load(folder.folder(3), weights_only=True)
    assert torch.equal(found.tensors["model"]["weight"], checkpoint(3).tensors["model"]["weight"])
    assert "optimizer" not in found.tensors
    weights = folder.folder(3) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    with pytest.raises(ArtifactError, match="SHA-256"):
        load(folder.folder(3), weights_only=True)


def test_damage_is_the_reason_given_for_what_came_of_reading_it(tmp_path: Path) -> None:
    folder = saved(tmp_path, 3)
    weights = folder.folder(3) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    with pytest.raises(ArtifactError, match="SHA-256"), folder.reading(3, weights_only=True):
        raise ValueError("not a finite number")


@pytest.mark.timeout(20)
def test_what_is_no_file_is_refused_and_not_opened(tmp_path: Path) -> None:
    folder = saved(tmp_path, 3).folder(3)
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")  # whoever opened it would wait for somebody to write
    with pytest.raises(ArtifactError, match="is missing"):
        load(folder)


def test_what_fails_while_an_undamaged_one_is_read_is_raised_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not finite"), saved(tmp_path, 3).reading(3):
        raise ValueError("not finite")


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool, torch.uint8])
def test_the_library_reads_what_is_written(kind: torch.dtype) -> None:
    from safetensors.torch import load as from_bytes

    tensors = {
        "matrix": torch.ones(3, 5).to(kind),
        "scalar": torch.tensor(1).to(kind),
        "none": torch.zeros(0, 2).to(kind),
        "one byte": torch.tensor([True]),
    }
    read = from_bytes(b"".join(bytes(piece) for piece in safetensors_pieces(tensors)))
    assert read.keys() == tensors.keys()
    assert all(torch.equal(read[name], tensors[name]) and read[name].dtype == tensors[name].dtype for name in tensors)


def test_training_on_does_not_change_what_is_being_saved(tmp_path: Path) -> None:
    folder, weight = CheckpointFolder(tmp_path), torch.ones(1000)
    folder.save(Checkpoint(1, {"model": {"weight": weight}}, {}), -1)
    weight.zero_()
    folder.wait()
    assert load(folder.folder(1)).tensors["model"]["weight"].sum() == 1000


def test_the_one_who_waits_is_told_when_it_is_whole(tmp_path: Path) -> None:
    folder, told = CheckpointFolder(tmp_path), []
    folder.save(checkpoint(1), -1, done=lambda: told.append((threading.current_thread(), folder.steps())))
    folder.wait()
    assert told == [(threading.main_thread(), [1])]


def test_what_must_be_on_disk_first_is_called_before_the_name_is_given(tmp_path: Path) -> None:
    folder, before = CheckpointFolder(tmp_path), []
    folder.save(checkpoint(1), -1, before=lambda: before.append(folder.steps()))
    folder.wait()
    assert before == [[]]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.name)
def test_a_damage_is_noticed_and_the_one_before_is_taken(damage: Damage, tmp_path: Path) -> None:
    whole = saved(tmp_path, 1, 2, 3)
    for seed in range(20):
        folder = CheckpointFolder(tmp_path / str(seed))
        shutil.copytree(whole.path, folder.path)
        damage.inflict(folder.folder(3), random.Random(seed))
        found, passed_over = folder.load_newest(recorded=[1, 2, 3])
        assert found is not None
        assert found.step == 2
        assert len(passed_over) == 1


def test_a_flipped_bit_anywhere_in_a_manifest_is_noticed(tmp_path: Path) -> None:
    folder = saved(tmp_path, 1).folder(1)
    whole = (folder / MANIFEST).read_bytes()
    for place in range(0, len(whole), 3):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << (place % 8)
        (folder / MANIFEST).write_bytes(flipped)
        with pytest.raises(ArtifactError):
            load(folder)


def test_the_damaged_file_is_named(tmp_path: Path) -> None:
    folder = saved(tmp_path, 1)
    (folder.folder(1) / "optimizer.safetensors").unlink()
    assert folder.load_newest()[0] is None
    assert "optimizer.safetensors' is missing" in folder.load_newest()[1][0]


def test_the_newest_is_told_by_its_step_and_not_by_the_clock(tmp_path: Path) -> None:
    folder = saved(tmp_path, 9, 10)
    os.utime(folder.folder(9), (4e9, 4e9))
    os.utime(folder.folder(10), (1, 1))
    found, _ = folder.load_newest()
    assert found is not None
    assert found.step == 10


def test_a_renamed_checkpoint_is_passed_over(tmp_path: Path) -> None:
    folder = saved(tmp_path, 1, 2)
    folder.folder(2).rename(folder.folder(7))
    found, passed_over = folder.load_newest()
    assert found is not None
    assert found.step == 1
    assert "holds step 2" in passed_over[0]


def test_the_last_ones_and_the_best_are_kept(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep=2)
    for step, best in [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1)]:
        folder.save(checkpoint(step, best), best)
    folder.wait()
    assert folder.steps() == [1, 4, 5]


def test_an_earlier_best_stays_while_a_kept_checkpoint_relies_on_it(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep=2)
    for step, best in [(1, 1), (2, 1), (3, 1), (4, 4)]:
        folder.save(checkpoint(step, best), best)
    folder.wait()
    assert folder.steps() == [1, 3, 4]
    flip_bit(folder.folder(4), random.Random(0))
    found, _ = folder.load_newest()
    assert found is not None
    assert found.step == 3


def test_a_checkpoint_whose_best_is_damaged_is_passed_over(tmp_path: Path) -> None:
    folder = saved(tmp_path, 2)
    for step in (3, 4):
        folder.save(checkpoint(step, best=3), 3)
    folder.wait()
    flip_bit(folder.folder(3), random.Random(0))
    found, passed_over = folder.load_newest()
    assert found is not None
    assert found.step == 2
    assert len(passed_over) == 2


def test_newer_ones_that_were_passed_over_are_forgotten_and_go_after_the_next_save(tmp_path: Path) -> None:
    folder = saved(tmp_path, 1, 2, 3)
    folder.set_aside_after(1)
    assert folder.steps() == [1]
    assert len(list(folder.path.iterdir())) == 3
    folder.save(checkpoint(2), -1)
    folder.wait()
    assert sorted(entry.name for entry in folder.path.iterdir()) == ["step-000001", "step-000002"]


def test_what_a_killed_process_left_is_never_loaded_and_is_cleaned_up(tmp_path: Path) -> None:
    folder = saved(tmp_path, 1)
    shutil.copytree(folder.folder(1), folder.path / ".writing-step-000002")
    assert folder.steps() == [1]
    folder.save(checkpoint(3), -1)
    folder.wait()
    assert sorted(entry.name for entry in folder.path.iterdir()) == ["step-000001", "step-000003"]


def test_older_ones_that_went_by_the_rules_are_not_missed(tmp_path: Path) -> None:
    folder = saved(tmp_path, 1, 2, 3, keep=1)
    assert folder.load_newest(recorded=[1, 2, 3])[1] == []


def test_all_gone_is_not_the_same_as_none_yet(tmp_path: Path) -> None:
    folder = saved(tmp_path, 4)
    shutil.rmtree(folder.path)
    found, passed_over = folder.load_newest(recorded=[4])
    assert found is None
    assert "step-000004' is not there any more" in passed_over[0]


def test_a_save_that_died_while_it_replaced_another_gives_the_other_its_name_back(tmp_path: Path) -> None:
    folder = saved(tmp_path, 1)
    folder.folder(1).rename(folder.path / ".replaced-step-000001")
    found, passed_over = folder.load_newest(recorded=[1])
    assert found is not None
    assert (found.step, passed_over) == (1, [])


def test_a_step_that_is_saved_again_is_replaced(tmp_path: Path) -> None:
    folder = saved(tmp_path, 1)
    folder.save(Checkpoint(1, checkpoint(1).tensors, {"reason": "schedule"}), -1)
    folder.wait()
    assert load(folder.folder(1)).values == {"reason": "schedule"}
    assert [entry.name for entry in folder.path.iterdir()] == ["step-000001"]


def test_a_full_disk_leaves_the_checkpoint_before_whole(tmp_path: Path) -> None:
    folder = saved(tmp_path, 1)
    with largest_file(10_000):
        folder.save(checkpoint(2, size=100_000), -1)
        with pytest.raises(EnvironmentFault, match="step 2 could not be written"):
            folder.wait()
    found, passed_over = folder.load_newest()
    assert found is not None
    assert found.step == 1
    assert not passed_over
    assert [entry.name for entry in folder.path.iterdir()] == ["step-000001"]


def test_a_disk_that_fails_while_it_is_still_written_to_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, told = CheckpointFolder(tmp_path / "checkpoints"), []

    def fails_once(handle: int) -> None:
        if not told:
            told.append(handle)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(disk, "SYNCED_AT_ONCE", 1)
    monkeypatch.setattr(os, "fsync", fails_once)
    folder.save(checkpoint(1), -1)
    with pytest.raises(EnvironmentFault, match="Input/output error"):
        folder.wait()


def test_where_the_system_allows_no_thread_it_is_saved_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    folder = CheckpointFolder(tmp_path / "checkpoints")
    monkeypatch.setattr(threading.Thread, "start", refuse)
    folder.save(checkpoint(1), -1)
    folder.wait()
    assert folder.load(1).step == 1


def test_a_failed_save_is_noticed_without_waiting_for_the_next(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "file" / "checkpoints")
    (tmp_path / "file").write_text("in the way")
    folder.save(checkpoint(1), -1)
    assert folder._saving is not None
    assert folder._saving.exception() is not None
    with pytest.raises(EnvironmentFault):
        folder.poll()


def test_a_linked_folder_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    (tmp_path / "link").symlink_to(tmp_path / "checkpoints")
    folder = CheckpointFolder(tmp_path / "link")
    found, passed_over = folder.load_newest()
    assert found is None
    assert "is a link" in passed_over[0]
    folder.save(checkpoint(2), -1)
    with pytest.raises(ArtifactError, match="is a link"):
        folder.wait()


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "sub/model.safetensors", "..", ".hidden", ""])
def test_a_manifest_cannot_name_files_elsewhere(name: str, tmp_path: Path) -> None:
    folder = saved(tmp_path, 1).folder(1)
    manifest = json.loads((folder / MANIFEST).read_bytes())
    manifest["files"][name] = manifest["files"]["model.safetensors"]
    (folder / MANIFEST).write_bytes(manifest_bytes(1, manifest["files"]))
    with pytest.raises(ArtifactError, match="not a file of a checkpoint"):
        load(folder)


def test_a_pickle_in_the_place_of_tensors_is_not_opened(tmp_path: Path) -> None:
    import hashlib
    import pickle

    class Payload:
        def __reduce__(self) -> Any:
            return (os.mkdir, (str(tmp_path / "owned"),))

    folder = saved(tmp_path, 1).folder(1)
    data = pickle.dumps(Payload())
    (folder / "model.safetensors").write_bytes(data)
    manifest = json.loads((folder / MANIFEST).read_bytes())
    manifest["files"]["model.safetensors"] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (folder / MANIFEST).write_bytes(manifest_bytes(1, manifest["files"]))
    with pytest.raises(ArtifactError):
        load(folder)
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("version", range(1, FORMAT + 1))
def test_every_old_format_is_still_read(version: int) -> None:
    found = load(FIXTURES / f"checkpoint-format-{version}" / "step-000003")
    assert found.step == 3
    assert found.values == json.loads(json.dumps(checkpoint(3, best=2).values))
    assert torch.equal(found.tensors["model"]["weight"], checkpoint(3).tensors["model"]["weight"])
    assert torch.equal(found.tensors["optimizer"]["weight:exp_avg"], torch.full((8,), 1.5))


def test_a_later_format_says_so(tmp_path: Path) -> None:
    folder = saved(tmp_path, 1).folder(1)
    manifest = json.loads((folder / MANIFEST).read_bytes())
    (folder / MANIFEST).write_text(json.dumps({**manifest, "format": FORMAT + 1}))
    with pytest.raises(ArtifactError, match=f"has format {FORMAT + 1}, and this version reads up to {FORMAT}"):
        load(folder)


def test_state_is_json_and_tensors_are_safetensors(tmp_path: Path) -> None:
    write(checkpoint(1), tmp_path / "checkpoints" / "step-000001")
    names = {entry.name for entry in (tmp_path / "checkpoints" / "step-000001").iterdir()}
    assert names == {MANIFEST, STATE, "model.safetensors", "optimizer.safetensors"}
