"""Checkpoints that are complete or absent, and are loaded only if a manifest proves them.

Protocol: write into a temporary folder, fsync each file, write the SHA-256 manifest last, fsync the folder, rename,
fsync the parent. Tensors are safetensors, the rest is JSON; there is no pickle anywhere. Old checkpoints go only
after the new one is in place.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from whet.errors import ArtifactError, EnvironmentFault, WhetError

FORMAT = 1
MANIFEST = "manifest.json"
PREFIX = "step-"
TEMPORARY = ".writing-"


@dataclass(frozen=True)
class Checkpoint:
    """What is needed to go on: tensors by group (`model`, `optimizer`, …) and plain values."""

    step: int
    tensors: Mapping[str, Mapping[str, Tensor]]
    values: Mapping[str, Any]


@dataclass
class CheckpointFolder:
    """The checkpoints of one run. Saving happens in the background; `wait` ends it."""

    path: Path
    keep: int = 2
    _thread: threading.Thread | None = field(default=None, init=False)
    _failure: BaseException | None = field(default=None, init=False)

    def save(self, checkpoint: Checkpoint, best_step: int, done: Callable[[Path], None] = lambda path: None) -> None:
        """Start writing; the caller may train on at once, because the tensors were copied."""
        self.wait()
        copied = Checkpoint(checkpoint.step, copy_tensors(checkpoint.tensors), checkpoint.values)
        self._thread = threading.Thread(target=self._write, args=(copied, best_step, done), name="whet-save")
        self._thread.start()

    def wait(self) -> None:
        """Until the last save is complete; raises what went wrong with it."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def steps(self) -> list[int]:
        """Steps that have a checkpoint folder, newest last; whether it is whole is another question."""
        if not self.path.is_dir():
            return []
        found = (entry.name.removeprefix(PREFIX) for entry in self.path.iterdir() if entry.name.startswith(PREFIX))
        return sorted(int(name) for name in found if name.isdecimal())

    def folder(self, step: int) -> Path:
        return self.path / f"{PREFIX}{step:06d}"

    def load_newest(self, device: torch.device | str = "cpu") -> tuple[Checkpoint | None, list[str]]:
        """The newest checkpoint that its manifest proves, and a line for each that was passed over."""
        passed_over: list[str] = []
        for step in reversed(self.steps()):
            try:
                return load(self.folder(step), device), passed_over
            except ArtifactError as error:
                passed_over.append(str(error))
        return None, passed_over

    def _write(self, checkpoint: Checkpoint, best_step: int, done: Callable[[Path], None]) -> None:
        try:
            target = self.folder(checkpoint.step)
            write(checkpoint, target)
            done(target)
            self._prune(best_step)
        except OSError as error:
            self._failure = EnvironmentFault(
                f"The checkpoint at step {checkpoint.step} could not be written: {error.strerror or error}.",
                f"The one before it is whole. Make room or fix {str(self.path)!r} and run the same command again.",
            )
        except BaseException as error:
            self._failure = error

    def _prune(self, best_step: int) -> None:
        steps = self.steps()
        for step in steps[: -self.keep]:
            if step != best_step:
                remove(self.folder(step))


def write(checkpoint: Checkpoint, target: Path) -> None:
    """The protocol, from first byte to last fsync."""
    from safetensors.torch import save as to_bytes

    target.parent.mkdir(parents=True, exist_ok=True)
    for left in target.parent.glob(f"{TEMPORARY}*"):
        shutil.rmtree(left, ignore_errors=True)
    scratch = target.parent / f"{TEMPORARY}{target.name}"
    scratch.mkdir()
    sums = {}
    values = {"format": FORMAT, "step": checkpoint.step, "values": checkpoint.values}
    contents: dict[str, Callable[[], bytes]] = {
        f"{group}.safetensors": (lambda tensors=tensors: to_bytes(dict(tensors)))  # type: ignore[misc]
        for group, tensors in checkpoint.tensors.items()
    }
    contents["state.json"] = lambda: json.dumps(values, sort_keys=True).encode()
    for name, content in contents.items():
        data = content()
        sums[name] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
        _write_file(scratch / name, data)
    manifest = {"format": FORMAT, "step": checkpoint.step, "files": sums}
    _write_file(scratch / MANIFEST, json.dumps(manifest, sort_keys=True, indent=1).encode())
    _sync_folder(scratch)
    if target.exists():  # an older save of the same step: only ever replaced by a proven one
        remove(target)
    os.rename(scratch, target)
    _sync_folder(target.parent)


def load(folder: Path, device: torch.device | str = "cpu") -> Checkpoint:
    """A checkpoint that its manifest proves, byte for byte; anything else is an ArtifactError."""
    from safetensors.torch import load as from_bytes

    if folder.is_symlink() or any(entry.is_symlink() for entry in folder.iterdir()):
        raise ArtifactError(f"{str(folder)!r} holds a link, which a checkpoint never does.")
    manifest = _read_json(folder / MANIFEST)
    try:
        if manifest["format"] != FORMAT:
            raise ArtifactError(f"{str(folder)!r} has format {manifest['format']}, and this version reads {FORMAT}.")
        contents = {name: _proven(folder, name, entry) for name, entry in manifest["files"].items()}
        state = json.loads(contents.pop("state.json"))
        tensors = {
            name.removesuffix(".safetensors"): {key: tensor.to(device) for key, tensor in from_bytes(data).items()}
            for name, data in contents.items()
        }
        return Checkpoint(int(state["step"]), tensors, state["values"])
    except WhetError:
        raise
    except Exception as error:
        raise ArtifactError(f"{str(folder)!r} is not a checkpoint: {error!r}.") from None


def remove(folder: Path) -> None:
    """Take a checkpoint away: first its name, so that a half-removed one is never found."""
    doomed = folder.with_name(f"{TEMPORARY}gone-{folder.name}")
    shutil.rmtree(doomed, ignore_errors=True)
    os.rename(folder, doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def copy_tensors(groups: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
    """Copies on the host that training cannot change."""
    return {
        group: {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
        for group, tensors in groups.items()
    }


def _proven(folder: Path, name: str, entry: Mapping[str, Any]) -> bytes:
    path = folder / name
    if path.parent != folder or not path.is_file():
        raise ArtifactError(f"{str(path)!r} is missing, or is not a file of this checkpoint.")
    data = path.read_bytes()
    if len(data) != entry["bytes"] or hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise ArtifactError(f"{str(path)!r} is damaged: it does not match its SHA-256 in {MANIFEST}.")
    return data


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise ArtifactError(f"{str(path)!r} is missing or damaged.") from None


def _write_file(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
