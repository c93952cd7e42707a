"""Estimates time, memory and disk of a run before it starts, from one real batch."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch

from whet.engine.network import Rows
from whet.errors import EnvironmentFault
from whet.models.lora import frozen_count
from whet.models.pretrained import parameter_count
from whet.runs.folder import UNFINISHED_MODEL
from whet.runs.progress import duration
from whet.training.setup import Job
from whet.utils.device import synchronize
from whet.utils.memory import free_cached_memory, is_memory_error, no_room_for_one_row, no_room_together, peak_memory_mb

BYTES_PER_WEIGHT = 4
BYTES_PER_PARAMETER = 3 * BYTES_PER_WEIGHT  # float32 weights and two moments
LONG_SECONDS = 600.0
COURSE_EPOCHS = 3.0
BYTES_OF_AVERAGE = 4
FORWARD_SHARE = 1 / 3  # share of a training step: the backward pass costs about twice as much as the forward pass


@dataclass(frozen=True)
class Estimate:
    steps: int
    seconds: float
    memory_mb: float
    checkpoints: int
    disk_mb: float
    slow: str = ""
    """The reason if the run is slower than necessary; empty otherwise."""
    shorter: str = ""
    """How to shorten the run, if it is long."""

    def sentence(self) -> str:
        saves = f"{self.checkpoints} checkpoint{'' if self.checkpoints == 1 else 's'}"
        takes = (
            f"{self.steps} steps, about {duration(self.seconds)}, {self.memory_mb / 1024:.1f} GB of memory, "
            f"{saves} ({self.disk_mb / 1024:.1f} GB on disk at most)."
        )
        return "\n".join(filter(None, (takes, self.slow, self.shorter)))


def estimate(job: Job, trainings: Sequence[Job] = ()) -> Estimate:
    """Time forward and backward of one batch twice and return the second. The weights do not change.

    `trainings` lists all trainings of the run, if there are several.
    """
    row_seconds, jobs = _seconds_per_row(job), trainings or [job]
    seconds = sum(_seconds_of(each, row_seconds) for each in jobs) / job.ranks.world
    bytes_each = BYTES_PER_PARAMETER + (BYTES_OF_AVERAGE if job.prepared.config.train.average else 0)
    all_weights, frozen = parameter_count(job.network.model), frozen_count(job.network.model)
    checkpoint_mb = (all_weights - frozen) * bytes_each / 2**20
    model_mb = all_weights * BYTES_PER_WEIGHT / 2**20
    saves = [sum(each.plan.save(step) for step in range(1, each.plan.total_steps + 1)) for each in jobs]
    seeds = job.prepared.config.train.seeds
    # The last checkpoints, the best of each, and one being written; the best of each seed stays to the end.
    kept = min(max(saves), 2 * job.prepared.config.run.keep + 1) + (seeds - 1)
    memory = peak_memory_mb(job.hardware.device) + checkpoint_mb  # with adapters the peak holds the frozen weights
    return Estimate(
        steps=sum(each.plan.total_steps for each in jobs),
        seconds=seconds,
        memory_mb=memory,
        checkpoints=sum(saves),
        disk_mb=kept * checkpoint_mb + model_mb,
        slow=job.hardware.slow,
        shorter=_shorter(job, seconds, row_seconds) if seconds > LONG_SECONDS else "",
    )


def _seconds_of(job: Job, row_seconds: float) -> float:
    """Return the time of one training of this plan."""
    steps, config = job.plan.total_steps, job.prepared.config
    evaluations = sum(job.plan.evaluate(step) for step in range(1, steps + 1))
    measured = min(config.evaluate.probe_rows, len(job.feed.tokens)) + len(job.prepared.tokens.get("validation", ()))
    tokens = job.feed.tokens
    windows = len(tokens.row_lengths) / max(1, len(tokens))
    return (steps * job.feed.order.batch_size + evaluations * measured * FORWARD_SHARE) * windows * row_seconds


def _shorter(job: Job, seconds: float, row_seconds: float) -> str:
    """Describe ways to shorten a long run, each with its estimated time."""
    train, ways = job.prepared.config.train, []
    alone = _seconds_of(job, row_seconds) / job.ranks.world
    if job.prepared.config.data.folds:
        ways.append(f"--folds 0 measures on one split ({duration(alone)})")
    if train.seeds > 1:
        ways.append(f"--seeds 1 ({duration(alone)})")
    if train.recipe == "auto" and train.max_steps is None and train.epochs > COURSE_EPOCHS:
        few = f"--epochs {COURSE_EPOCHS:g} goes over the rows less often"
        ways.append(f"{few} ({duration(seconds * COURSE_EPOCHS / train.epochs)})")
    return f"To make it shorter: {'; '.join(ways)}." if ways else ""


def require_disk(path: Path, needed: Estimate) -> None:
    """Raise before training if the disk cannot hold the run's files; files of a partly finished run count as room."""
    existing = next(parent for parent in (path, *path.resolve().parents) if parent.exists())
    free = shutil.disk_usage(existing).free / 2**20
    left = chain(*((path / name).rglob("*") for name in ("checkpoints", "parts", UNFINISHED_MODEL)))
    own = (file for file in left if file.is_file() and not file.is_symlink())
    free += sum(file.stat().st_size for file in own) / 2**20
    if free < needed.disk_mb:
        raise EnvironmentFault(
            f"The run needs about {needed.disk_mb:.0f} MB in {str(path)!r}, and {free:.0f} MB are free.",
            "Make room, choose another --run, or keep fewer checkpoints with --keep 1.",
        )


def _seconds_per_row(job: Job) -> float:
    """Return the time per row. Micro-batches are halved here if memory runs out; training repeats that and reports
    it."""
    stepper, whole = job.stepper, job.stepper.micro_rows
    rows = job.feed.rows(job.feed.order.batch(0, 0))[:whole]
    job.network.model.train()
    try:
        while True:
            try:
                return _time(job, rows)
            except (torch.OutOfMemoryError, RuntimeError, MemoryError) as error:
                if not is_memory_error(error):
                    raise
                if stepper.lockstep:
                    raise no_room_together(error, len(rows)) from None
                if len(rows) <= 1:
                    raise no_room_for_one_row(error) from None
                rows = rows[: len(rows) // 2]
            stepper.zero()
            stepper.micro_rows = len(rows)  # steps are compiled for this many rows: fewer would be padded to it
            free_cached_memory(job.hardware.device)
    finally:
        stepper.micro_rows = whole


def _time(job: Job, rows: Rows) -> float:
    started = 0.0
    for _ in range(2):
        synchronize(job.hardware.device)
        started = time.monotonic()
        job.stepper.forward_backward(job.feed, rows)
        synchronize(job.hardware.device)
    return (time.monotonic() - started) / len(rows)
