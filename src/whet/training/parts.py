"""One of several trainings in a run: a fold or a seed, with its own records and checkpoints.

The recorder writes `RUN/parts/fold-3/` like a run, so the same code resumes it. The run's own records get a `Part`
record as a part advances. A finished part keeps its records and its held-out logits; its checkpoints are deleted.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whet.errors import ArtifactError, Diverged, Interrupted
from whet.records import End, Evaluation, Part, Record, Resume, Start, Step, now
from whet.runs.folder import RECORDS, RunFolder, sum_of
from whet.runs.report.html import write_report_quietly
from whet.training.evaluation import Evaluator
from whet.training.plan import Due, State, every
from whet.training.recorder import EventHandler, Recorder
from whet.training.setup import Job
from whet.utils.arrays import Array
from whet.utils.files import sync_folder
from whet.utils.safetensors_files import Groups, TensorFile, save_tensors
from whet.utils.signals import Interrupts
from whet.utils.text import Echo

PARTS = "parts"
HELD_OUT = "held-out"
"""The group of tensors in a part's checkpoints, and the file that a finished part keeps."""
OF_AVERAGE = -1
"""The step number under which the averaged weights' logits are kept."""
SAVE_STEPS = 200
"""Largest number of steps between saves of a part; shorter parts start again, which takes seconds."""


def part_folder(run: RunFolder, name: str, number: int) -> RunFolder:
    return RunFolder(run.path / PARTS / f"{name}-{number}")


def parts_of(records: list[Record]) -> dict[tuple[str, int], Part]:
    """Return the started parts of a run in their current state."""
    return {(record.name, record.number): record for record in records if isinstance(record, Part)}


def save_seldom(job: Job) -> Due:
    """Return when a part is saved: as set by the user, or so that little is lost and little is written."""
    config, total = job.prepared.config, job.plan.total_steps
    most = max(1, config.evaluate.evaluations)
    return every(config.run.save_every or max(SAVE_STEPS, -(-total // most)))


@dataclass(frozen=True)
class InitialState:
    """Weights and moments before the first step, to start further trainings from."""

    tensors: Groups
    micro_rows: int

    @classmethod
    def of(cls, job: Job) -> InitialState:
        """The moments are zero at this point; they are stored as expanded zeros without memory."""
        groups = job.stepper.tensors()
        kept: Groups = {"model": {name: tensor.detach().clone() for name, tensor in groups["model"].items()}}
        kept["optimizer"] = {
            name: torch.zeros((), dtype=tensor.dtype, device=tensor.device).expand(tensor.shape)
            if tensor.is_floating_point()
            else tensor.detach().clone()
            for name, tensor in groups["optimizer"].items()
        }
        return cls(kept, job.stepper.micro_rows)

    def begin(self, job: Job) -> None:
        """Reset the job to these weights, untrained."""
        stepper, window = job.stepper, job.stepper.window
        stepper.load(self.tensors)
        stepper.zero()
        window.clear()
        window.grad_norm.zero_()
        window.first_nonfinite_step.fill_(-1)
        stepper.micro_rows = self.micro_rows


@dataclass
class PartOfRun:
    """A part's progress: a `Part` record for the file at times, and an event for progress displays at each step."""

    run: RunFolder
    about: Part
    append: Callable[[Record], None]
    watch: Callable[[Record], None]
    seconds: float = field(default=0.0, init=False)

    def told(self, event: Any, job: Job) -> None:
        """Handle an event of the part's loop."""
        if isinstance(event, Step):
            self.seconds = event.seconds
            self.watch(self.now(event.step))
        elif isinstance(event, Evaluation) and event.step < job.plan.total_steps:
            self.append(self.now(event.step))

    def now(self, steps: int, **changes: Any) -> Part:
        return replace(self.about, steps=steps, seconds=round(self.seconds, 3), **changes)


class RunOfParts:
    """Shared by runs of folds and of seeds: the run's records, and each part trained once."""

    def __init__(self, folder: RunFolder, job: Job, interrupts: Interrupts, echo: Echo, on_event: EventHandler) -> None:
        self.folder, self.job = folder, job
        self.interrupts, self.echo, self.on_event = interrupts, echo, on_event
        self.ranks = job.ranks

    def _begin(self, start: Start, resuming: bool, changed: str) -> bool:
        """Write the start record or read what earlier parts left; return whether the final training had begun."""
        if not self.ranks.is_main:
            return bool(self.ranks.broadcast_object(None))
        self.folder.drop_torn_line()
        earlier = list(self.folder.all_records()) if resuming else []
        begun = any(isinstance(record, Part) and record.name == "final" for record in earlier)
        known = any(isinstance(record, Start) for record in earlier)
        if known and not begun:
            self._append(Resume(step=0, path="", note=changed, time=now()))
        if known and not changed:
            for record in self.folder.records():
                if isinstance(record, Start | Part):
                    self.on_event(record, self.job)  # a progress display must see where the run is
        else:
            shutil.rmtree(self.folder.path / PARTS, ignore_errors=True)
            self._append(start)
        return bool(self.ranks.broadcast_object(begun))

    def _train_part(self, about: Part, job: Job, initial: InitialState, kind: type[PartRecorder]) -> PartOfRun:
        """Train a part to its end, from its start or its last checkpoint."""
        part = part_folder(self.folder, about.name, about.number)
        begun = self.ranks.broadcast_object((part.path / RECORDS).exists())
        initial.begin(job)
        told = PartOfRun(self.folder, about, self._append, self._watch)
        kind(told, job, self.interrupts, self.echo).run(resuming=begun)
        return told

    def _done(self, name: str, number: int) -> Part | None:
        """Return the record of a finished part."""
        found = parts_of(self.folder.records()).get((name, number))
        return found if found is not None and found.state == "done" else None

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """If a part does not finish, write the run's end record and its report."""
        try:
            yield
        except (Interrupted, Diverged) as error:
            reason = "diverged" if isinstance(error, Diverged) else self.interrupts.reason
            self._append(End(step=0, reason=reason, best_step=-1, seconds=self._seconds()))
            if self.ranks.is_main:
                write_report_quietly(self.folder, self.echo)
            raise

    def _seconds(self) -> float:
        """Return the time of all parts without the final training."""
        found = parts_of(self.folder.records()).values()
        return round(sum(part.seconds for part in found if part.name != "final"), 3)

    def _append(self, record: Record) -> None:
        if self.ranks.is_main:
            self.folder.append(record)
            self._watch(record)

    def _watch(self, record: Record) -> None:
        if self.ranks.is_main:
            self.on_event(record, self.job)


class PartRecorder(Recorder):
    """Records a part in its own folder, without a report, a model or descriptions."""

    def __init__(self, part: PartOfRun, job: Job, interrupts: Interrupts, echo: Echo) -> None:
        self.part = part
        folder = part_folder(part.run, part.about.name, part.about.number)
        if job.ranks.is_main:
            folder.path.mkdir(parents=True, exist_ok=True)
            folder.refuse_links()
        super().__init__(folder, job, interrupts, echo, part.told)

    def _introduce(self, *, known: bool) -> None:
        if not known:
            from whet.training.metadata import start_record

            self._append(start_record(self.job))

    def _finish(self) -> None:
        """Nothing to write: the records are complete."""

    def _leave(self) -> None:
        """Nothing to write: the run writes one report for all parts."""

    def _judge(self, step: int) -> None:
        """Nothing to judge: the run judges all parts together."""


class HeldOutEvaluator(Evaluator):
    """Keeps the logits of the held-out rows of every evaluation."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.logits_at: dict[str, Array] = {}

    def __call__(self, state: State) -> Evaluation:
        record = super().__call__(state)
        self.logits_at[_name(state.step)] = self.validation_logits(state.step)
        return record


class FoldRecorder(PartRecorder):
    """Records a fold and keeps the logits of its held-out rows."""

    evaluator: HeldOutEvaluator

    def _make_evaluator(self) -> Evaluator:
        return HeldOutEvaluator(self.job, self.interrupts.check, self._evaluates_fewer)

    def _tensors(self) -> Groups:
        groups = super()._tensors()
        if not self.evaluator.logits_at:
            return groups
        return {**groups, HELD_OUT: _as_tensors(self.evaluator.logits_at)}

    def _load_checkpoint(self, checkpoint: Any) -> None:
        super()._load_checkpoint(checkpoint)
        kept: Mapping[str, Tensor] = checkpoint.tensors.get(HELD_OUT, {})
        self.evaluator.logits_at = {name: kept[name].numpy() for name in kept}

    def _finish(self) -> None:
        if self.job.stepper.average is not None:
            record, logits = self.evaluator.averaged(self.job.state)
            self._append(record)
            self.evaluator.logits_at[_name(OF_AVERAGE)] = logits
        if self.ranks.is_main:
            save_tensors(_as_tensors(self.evaluator.logits_at), held_out_file(self.folder))
            sync_folder(self.folder.path)


def held_out_file(part: RunFolder) -> Path:
    return part.path / f"{HELD_OUT}.safetensors"


def read_held_out(part: RunFolder, sha256: str) -> dict[int, Array]:
    """Return the logits of a finished fold by step; raise if they do not match their recorded SHA-256."""
    path = held_out_file(part)
    if path.is_symlink() or not path.is_file():
        raise ArtifactError(f"{str(path)!r} is missing.")
    if sum_of(path) != sha256:
        raise ArtifactError(f"{str(path)!r} is damaged: it does not match its SHA-256 in the records.")
    found = TensorFile(path)
    return {int(name.removeprefix("step-")): found[name].numpy() for name in found}


def ended_of(part: RunFolder) -> End:
    """Return the end record of a part."""
    return next(record for record in reversed(part.records()) if isinstance(record, End))


def evaluations_of(part: RunFolder) -> list[Evaluation]:
    return [record for record in part.records() if isinstance(record, Evaluation)]


def clear_part(part: RunFolder) -> None:
    """Delete a part's files, so that it starts again."""
    shutil.rmtree(part.path, ignore_errors=True)


def drop_checkpoints(part: RunFolder) -> None:
    shutil.rmtree(part.checkpoints, ignore_errors=True)


def _name(step: int) -> str:
    return f"step-{step:06d}"


def _as_tensors(logits: Mapping[str, Array]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.ascontiguousarray(values, np.float32)) for name, values in logits.items()}
