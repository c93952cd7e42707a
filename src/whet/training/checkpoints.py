"""Checkpoints that are complete or absent, and that a manifest verifies before use.

Protocol: write into a temporary folder, fsync each file, write the SHA-256 manifest last, fsync the folder, rename
it, fsync the parent. Tensors are safetensors, everything else is JSON; there is no pickle. Old checkpoints are
deleted only after the new one is in place. The newest checkpoint is the one with the highest step; file times do not
count.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from whet.engine.state_tensors import Copies, copy_tensors
from whet.errors import ArtifactError, EnvironmentFault, WhetError
from whet.utils.background import BackgroundTasks, run_in_background
from whet.utils.files import sync_folder, write_file
from whet.utils.safetensors_files import TensorFile, safetensors_pieces
from whet.utils.untrusted_files import PLAIN_NAME

FORMAT = 1
MANIFEST = "manifest.json"
STATE = "state.json"
WEIGHTS = "model.safetensors"
PREFIX = "step-"
TEMPORARY = ".writing-"
ASIDE = ".passed-over-"
REPLACED = ".replaced-"


@dataclass(frozen=True)
class Checkpoint:
    """The state to resume from: tensors by group (`model`, `optimizer`, …) and plain values."""

    step: int
    tensors: Mapping[str, Mapping[str, Tensor]]
    values: Mapping[str, Any]


@dataclass
class CheckpointFolder:
    """The checkpoints of one run. They are saved in the background; `wait` waits for the last save."""

    path: Path
    keep: int = 2
    _saving: Future[None] | None = field(default=None, init=False)
    _done: Callable[[], None] | None = field(default=None, init=False)

    def save(
        self,
        checkpoint: Checkpoint,
        best_step: int,
        *,
        before: Callable[[], None] = lambda: None,
        done: Callable[[], None] = lambda: None,
    ) -> None:
        """Start writing. The caller may train on at once, because the tensors were copied.

        The writing thread calls `before` just before the checkpoint gets its name, for data that must be on disk
        first. The thread that calls `save`, `poll` or `wait` calls `done` once the checkpoint is complete.
        """
        self.wait()
        copies = copy_tensors(checkpoint.tensors)
        self._done = done
        arguments = (checkpoint.step, copies, checkpoint.values, best_step, before)
        self._saving = run_in_background("whet-save", self._write, *arguments)

    def poll(self) -> None:
        """If the last save has ended, call its `done` or raise its error; never waits."""
        if self._saving is not None and self._saving.done():
            self.wait()

    def wait(self) -> None:
        """Wait until the last save is complete; raises its error."""
        if self._saving is None:
            return
        wait_for([self._saving])
        saving, done = self._saving, self._done
        self._saving = self._done = None
        saving.result()
        if done is not None:
            done()

    def steps(self) -> list[int]:
        """Return the steps with a checkpoint folder, newest last. They may be damaged."""
        if not self.path.is_dir():
            return []
        numbers = (entry.name.removeprefix(PREFIX) for entry in self.path.iterdir() if entry.name.startswith(PREFIX))
        found = {int(number): number for number in numbers if number.isascii() and number.isdecimal()}
        return sorted(step for step, number in found.items() if self.folder(step).name == PREFIX + number)

    def folder(self, step: int) -> Path:
        return self.path / f"{PREFIX}{step:06d}"

    def load(self, step: int) -> Checkpoint:
        """Return the checkpoint of this step, verified by its manifest."""
        with self.reading(step) as checkpoint:
            return checkpoint

    @contextlib.contextmanager
    def reading(self, step: int, *, weights_only: bool = False) -> Iterator[Checkpoint]:
        """Like the module's `reading`, for a step."""
        with reading(self.folder(step), weights_only=weights_only) as checkpoint:
            if checkpoint.step != step:
                raise ArtifactError(f"{str(self.folder(step))!r} holds step {checkpoint.step}: it was renamed.")
            yield checkpoint

    def load_newest(self, recorded: Iterable[int] = ()) -> tuple[Checkpoint | None, list[str]]:
        """Return the newest complete checkpoint, and a line for each one that was skipped.

        The best step's checkpoint is needed at the end, so a checkpoint that relies on a damaged best one is skipped
        too. `recorded` are the steps of completed saves: a newer one that is missing is reported as well.
        """
        if self.path.is_symlink():
            return None, [f"{str(self.path)!r} is a link, which a run folder never holds."]
        recover_replaced(self.path)
        found, passed_over = self._newest_whole()
        newer = sorted({step for step in recorded if found is None or step > found.step} - set(self.steps()))
        return found, passed_over + [f"{str(self.folder(step))!r} is not there any more." for step in newer]

    def _newest_whole(self) -> tuple[Checkpoint | None, list[str]]:
        passed_over: list[str] = []
        for step in reversed(self.steps()):
            try:
                checkpoint = self.load(step)
                best = _best_step(checkpoint.values)
                if best >= 0 and best != step:
                    self.load(best)
                return checkpoint, passed_over
            except ArtifactError as error:
                passed_over.append(str(error))
        return None, passed_over

    def _relies_on(self, step: int) -> int:
        try:
            return _best_step(json.loads((self.folder(step) / STATE).read_bytes())["values"])
        except (OSError, ValueError, KeyError, TypeError):
            return -1  # damaged since: its best step is unknown, and it will not be loaded

    def set_aside_after(self, step: int) -> None:
        """Rename skipped checkpoints newer than this step: training will reach their steps again.

        If one of them became readable later, the records in between would be missing.
        """
        for newer in self.steps():
            if newer > step:
                folder = self.folder(newer)
                aside = folder.with_name(ASIDE + folder.name)
                shutil.rmtree(aside, ignore_errors=True)
                os.rename(folder, aside)

    def _write(
        self,
        step: int,
        copies: Copies,
        values: Mapping[str, Any],
        best_step: int,
        before: Callable[[], None],
    ) -> None:
        try:
            write(Checkpoint(step, copies.taken(), values), self.folder(step), before)
            self._prune(best_step)
        except OSError as error:
            raise EnvironmentFault(
                f"The checkpoint at step {step} could not be written: {error.strerror or error}.",
                f"The one before it is whole. Make room or fix {str(self.path)!r} and run the same command again.",
            ) from None

    def _prune(self, best_step: int) -> None:
        """Keep the last checkpoints and the best step's of each, which a fallback would need."""
        last = self.steps()[-self.keep :]
        kept = {*last, best_step, *(self._relies_on(step) for step in last)}
        for step in self.steps():
            if step not in kept:
                remove(self.folder(step))
        for left in self.path.glob(f"{ASIDE}*"):
            shutil.rmtree(left, ignore_errors=True)


def _best_step(values: Mapping[str, Any]) -> int:
    return int(values.get("state", {}).get("best_step", -1))


def write(checkpoint: Checkpoint, target: Path, before: Callable[[], None] = lambda: None) -> None:
    """Write a checkpoint by the protocol."""
    parent = target.parent
    parent.mkdir(parents=True, exist_ok=True)
    if parent.is_symlink():
        raise ArtifactError(f"{str(parent)!r} is a link, which a run folder never holds.")
    recover_replaced(parent)
    for left in parent.glob(f"{TEMPORARY}*"):  # left by a killed process
        shutil.rmtree(left, ignore_errors=True)
    scratch = parent / f"{TEMPORARY}{target.name}"
    scratch.mkdir()
    try:
        with BackgroundTasks("whet-save") as files:
            writing = [(name, files.submit(write_file, scratch / name, data)) for name, data in _contents(checkpoint)]
        sums = {name: written.result() for name, written in writing}
        write_file(scratch / MANIFEST, iter([manifest_bytes(checkpoint.step, sums)]))
        sync_folder(scratch)
        before()
        _put_in_place(scratch, target)
    except Exception:
        shutil.rmtree(scratch, ignore_errors=True)  # on a full disk the space is needed
        raise


def _contents(checkpoint: Checkpoint) -> Iterator[tuple[str, Iterator[Any]]]:
    for group, tensors in checkpoint.tensors.items():
        yield f"{group}.safetensors", safetensors_pieces(tensors)
    state = {"format": FORMAT, "step": checkpoint.step, "values": checkpoint.values}
    yield STATE, iter([json.dumps(state, sort_keys=True).encode()])


def _put_in_place(scratch: Path, target: Path) -> None:
    """Rename the checkpoint to its final name. An older save of the same step is moved aside first and deleted
    afterwards."""
    aside = target.with_name(REPLACED + target.name)
    if target.exists():
        os.rename(target, aside)
    os.rename(scratch, target)
    sync_folder(target.parent)
    shutil.rmtree(aside, ignore_errors=True)


def recover_replaced(parent: Path) -> None:
    """Restore an older save that a process moved aside before it died."""
    for aside in parent.glob(f"{REPLACED}*"):
        target = aside.with_name(aside.name.removeprefix(REPLACED))
        if target.exists():
            shutil.rmtree(aside, ignore_errors=True)
        else:
            os.rename(aside, target)


def manifest_bytes(step: int, sums: Mapping[str, Any]) -> bytes:
    """The manifest contains its own checksum, so that any changed byte is noticed."""
    content = {"format": FORMAT, "step": step, "files": sums}
    return _canonical({**content, "sha256": hashlib.sha256(_canonical(content)).hexdigest()})


def _canonical(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, indent=1).encode()


def load(folder: Path, *, weights_only: bool = False) -> Checkpoint:
    """Return a checkpoint that matches its manifest byte for byte; otherwise raise ArtifactError."""
    with reading(folder, weights_only=weights_only) as checkpoint:
        return checkpoint


@contextlib.contextmanager
def reading(folder: Path, *, weights_only: bool = False) -> Iterator[Checkpoint]:
    """Yield a checkpoint (or the part needed to predict) while other threads verify it.

    The data is valid only after the `with` block ends without ArtifactError.
    """
    with BackgroundTasks("whet-prove") as beside:
        with _told_as_artifact(folder):
            if folder.is_symlink() or any(entry.is_symlink() for entry in folder.iterdir()):
                raise ArtifactError(f"{str(folder)!r} holds a link, which a checkpoint never does.")
            sums = _read_manifest(folder / MANIFEST)
            entry = sums.pop(STATE)
            _prove(path := _present(folder, STATE, entry), entry)
            state = json.loads(path.read_bytes())
            chosen = {name: entry for name, entry in sums.items() if name == WEIGHTS or not weights_only}
            files = {name: _present(folder, name, entry) for name, entry in chosen.items()}
            proofs = [beside.submit(_prove, files[name], entry) for name, entry in chosen.items()]
        try:
            with _told_as_artifact(folder):
                tensors = {name.removesuffix(".safetensors"): TensorFile(file) for name, file in files.items()}
                found = Checkpoint(int(state["step"]), tensors, state["values"])
            yield found
        finally:
            # If the checkpoint is damaged, that is the cause of any other error here.
            with _told_as_artifact(folder):
                for proof in proofs:
                    proof.result()


@contextlib.contextmanager
def _told_as_artifact(folder: Path) -> Iterator[None]:
    """Turn errors about damaged files into ArtifactError."""
    try:
        yield
    except WhetError:
        raise
    except OSError as error:
        raise ArtifactError(f"{error.filename or str(folder)!r} cannot be read: {error.strerror or error}.") from None
    except Exception as error:
        raise ArtifactError(f"{str(folder)!r} is not a checkpoint: {error!r}.") from None


def _read_manifest(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ArtifactError(f"{str(path)!r} is missing.")
    raw = path.read_bytes()
    try:
        found = json.loads(raw)
        version, step, sums = found["format"], found["step"], found["files"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ArtifactError(f"{str(path)!r} is damaged: it is not a manifest.") from None
    if isinstance(version, int) and version > FORMAT:
        raise ArtifactError(f"{str(path)!r} has format {version}, and this version reads up to {FORMAT}.")
    if version != FORMAT or manifest_bytes(step, sums) != raw:
        raise ArtifactError(f"{str(path)!r} is damaged: it does not match its own SHA-256.")
    return dict(sums)


def _present(folder: Path, name: str, entry: Mapping[str, Any]) -> Path:
    """Return the path of a file whose size matches the manifest; only such a file is opened."""
    path = folder / name
    if not PLAIN_NAME.fullmatch(name):
        raise ArtifactError(f"The manifest of {str(folder)!r} names {name!r}, which is not a file of a checkpoint.")
    if not path.is_file():
        raise ArtifactError(f"{str(path)!r} is missing.")
    size = path.stat().st_size
    if size != entry["bytes"]:
        raise ArtifactError(f"{str(path)!r} is damaged: it has {size} bytes and should have {entry['bytes']}.")
    return path


def _prove(path: Path, entry: Mapping[str, Any]) -> None:
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != entry["sha256"]:
        raise ArtifactError(f"{str(path)!r} is damaged: it does not match its SHA-256 in {MANIFEST}.")


def remove(folder: Path) -> None:
    """Delete a checkpoint. It is renamed first, so that a partly deleted one is never found."""
    doomed = folder.with_name(f"{TEMPORARY}gone-{folder.name}")
    shutil.rmtree(doomed, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        os.rename(folder, doomed)
    shutil.rmtree(doomed, ignore_errors=True)
