"""`output_dir/checkpoint-500`: a standard model folder that also holds all that is needed to go on to the bit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from whet.errors import ArtifactError, UsageError
from whet.training.checkpoints import STATE, TEMPORARY, Checkpoint, CheckpointFolder, load, remove
from whet.utils.files import sync_tree

PREFIX = "checkpoint-"


@dataclass
class TrainerCheckpoints(CheckpointFolder):
    """Checkpoints under the stock names, of one run among what may be left of others."""

    run: str = ""
    """Marks the checkpoints of this run: those of an earlier training in the same folder are left alone."""
    limit: int | None = None
    own: set[int] = field(default_factory=set)

    def folder(self, step: int) -> Path:
        return self.path / f"{PREFIX}{step}"

    def steps(self) -> list[int]:
        if not self.path.is_dir():
            return []
        names = [entry.name.removeprefix(PREFIX) for entry in self.path.glob(f"{PREFIX}*")]
        steps = sorted(int(name) for name in names if name.isascii() and name.isdecimal())
        return [step for step in steps if step in self.own or self._is_own(step)]

    def _newest_whole(self) -> tuple[Checkpoint | None, list[str]]:
        """The newest whole one whose best checkpoint, if it will be needed at the end, is whole too."""
        passed_over: list[str] = []
        for step in reversed(self.steps()):
            try:
                checkpoint = self.load(step)
                if (best := int(checkpoint.values.get("needs", -1))) not in (-1, step):
                    self.load(best)
                return checkpoint, passed_over
            except ArtifactError as error:
                passed_over.append(str(error))
        return None, passed_over

    def write_with(
        self,
        checkpoint: Checkpoint,
        best_step: int,
        files: Mapping[str, bytes],
        *,
        before: Callable[[], None],
        done: Callable[[], None],
    ) -> None:
        """Save in the background; `files` lie beside the state before the folder gets its name."""
        scratch = self.path / f"{TEMPORARY}{self.folder(checkpoint.step).name}"

        def add_files() -> None:
            for name, content in files.items():
                (scratch / name).write_bytes(content)
            sync_tree(scratch)
            before()

        self.own.add(checkpoint.step)
        self.save(checkpoint, best_step, before=add_files, done=done)

    def _prune(self, best_step: int) -> None:
        """At most `limit`, of which one is the best and one the newest, even where that makes two."""
        steps = self.steps()
        if self.limit is None or not steps:
            return
        kept = {steps[-1], best_step} & set(steps)
        for step in [step for step in steps if step not in kept][: max(0, len(steps) - max(self.limit, len(kept)))]:
            remove(self.folder(step))

    def keep_only(self, step: int) -> None:
        """After the end, with a limit of one: the best is all there is."""
        for other in self.steps():
            if other != step:
                remove(self.folder(other))

    def _is_own(self, step: int) -> bool:
        try:
            state = json.loads((self.folder(step) / STATE).read_bytes())
            return bool(state["values"]["run"] == self.run)
        except (OSError, ValueError, KeyError, TypeError):
            return False


def find(asked: str | bool | Path, checkpoints: TrainerCheckpoints) -> tuple[Checkpoint, Path, list[str]]:
    """The checkpoint to resume from, and a line for each that was passed over."""
    if asked is True:
        newest, passed_over = checkpoints.load_newest()
        if newest is None:
            raise UsageError(
                f"There is no checkpoint to resume from in {str(checkpoints.path)!r}."
                + (f" Passed over: {passed_over[0]}" if passed_over else ""),
                "Leave resume_from_checkpoint out to begin.",
            )
        return newest, checkpoints.folder(newest.step), passed_over
    folder = Path(str(asked))
    if not folder.is_dir():
        raise UsageError(f"There is no checkpoint folder {str(folder)!r}.")
    if not (folder / "manifest.json").is_file() and (folder / "trainer_state.json").is_file():
        raise ArtifactError(
            f"{str(folder)!r} was written by the stock Trainer, whose optimizer state is a pickle.",
            f"Start from its weights: AutoModelForSequenceClassification.from_pretrained({str(folder)!r}).",
        )
    return load(folder), folder, []


def model_files(model: Any, tokenizer: Any) -> dict[str, bytes]:
    """Configuration and tokenizer as `from_pretrained` wants them beside the weights."""
    with TemporaryDirectory(prefix="whet-") as name:
        folder = Path(name)
        config: Any = getattr(model, "config", None)
        if hasattr(config, "save_pretrained"):
            config.architectures = [type(model).__name__]
            config.dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
            config.save_pretrained(folder)
        if hasattr(tokenizer, "save_pretrained"):
            tokenizer.save_pretrained(folder)
        for entry in list(folder.iterdir()):
            if entry.is_dir():
                shutil.rmtree(entry)
        return {entry.name: entry.read_bytes() for entry in sorted(folder.iterdir())}
