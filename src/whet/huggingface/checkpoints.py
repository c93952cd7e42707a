"""Marks complete checkpoints with a manifest and skips incomplete ones; the library writes them."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from whet.engine.notices import notice
from whet.runs.folder import sums_of
from whet.utils.files import sync_tree
from whet.utils.untrusted_files import replace_file

MANIFEST = "manifest.json"
UNFINISHED = "unfinished"
"""A file in a folder that is being written: after a kill it shows that the folder is incomplete."""


@dataclass(frozen=True)
class Notes:
    """State for an exact resume on the fast path that the library's checkpoint lacks."""

    generator: torch.Tensor
    """torch's generator at the start of the epoch; a sampler by length draws from it."""
    loss: float
    """Sum of the losses since the last log."""
    logged: int
    """Step of the last log."""


@contextmanager
def written_whole(folder: Path, notes: Notes | None, meet: Any, *, main: bool) -> Iterator[None]:
    """Context in which the library writes the checkpoint; only the main process marks it as complete.

    `meet` waits until every process has written its part.
    """
    if main:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MANIFEST).unlink(missing_ok=True)
        (folder / UNFINISHED).touch()
    yield
    meet()
    if not main or not folder.is_dir():  # rotation may have removed it
        return
    content: dict[str, Any] = {"version": 1}
    if notes is not None:
        packed = base64.b64encode(notes.generator.numpy().tobytes()).decode()
        content["fast_path"] = {"generator": packed, "loss": notes.loss, "logged": notes.logged}
    (folder / UNFINISHED).unlink()
    content["sha256"] = sums_of(folder)
    sync_tree(folder)
    replace_file(folder / MANIFEST, json.dumps(content, indent=1).encode())


def read_notes(folder: str | Path) -> Notes | None:
    """Return the notes of a checkpoint of the fast path; None for any other."""
    try:
        found = json.loads((Path(folder) / MANIFEST).read_text(encoding="utf-8"))["fast_path"]
        state = torch.frombuffer(bytearray(base64.b64decode(found["generator"])), dtype=torch.uint8)
        return Notes(state, float(found["loss"]), int(found["logged"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def newest_whole(output_dir: str | Path) -> Path | None:
    """Return the newest complete checkpoint, with a notice for each one skipped.

    A folder without a manifest was written by the library and counts as complete.
    """
    found = [each for each in Path(output_dir).glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", each.name)]
    for folder in sorted(found, key=lambda each: int(each.name.rpartition("-")[2]), reverse=True):
        reason = why_not_whole(folder)
        if not reason:
            return folder
        notice(f"{folder} is passed over: {reason}.")
    return None


def why_not_whole(folder: Path) -> str:
    """Return why a checkpoint cannot be resumed from; empty if it can."""
    if (folder / UNFINISHED).exists():
        return "it was not written to its end"
    if not (folder / "trainer_state.json").is_file():
        return "it has no trainer_state.json"
    if not (folder / MANIFEST).is_file():
        return ""
    try:
        sums = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["sha256"]
    except (ValueError, KeyError, TypeError):
        return f"its {MANIFEST} is damaged"
    found = sums_of(folder)
    damaged = next((name for name, expected in sums.items() if found.get(name) != expected), None)
    return "" if damaged is None else f"{damaged} is damaged"
