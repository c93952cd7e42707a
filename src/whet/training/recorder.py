"""The only writer of a run: takes the loop's events, appends records, saves, restores, finishes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from whet.errors import ArtifactError, Diverged, Interrupted, Stopped, WhetError
from whet.records import End, Evaluation, Finding, Record, Resume, Save, now, start_of
from whet.runs.folder import RunFolder
from whet.runs.report.html import write_report_quietly
from whet.runs.verdict.judge import early_verdict
from whet.training.setup import Job
from whet.utils.hf_libraries import freeze_garbage_collector
from whet.utils.signals import Interrupts
from whet.utils.text import Echo

if TYPE_CHECKING:
    from whet.training.checkpoints import Checkpoint
    from whet.training.evaluation import Evaluator
    from whet.utils.safetensors_files import Groups

EventHandler = Callable[[Any, Job], None]
"""Called with every event of the loop."""


class Recorder:
    """Records a run from its first record, or from the newest complete checkpoint, to the end of the plan."""

    def __init__(self, folder: RunFolder, job: Job, interrupts: Interrupts, echo: Echo, on_event: EventHandler) -> None:
        from whet.training.checkpoints import CheckpointFolder

        self.folder, self.job, self.interrupts, self.echo, self.on_event = folder, job, interrupts, echo, on_event
        self.ranks = job.ranks
        self.checkpoints = CheckpointFolder(folder.checkpoints, keep=job.prepared.config.run.keep)
        self.evaluator = self._make_evaluator()

    def _make_evaluator(self) -> Evaluator:
        from whet.training.evaluation import Evaluator

        return Evaluator(self.job, self.interrupts.check, self._evaluates_fewer)

    def run(self, *, resuming: bool, changed: str = "") -> None:
        """`changed` lists the settings that differ from those that the run was started with."""
        with self.ranks.barrier_on_exit():
            self._run(resuming, changed)

    def _run(self, resuming: bool, changed: str) -> None:
        if self.ranks.is_main:
            self.folder.drop_torn_line()
        resumed = resuming and self._restore(changed)
        self._introduce(known=resumed and not changed)
        freeze_garbage_collector()
        try:
            ended = self._train()
            self._finish()
            self.checkpoints.wait()  # the last save continued in the background
            self._append(self._last_record(ended))
        except Stopped as stop:
            self.folder.append(self._end(stop.reason))  # not passed to the caller that stopped it
            raise
        except Interrupted:
            self._append(self._end(self.interrupts.reason))
            raise
        except Diverged as error:
            self._record_divergence(error)
            raise
        finally:
            with contextlib.suppress(WhetError):  # an earlier error is already being raised
                self.checkpoints.wait()
            self._leave()

    def _introduce(self, *, known: bool) -> None:
        """Write the files that precede the first step; the start record only if it is missing."""
        from whet.training.metadata import describe_run, start_record

        if self.ranks.is_main:
            describe_run(self.folder, self.job)
        if not known:
            self._append(start_record(self.job))

    def _finish(self) -> None:
        """Write the files that follow the last step."""
        from whet.training.export import finish

        finish(self.folder, self.job, self.checkpoints, self.evaluator, self._append_and_echo)

    def _last_record(self, ended: End) -> End:
        return ended

    def _leave(self) -> None:
        """Write the end record and the report, however the run ends."""
        if self.ranks.is_main:
            write_report_quietly(self.folder, self.echo)

    def _train(self) -> End:
        """Run the loop to its end, or to a checkpoint where it was interrupted."""
        try:
            ended = self._loop()
            if ended.reason == "patience":
                plan = self.job.plan
                why = f"no improvement in {plan.patience} evaluations"
                self.echo(f"Stopped early at step {ended.step} of {plan.total_steps}: {why}.")
            if self.ranks.world > 1:
                self.checkpoints.wait()
                self.ranks.monitored_barrier()  # all ranks will read the best checkpoint
            return ended
        except Stopped:
            raise
        except Interrupted:
            self._save("interrupted")
            self.checkpoints.wait()
            self.echo(f"Saved step {self.job.state.step} in {self.folder.path}.")
            raise

    def _loop(self) -> End:
        from whet.training.loop import train
        from whet.training.plan import SavePoint, StepDone

        job, ranks = self.job, self.ranks
        events = train(
            job.state,
            job.plan,
            job.feed,
            job.stepper,
            job.rate,
            self.evaluator,
            rank=ranks.rank,
            world=ranks.world,
        )
        for event in events:
            if isinstance(event, End):
                return event
            if isinstance(event, Record):
                self._append(event)
                if isinstance(event, Evaluation):
                    self._judge(event.step)
            else:
                self.on_event(event, job)
            if isinstance(event, SavePoint):
                self._save(event.reason)
            self.checkpoints.poll()
            if isinstance(event, Finding):
                self.echo(event.sentence)
            elif isinstance(event, StepDone) or ranks.world == 1:
                # A finding is recorded in the middle of a step, where the state cannot be saved.
                self.interrupts.check_on_all_ranks(ranks.any_rank)
        raise AssertionError("the loop ends with an End record")

    def _judge(self, step: int) -> None:
        """Record an early verdict of the curves if it is new."""
        if not self.ranks.is_main:
            return
        finding = early_verdict(self.folder.records(), step)
        if finding is not None:
            self._append(finding)
            self.echo(f"So far: {finding.sentence}")

    def _append(self, record: Record) -> None:
        if not self.ranks.is_main:
            return
        self.folder.append(record)
        self.on_event(record, self.job)

    def _append_and_echo(self, record: Record) -> None:
        self._append(record)
        if isinstance(record, Finding):
            self.echo(record.sentence)

    def _save(self, reason: str) -> None:
        """Save in the background; the record is written once the checkpoint is complete."""
        from whet.distributed.group import checksum
        from whet.training.checkpoints import Checkpoint
        from whet.training.loop import as_values, check_finite

        job = self.job
        if job.state.saved == job.state.step:
            return
        check_finite(job.stepper, job.feed)
        # An interruption's save must not replace the scheduled one at the same step.
        job.state.saved = -1 if reason == "interrupted" else job.state.step
        values = {
            **as_values(job.state, job.stepper),
            "reason": reason,
            **({"frozen": job.frozen} if job.frozen else {}),
            "evaluation_rows": self.evaluator.batch_rows,
            "eval_batch_size": job.prepared.config.evaluate.eval_batch_size,
        }
        record = Save(step=job.state.step, path=self._name(job.state.step), reason=reason)
        tensors = self._tensors()
        if self.ranks.world > 1 and not job.stepper.lockstep:
            self.ranks.require_same("The weights", checksum(list(tensors["model"].values())))
        if not self.ranks.is_main:
            return
        self.checkpoints.save(
            Checkpoint(job.state.step, tensors, values),
            job.state.best_step,
            before=self.folder.sync_records,
            done=lambda: self._append(record),
        )

    def _tensors(self) -> Groups:
        """Return a checkpoint's tensors by group."""
        return self.job.stepper.tensors()

    def _name(self, step: int) -> str:
        return f"checkpoints/{self.checkpoints.folder(step).name}"

    def _restore(self, changed: str) -> bool:
        """Resume from the newest complete checkpoint; report the damaged ones."""
        if not self.ranks.is_main:
            return self._load_step_chosen_by_main()
        saved = {record.step for record in self.folder.records() if isinstance(record, Save)}
        checkpoint, passed_over = self.checkpoints.load_newest(saved)
        for line in passed_over:
            self.echo(f"Passed over: {line}")
        start = start_of(self.folder.all_records())
        if start is not None:
            self.on_event(start, self.job)  # a progress display must see where the end is
        if checkpoint is None:
            if passed_over:
                raise ArtifactError(
                    f"No checkpoint of {str(self.folder.path)!r} is whole.", "Start again with another --run."
                )
            self.ranks.broadcast_object(None)
            return start is not None and self._begin_again()
        if start is None:
            raise ArtifactError(
                f"{str(self.folder.path)!r} has checkpoints and no records: what was measured before is gone.",
                "Start again with another --run.",
            )
        self.checkpoints.set_aside_after(checkpoint.step)
        self.ranks.broadcast_object(checkpoint.step)
        self._load_checkpoint(checkpoint)
        name, notes = self._name(checkpoint.step), [*passed_over, *([changed] if changed else [])]
        self._append(
            Resume(
                step=checkpoint.step,
                path=name,
                note="; ".join(notes),
                evaluated=self.job.state.evaluated == checkpoint.step,
                evaluation_rows=self.evaluator.batch_rows,
                time=now(),
            )
        )
        # The process may have died between completing this checkpoint and recording it.
        self._append(Save(step=checkpoint.step, path=name, reason=str(checkpoint.values["reason"])))
        self.echo(f"Resuming {self.folder.path} from step {checkpoint.step} of {self.job.plan.total_steps}.")
        return True

    def _load_step_chosen_by_main(self) -> bool:
        """Load the checkpoint that the main process has chosen."""
        step = self.ranks.broadcast_object(None)
        if step is not None:
            self._load_checkpoint(self.checkpoints.load(step))
        return True

    def _load_checkpoint(self, checkpoint: Checkpoint) -> None:
        from whet.training.loop import restore_values

        values = dict(checkpoint.values)
        if values.get("frozen", self.job.frozen) != self.job.frozen:
            raise ArtifactError(
                f"The weights of {self.job.prepared.config.model.model!r} are not those that the run "
                f"{str(self.folder.path)!r} was started with, and its checkpoints hold the adapters alone.",
                "Put the old weights back, or choose another --run.",
            )
        self.job.stepper.load(checkpoint.tensors)
        restore_values(values, self.job.state, self.job.stepper)
        # Fewer rows than requested, after running out of memory; ignored if the request has changed.
        if values.get("eval_batch_size") == self.job.prepared.config.evaluate.eval_batch_size:
            self.evaluator.batch_rows = int(values["evaluation_rows"])

    def _begin_again(self) -> bool:
        """Start again: the run was interrupted before its first checkpoint, and a Resume record voids all records."""
        self._append(Resume(step=0, path="", note="no checkpoint yet", time=now()))
        self.echo(f"Resuming {self.folder.path} from the beginning: it has no checkpoint yet.")
        return True

    def _evaluates_fewer(self, rows: int) -> None:
        finding = Finding(
            step=self.job.state.step,
            about="memory",
            sentence=f"Out of memory: evaluations take at most {rows} rows at a time from here on.",
            details={"evaluation_rows": rows},
        )
        self._append(finding)
        self.echo(finding.sentence)

    def _record_divergence(self, error: Diverged) -> None:
        """Record the rows of the step that was not finite."""
        name: str = getattr(error, "split", "train")
        step, rows = getattr(error, "step", self.job.state.step), getattr(error, "rows", [])
        if not self.ranks.is_main:
            return
        split = self.job.prepared.examples.rows[name]
        found = {"step": step + 1, "message": str(error), "split": name, "rows": [split.row(int(row)) for row in rows]}
        self.folder.write_json("divergence.json", found)
        self.echo(f"The {len(rows)} {name} rows are in {self.folder.path / 'divergence.json'}.")
        self._append(self._end("diverged", step))

    def _end(self, reason: str, step: int | None = None) -> End:
        state = self.job.state
        return End(
            step=state.step if step is None else step,
            reason=reason,
            best_step=state.best_step,
            best_score=state.best_score,
            seconds=round(state.seconds, 3),
        )
