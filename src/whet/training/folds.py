"""A run that measures by cross-validation, and ships a model trained on all rows.

Each fold is trained without the rows that it holds out. It is evaluated on them at the same shares of its steps at
which the final training has evaluations. Together these logits give one evaluation of all rows per such step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from whet.data.folds import KEPT
from whet.errors import ArtifactError
from whet.records import AVERAGED, End, Evaluation, Part, Start, shipped_evaluation
from whet.runs.folder import RunFolder, sum_of
from whet.runs.predictions import PREDICTIONS
from whet.runs.progress import duration
from whet.training.choice import Choice, choose
from whet.training.evaluation import evaluation_record
from whet.training.parts import (
    OF_AVERAGE,
    FoldRecorder,
    InitialState,
    PartOfRun,
    RunOfParts,
    clear_part,
    drop_checkpoints,
    ended_of,
    evaluations_of,
    held_out_file,
    part_folder,
    read_held_out,
    save_seldom,
)
from whet.training.plan import make_plan
from whet.training.recorder import EventHandler, Recorder
from whet.training.setup import Job, with_order
from whet.utils.arrays import Array
from whet.utils.signals import Interrupts
from whet.utils.text import Echo


@dataclass(frozen=True)
class Fold:
    """One fold: its job and its held-out rows."""

    number: int
    job: Job
    held_out: Array


@dataclass(frozen=True)
class Pooled:
    """All held-out rows with the logits of the shipped step."""

    rows: Array
    folds: Array
    logits: Array


class FoldedRun(RunOfParts):
    """Trains the folds, pools their held-out logits, and trains the shipped model."""

    def __init__(
        self,
        folder: RunFolder,
        job: Job,
        numbers: Array,
        interrupts: Interrupts,
        echo: Echo,
        on_event: EventHandler,
        *,
        measure_only: bool = False,
    ) -> None:
        super().__init__(folder, job, interrupts, echo, on_event)
        self.numbers, self.measure_only = numbers, measure_only
        self.count = int(numbers.max()) + 1
        self.measured = np.flatnonzero(numbers != KEPT)
        config, total = job.prepared.config, job.plan.total_steps
        due = make_plan(config, total, job.metric, True).evaluate
        self.schedule = [step for step in range(1, total + 1) if due(step) or step == total]
        """The steps of the final training that the pooled evaluations belong to."""
        self.folds = [self._fold(number) for number in range(self.count)]
        job.plan = replace(job.plan, save=_or_last(save_seldom(job), total))
        self._logits: dict[int, dict[int, Array]] = {}
        self._evaluations: dict[int, dict[int, Evaluation]] = {}

    @property
    def trainings(self) -> list[Job]:
        return [*(fold.job for fold in self.folds), *([] if self.measure_only else [self.job])]

    def run(self, *, resuming: bool, changed: str = "") -> None:
        """`changed` lists the settings that differ from those that the run was started with."""
        from whet.training.metadata import describe_run

        initial = InitialState.of(self.job)
        if self.ranks.is_main:
            describe_run(self.folder, self.job, np.bincount(self.numbers[self.measured], minlength=self.count))
        begun = self._begin(self._start(), resuming, changed)
        with self._ending():
            for fold in self.folds:
                self._train(fold, initial)
        if self.measure_only:
            self._keep_held_out()
        else:
            self._ship(initial, begun, changed)

    def _start(self) -> Start:
        from whet.training.metadata import majority_answer, prior, start_record

        task, labels = self.job.prepared.examples.task, self._labels()
        start = start_record(self.job)
        return replace(
            start,
            rows={**start.rows, "validation": len(self.measured)},
            prior={**start.prior, "validation": prior(task, labels)},
            majority=majority_answer(task, self.job.prepared.labels("train"), labels),
            evaluations=len(self.schedule),
            folds=self.count,
            all_steps=sum(job.plan.total_steps for job in self.trainings),
        )

    # Folds

    def _fold(self, number: int) -> Fold:
        """Return a job for the rows of the other folds, with the same model."""
        held_out = np.flatnonzero(self.numbers == number)
        prepared = self.job.prepared
        config = prepared.config
        probe = min(config.evaluate.probe_rows, len(held_out))
        tables = {"train": np.flatnonzero(self.numbers != number), "validation": held_out}
        own = replace(
            prepared,
            config=replace(config, evaluate=replace(config.evaluate, probe_rows=probe, patience=None)),
            tokens={name: prepared.tokens["train"].taken(rows) for name, rows in tables.items()},
            examples=replace(
                prepared.examples,
                rows={name: prepared.examples.rows["train"].taken(rows) for name, rows in tables.items()},
            ),
        )
        job = with_order(self.job, own)
        steps = set(self._own_steps(job))
        job.plan = replace(
            job.plan,
            evaluate=lambda step: step in steps,
            save=save_seldom(job),
            save_best=False,
            save_last=False,
            metric="",  # a fold has no best step of its own: all folds are compared together
        )
        return Fold(number, job, held_out)

    def _own_steps(self, job: Job) -> list[int]:
        """Return the fold's steps at the same shares of its training as the schedule's in the final one."""
        share = job.plan.total_steps / self.job.plan.total_steps
        return [max(1, round(step * share)) for step in self.schedule]

    def _train(self, fold: Fold, initial: InitialState) -> None:
        logits = self.ranks.broadcast_object(self._left_by(fold) if self.ranks.is_main else None)
        if logits is None:
            about = Part(
                step=0,
                name="fold",
                number=fold.number + 1,
                of=self.count,
                state="running",
                total_steps=fold.job.plan.total_steps,
                rows=len(self.numbers) - len(fold.held_out),
                held_out=len(fold.held_out),
                seed=fold.job.prepared.config.train.seed,
            )
            told = self._train_part(about, fold.job, initial, FoldRecorder)
            if self.ranks.is_main:
                logits = self._complete(fold, told)
        if self.ranks.is_main:
            self._logits[fold.number] = logits
            self._evaluations[fold.number] = {
                OF_AVERAGE if found.split == AVERAGED else found.step: found
                for found in evaluations_of(self._part(fold))
            }
            self._pool()

    def _left_by(self, fold: Fold) -> dict[int, Array] | None:
        """Return the logits of a finished fold; None if it must be trained."""
        part, record = self._part(fold), self._done("fold", fold.number + 1)
        if record is None:
            return None
        try:
            found = read_held_out(part, record.sha256)
        except ArtifactError as error:
            self.echo(f"Fold {fold.number + 1} is trained again: {error}")
            clear_part(part)
            return None
        drop_checkpoints(part)
        return found

    def _part(self, fold: Fold) -> RunFolder:
        return part_folder(self.folder, "fold", fold.number + 1)

    def _complete(self, fold: Fold, told: PartOfRun) -> dict[int, Array]:
        """Record a fold as done; only after that its checkpoints may be deleted."""
        part = self._part(fold)
        sha256 = sum_of(held_out_file(part))
        last = next(record for record in reversed(evaluations_of(part)) if record.split == "validation")
        told.seconds = ended_of(part).seconds
        score = last.metrics.get(self.job.metric, last.loss)
        found = {"state": "done", "score": score, "loss": last.loss, "best_step": last.step, "sha256": sha256}
        self._append(told.now(fold.job.state.step, **found))
        self.folder.sync_records()
        drop_checkpoints(part)
        self.echo(
            f"Fold {fold.number + 1} of {self.count}: {self.job.metric} {score:.4f} on {len(fold.held_out):,} rows "
            f"({duration(told.seconds)})."
        )
        return read_held_out(part, sha256)

    # Pooling

    def _pool(self) -> None:
        """Yield one evaluation per step of the schedule, of all rows held out so far."""
        known = [fold for fold in self.folds if fold.number in self._logits]
        own_steps = {fold.number: self._own_steps(fold.job) for fold in known}
        for index, step in enumerate(self.schedule):
            at = {fold.number: own_steps[fold.number][index] for fold in known}
            record = self._pooled_record(step, self._pooled(at), self._parts_of(at))
            is_last = len(known) == self.count and step == self.schedule[-1]
            self._append(replace(record, best=is_last))
            if is_last and self.job.stepper.average is not None:
                self._pool_average(record)

    def _pool_average(self, last: Evaluation) -> None:
        """Return the pooled evaluation of the folds' averaged weights, and whether to ship them instead of the last
        step's."""
        at = {fold.number: OF_AVERAGE for fold in self.folds}
        record = self._pooled_record(last.step, self._pooled(at), self._parts_of(at))
        kept = self.job.plan.rule.keeps_average(record, last)
        self._append(replace(record, split=AVERAGED, best=kept))

    def _choice(self) -> Choice:
        """Choose between the last step's and the averaged weights by the folds' evaluations of both."""
        pooled = [record for record in self.folder.records() if isinstance(record, Evaluation) and record.out_of_fold]
        return choose(pooled, self.job.plan.rule, self.schedule[-1])

    def _pooled(self, at: dict[int, int]) -> Pooled:
        """Return the rows in source order, each with the logits of its own fold."""
        rows = np.concatenate([self.folds[number].held_out for number in at])
        logits = np.concatenate([self._logits[number][step] for number, step in at.items()])
        order = np.argsort(rows)
        return Pooled(rows[order], self.numbers[rows[order]], logits[order])

    def _pooled_record(self, step: int, pooled: Pooled, parts: Sequence[Evaluation]) -> Evaluation:
        labels = self.job.prepared.labels("train")
        assert labels is not None
        rows = self.job.prepared.examples.rows["train"].taken(pooled.rows)
        epoch = round(step / self.job.feed.order.steps_per_epoch, 6)
        record = evaluation_record(self.job, pooled.logits, labels[pooled.rows], "validation", rows, step, epoch)
        probes = [(each.probe_loss, each.rows) for each in parts if each.probe_loss is not None]
        total = sum(count for _, count in probes)
        return replace(
            record,
            probe_loss=sum(loss * count for loss, count in probes) / total if total else None,
            seconds=round(sum(each.seconds for each in parts), 3),
            out_of_fold=True,
        )

    def _parts_of(self, at: dict[int, int]) -> list[Evaluation]:
        return [self._evaluations[number][own] for number, own in at.items()]

    def _labels(self) -> Array:
        labels = self.job.prepared.labels("train")
        assert labels is not None
        return labels[self.measured]

    # The shipped model, or only what was held out

    def _keep_held_out(self) -> None:
        """Write what the folds held out, and train no model to keep."""
        from whet.training.export import write_predictions

        if self.ranks.is_main:
            pooled, scored = self._kept_logits(self._choice())
            write_predictions(self.folder.path / PREDICTIONS, self.job, {}, pooled)
            score = scored.metrics.get(self.job.metric, scored.loss)
            seconds = self._seconds()
            self._append(End(step=0, reason="finished", best_step=scored.step, best_score=score, seconds=seconds))

    def _kept_logits(self, choice: Choice) -> tuple[Pooled, Evaluation]:
        """The logits of the weights that were chosen for all folds, and the evaluation of them."""
        at = {each.number: OF_AVERAGE if choice.averaged else self._own_steps(each.job)[-1] for each in self.folds}
        scored = shipped_evaluation(self.folder.records())
        assert scored is not None
        return self._pooled(at), scored

    def _ship(self, initial: InitialState, begun: bool, changed: str) -> None:
        """Train on all rows; the score is that of the folds."""
        pooled = scored = choice = None
        if self.ranks.is_main:
            choice = self._choice()
            pooled, scored = self._kept_logits(choice)
            self.echo(
                f"Held out by {self.count} folds: {self.job.metric} "
                f"{scored.metrics.get(self.job.metric, scored.loss):.4f} on {scored.rows:,} rows. "
                f"Now the model that is kept: it learns from all {len(self.numbers):,}."
            )
        about = Part(
            step=0,
            name="final",
            number=1,
            of=1,
            state="running",
            total_steps=self.job.plan.total_steps,
            rows=len(self.numbers),
            seed=self.job.prepared.config.train.seed,
        )
        if not begun or changed:
            self._append(about)
        initial.begin(self.job)
        recorder = FinalRecorder(self.folder, self.job, self.interrupts, self.echo, self.on_event)
        recorder.about, recorder.pooled, recorder.scored = about, pooled, scored
        recorder.choice = self.job.ranks.broadcast_object(choice)
        recorder.seconds_before = self._seconds()
        recorder.run(resuming=begun, changed=changed)


class FinalRecorder(Recorder):
    """Records the training on all rows in the run's folder, with the folds' result as its score."""

    about: Part
    pooled: Pooled | None
    scored: Evaluation | None
    choice: Choice
    seconds_before: float

    def _introduce(self, *, known: bool) -> None:
        """Nothing to write: the start record came before the folds."""

    def _finish(self) -> None:
        from whet.training.export import finish

        finish(self.folder, self.job, self.checkpoints, self.evaluator, self._append, self.pooled, self.choice)
        if self.choice.sentence:
            self._append_and_echo(self.choice.finding(self.job.state.step))

    def _last_record(self, ended: End) -> End:
        self._append(replace(self.about, state="done", steps=ended.step, seconds=round(ended.seconds, 3)))
        if self.scored is None:
            return ended
        return replace(
            ended,
            best_step=self.scored.step,
            best_score=self.scored.metrics.get(self.job.metric, self.scored.loss),
            seconds=round(ended.seconds + self.seconds_before, 3),
        )


def _or_last(due: Any, total: int) -> Any:
    return lambda step: due(step) or step == total
