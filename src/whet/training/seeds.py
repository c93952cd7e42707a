"""A run of several trainings on the same rows with different seeds.

It ships the average of their weights if that scores better on the validation rows than the trainings do on average;
otherwise the best training.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

import torch
from torch import Tensor

from whet.engine.state_tensors import trained_tensors
from whet.errors import ArtifactError
from whet.models.pretrained import load_model
from whet.records import End, Evaluation, Finding, Part, Start, Step
from whet.runs.folder import RunFolder
from whet.runs.parts import seed_table
from whet.runs.report.html import write_report_quietly
from whet.training.checkpoints import CheckpointFolder
from whet.training.choice import Choice
from whet.training.evaluation import Evaluator
from whet.training.parts import (
    InitialState,
    PartRecorder,
    RunOfParts,
    clear_part,
    drop_checkpoints,
    ended_of,
    evaluations_of,
    part_folder,
)
from whet.training.recorder import EventHandler
from whet.training.setup import Job, with_order
from whet.utils.hf_libraries import freeze_garbage_collector
from whet.utils.signals import Interrupts
from whet.utils.text import Echo


class SeededRun(RunOfParts):
    """Trains with each seed, reports the spread of the scores, and ships one model."""

    def __init__(self, folder: RunFolder, job: Job, interrupts: Interrupts, echo: Echo, on_event: EventHandler) -> None:
        super().__init__(folder, job, interrupts, echo, on_event)
        first, count = job.prepared.config.train.seed, job.prepared.config.train.seeds
        self.trainings = [self._job(first + number) for number in range(count)]

    def run(self, *, resuming: bool, changed: str = "") -> None:
        """`changed` lists the settings that differ from those that the run was started with."""
        from whet.training.metadata import describe_run, start_record

        initial = InitialState.of(self.job)
        if self.ranks.is_main:
            describe_run(self.folder, self.job)
        steps = sum(job.plan.total_steps for job in self.trainings)
        start: Start = replace(start_record(self.trainings[0]), seeds=len(self.trainings), all_steps=steps)
        self._begin(start, resuming, changed)
        with self._ending():
            for number, job in enumerate(self.trainings, 1):
                self._train(number, job, initial)
            freeze_garbage_collector()
            ended = self._ship()
        self._append(ended)
        if self.ranks.is_main:
            for number in range(1, len(self.trainings) + 1):
                drop_checkpoints(part_folder(self.folder, "seed", number))
            write_report_quietly(self.folder, self.echo)

    def _job(self, seed: int) -> Job:
        prepared = self.job.prepared
        config = replace(prepared.config, train=replace(prepared.config.train, seed=seed))
        job = with_order(self.job, replace(prepared, config=config))
        due, total = job.plan.evaluate, job.plan.total_steps
        job.plan = replace(job.plan, evaluate=lambda step: due(step) or step == total)
        return job

    # Training

    def _train(self, number: int, job: Job, initial: InitialState) -> None:
        if self.ranks.broadcast_object(self.ranks.is_main and self._is_left(number)):
            return
        train = job.prepared.config.train
        job.stepper.reseed(train.seed)
        about = Part(
            step=0,
            name="seed",
            number=number,
            of=len(self.trainings),
            state="running",
            total_steps=job.plan.total_steps,
            rows=len(job.feed.tokens),
            held_out=len(job.prepared.tokens["validation"]),
            seed=train.seed,
        )
        begin = initial if number == 1 else replace(initial, tensors={**initial.tensors, "model": self._weights(job)})
        told = self._train_part(about, job, begin, PartRecorder)
        if not self.ranks.is_main:
            return
        part = part_folder(self.folder, "seed", number)
        ended = ended_of(part)
        best = next(record for record in evaluations_of(part) if record.step == ended.best_step)
        told.seconds = ended.seconds
        score = best.metrics.get(job.metric, best.loss)
        self._append(told.now(ended.step, state="done", score=score, loss=best.loss, best_step=best.step))
        self.folder.sync_records()
        self.echo(
            f"Seed {train.seed} ({number} of {len(self.trainings)}): {job.metric} {score:.4f} at step {best.step}."
        )

    def _weights(self, job: Job) -> dict[str, Tensor]:
        """Return the pretrained weights with this seed's head, or its adapters and head alone."""
        config, task = job.prepared.config, job.prepared.examples.task
        loaded = load_model(config.model.model, task, config.model, seed=config.train.seed, lora=config.lora)
        return {name: tensor.clone() for name, tensor in trained_tensors(loaded.model).items()}

    def _is_left(self, number: int) -> bool:
        """Return whether a training is done and its best weights exist; otherwise it is repeated."""
        part, record = part_folder(self.folder, "seed", number), self._done("seed", number)
        if record is None:
            return False
        try:
            CheckpointFolder(part.checkpoints).load(record.best_step)
            return True
        except ArtifactError as error:
            self.echo(f"Seed {record.seed} is trained again: {error}")
            clear_part(part)
            return False

    # The shipped model

    def _ship(self) -> End:
        """Compare, load the better weights, and write the model."""
        from whet.training.export import finish

        members: list[Part] = self.ranks.broadcast_object(
            [part for number in range(1, len(self.trainings) + 1) if (part := self._done("seed", number))]
            if self.ranks.is_main
            else None
        )
        averaged = self._averaged(members)
        score = averaged.metrics.get(self.job.metric, averaged.loss)
        table = seed_table(members, self.job.metric, self.job.plan.higher_is_better, score)
        if self.ranks.is_main:
            self.echo(table.text())
        best = members[table.best]
        step = averaged.step if table.ships_average else best.best_step
        if not table.ships_average:
            with self._checkpoints(best).reading(best.best_step, weights_only=True) as found:
                self.job.stepper.load(found.tensors)
        self._show(best, averaged if table.ships_average else None)
        self._append(Finding(step=step, about="seeds", sentence=table.sentence(), details=table.as_dict()))
        self.job.state.step = self.job.state.best_step = step
        evaluator = Evaluator(self.job, self.interrupts.check)
        chosen = Choice(step, averaged=False, sentence="")  # no training's own running mean: the comparison has decided
        finish(self.folder, self.job, self._checkpoints(best), evaluator, self._append, choice=chosen)
        shipped = score if table.ships_average else best.score
        reason, steps = "finished", self.job.plan.total_steps
        return End(step=steps, reason=reason, best_step=step, best_score=shipped, seconds=self._seconds())

    def _averaged(self, members: list[Part]) -> Evaluation:
        """Return the validation score of the average of all weights, which the model then holds."""
        with ExitStack() as held:
            found = [
                held.enter_context(self._checkpoints(part).reading(part.best_step, weights_only=True)).tensors["model"]
                for part in members
            ]
            self.job.stepper.load({"model": {name: _mean([each[name] for each in found]) for name in found[0]}})
        self.job.state.step = self.job.plan.total_steps
        record, _ = Evaluator(self.job, self.interrupts.check).measure("validation", self.job.state)
        return self.ranks.broadcast_object(record)  # type: ignore[no-any-return]

    def _show(self, best: Part, averaged: Evaluation | None) -> None:
        """Record the curves of the best training as the run's; the average, if shipped, is their last point."""
        if not self.ranks.is_main:
            return
        for record in part_folder(self.folder, best.name, best.number).records():
            if isinstance(record, Step):
                self._append(record)
            elif isinstance(record, Evaluation):
                self._append(record if averaged is None else replace(record, best=False))
        if averaged is not None:
            self._append(replace(averaged, best=True))

    def _checkpoints(self, part: Part) -> CheckpointFolder:
        return CheckpointFolder(part_folder(self.folder, part.name, part.number).checkpoints)


def _mean(tensors: list[Tensor]) -> Tensor:
    """Return the mean in double precision, so that the order does not matter; integers are equal in all members."""
    first = tensors[0]
    if not first.is_floating_point():
        return first
    return torch.stack([tensor.double() for tensor in tensors]).mean(dim=0).to(first.dtype)
