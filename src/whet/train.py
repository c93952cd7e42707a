"""One run, from a source to a finished run folder. Every door that trains comes through here."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whet.config import Config, RunConfig, differences, from_environment, make_config
from whet.errors import Diverged, Interrupted, UsageError
from whet.interrupts import Interrupts
from whet.prepare import Job, Say, make_job, make_tokens, read_examples
from whet.records import End, Record, Resume, Save
from whet.runs.store import RunFolder, next_run_path, run_name, runs_named

if TYPE_CHECKING:
    from whet.run import Run

# Settings that may change between an interrupted run and its continuation: they do not touch the training.
FREE_SETTINGS = frozenset({"run", "keep", "max_minutes", "offline"})

Listener = Callable[[Any, Job], None]
"""Called with every event of the loop."""


def fit(source: Any = None, *, accept_changes: bool = False, **settings: Any) -> Run:
    """Fine-tune a model on labelled text and return the finished run.

    `source` is a file, a folder, a hub name, a DataFrame, a Dataset or lists; `settings` are the names that
    `whet train --help` lists, such as `model="minilm"`, `epochs=3`, `learning_rate=5e-5`.
    """
    if isinstance(source, str | os.PathLike):
        settings["source"] = os.fspath(source)
    config = make_config(from_environment(), settings)
    if source is None and not config.data.source:
        raise UsageError("fit was given no source.", "Give a file, a folder, a DataFrame or a Dataset.")
    return train_run(source, config, accept_changes=accept_changes)


def train_run(
    source: Any,
    config: Config,
    *,
    accept_changes: bool = False,
    say: Say = lambda line: None,
    listen: Listener = lambda event, job: None,
) -> Run:
    """Train to the end of the plan, or go on with a run that was interrupted."""
    from whet.estimate import estimate, require_disk
    from whet.run import Run

    if config.run.offline:
        os.environ["HF_HUB_OFFLINE"] = "1"  # read by the hub's client when it is first imported
    with Interrupts(config.run.max_minutes) as interrupts:
        examples, report = read_examples(source, config, say)
        folder, resuming = open_run(config)
        with folder.locked():
            if resuming and folder.finished:
                say(f"{folder.path} is finished already.")
                return Run(folder.path)
            if resuming:
                _refuse_changes(folder, config, examples.fingerprint, accept_changes)
            prepared = make_tokens(config, examples, report, say, interrupts.check)
            job = make_job(prepared, say)
            expected = estimate(job)
            say(expected.sentence())
            require_disk(folder.path, expected)
            _Recorder(folder, job, interrupts, say, listen).run(resuming)
    return Run(folder.path)


def rehearse(source: Any, config: Config, say: Say) -> None:
    """Everything up to the first step: what was understood, and what training would take."""
    from whet.estimate import estimate

    examples, report = read_examples(source, config, say)
    job = make_job(make_tokens(config, examples, report, say), say)
    say(estimate(job).sentence())


def open_run(config: Config) -> tuple[RunFolder, bool]:
    """The folder of this run, and whether it holds an earlier part of it.

    Without --run, the newest run of this name goes on if it has the same settings and was not finished.
    """
    if config.run.run is not None:
        path = Path(config.run.run)
        if (path / "config.toml").is_file():
            return RunFolder.open(path), True
        return RunFolder.create(path, config), False
    root, name = Path("runs"), run_name(config.data.source)
    for newest in runs_named(root, name)[:1]:
        if not newest.finished and not _changed(newest, config):
            return newest, True
    return RunFolder.create(next_run_path(root, name), config), False


def _changed(folder: RunFolder, config: Config) -> dict[str, tuple[Any, Any]]:
    changed = differences(folder.config, config)
    return {name: pair for name, pair in changed.items() if name not in FREE_SETTINGS}


def _refuse_changes(folder: RunFolder, config: Config, fingerprint: str, accept: bool) -> None:
    changed = {name: (str(old), str(new)) for name, (old, new) in _changed(folder, config).items()}
    before = folder.data.get("fingerprint", fingerprint)
    if before != fingerprint:
        changed["data"] = (before[:12], fingerprint[:12])
    if changed and not accept:
        listed = "; ".join(f"{name} was {old}, is {new}" for name, (old, new) in changed.items())
        raise UsageError(
            f"The run {str(folder.path)!r} was begun with other settings: {listed}.",
            "Choose another --run, or add --accept-changes to go on with the new ones.",
        )


class _Recorder:
    """The one writer of a run: takes the loop's events, appends records, saves, finishes."""

    def __init__(self, folder: RunFolder, job: Job, interrupts: Interrupts, say: Say, listen: Listener) -> None:
        from whet.engine.checkpoint import CheckpointFolder

        self.folder, self.job, self.interrupts, self.say, self.listen = folder, job, interrupts, say, listen
        settings: RunConfig = job.prepared.config.run
        self.checkpoints = CheckpointFolder(folder.checkpoints, keep=settings.keep)

    def run(self, resuming: bool) -> None:
        from whet.evaluation import Evaluator
        from whet.finish import describe_run, finish, start_record

        job = self.job
        evaluator = Evaluator(job, self.interrupts.check)
        self.folder.drop_torn_line()
        describe_run(self.folder, job)
        if not (resuming and self._restore()):
            self._append(start_record(job))
        try:
            ended = self._loop(evaluator)
            finish(self.folder, job, self.checkpoints, evaluator, self._append, self.say)
            self._append(ended)
        except Interrupted:
            self._save("interrupted")
            raise
        except Diverged as error:
            self._write_down(error)
            raise
        finally:
            self.checkpoints.wait()

    def _loop(self, evaluator: Any) -> End:
        from whet.engine.loop import SavePoint, train

        job = self.job
        for event in train(job.state, job.plan, job.feed, job.stepper, job.rate, evaluator):
            if isinstance(event, End):
                return event
            if isinstance(event, Record):
                self._append(event)
            else:
                self.listen(event, job)
            if isinstance(event, SavePoint):
                self._save(event.reason)
            self.interrupts.check()
        raise AssertionError("the loop ends with an End record")

    def _append(self, record: Record) -> None:
        self.folder.append(record)
        self.listen(record, self.job)

    def _save(self, reason: str) -> None:
        """Save in the background; the record is written once the checkpoint is whole."""
        from whet.engine.checkpoint import Checkpoint
        from whet.engine.loop import as_values, check_finite
        from whet.engine.tensors import state_tensors

        job = self.job
        if job.state.saved == job.state.step:
            return
        check_finite(job.stepper, job.feed)
        # A save that no schedule asked for must not stand in for the one that the schedule asks for here.
        job.state.saved = -1 if reason == "interrupted" else job.state.step
        values = {**as_values(job.state, job.stepper), "reason": reason}
        checkpoint = Checkpoint(job.state.step, state_tensors(job.network.model, job.stepper.optimizer), values)
        record = Save(
            step=job.state.step,
            path=f"checkpoints/{self.checkpoints.folder(job.state.step).name}",
            reason=reason,
        )
        self.checkpoints.save(checkpoint, job.state.best_step, done=lambda path: self._append(record))

    def _restore(self) -> bool:
        """Go on from the newest whole checkpoint; say which ones were not whole."""
        from whet.engine.loop import restore_values
        from whet.engine.tensors import load_state_tensors

        checkpoint, passed_over = self.checkpoints.load_newest()
        for line in passed_over:
            self.say(f"Passed over: {line}")
        if checkpoint is None:
            if passed_over:
                from whet.errors import ArtifactError

                raise ArtifactError(
                    f"No checkpoint of {str(self.folder.path)!r} is whole.", "Start again with another --run."
                )
            return self._begin_again()
        load_state_tensors(checkpoint.tensors, self.job.network.model, self.job.stepper.optimizer)
        restore_values(dict(checkpoint.values), self.job.state, self.job.stepper)
        name = self.checkpoints.folder(checkpoint.step).name
        self._append(Resume(step=checkpoint.step, path=f"checkpoints/{name}", note="; ".join(passed_over), time=now()))
        reason = str(checkpoint.values["reason"])
        self._append(Save(step=checkpoint.step, path=f"checkpoints/{name}", reason=reason))
        self.say(f"Resuming {self.folder.path} from step {checkpoint.step}.")
        return True

    def _begin_again(self) -> bool:
        """The run was cut off before its first checkpoint: everything recorded is taken back."""
        if any(True for _ in self.folder.all_records()):
            self._append(Resume(step=0, path="", note="no checkpoint yet", time=now()))
            self.say(f"Resuming {self.folder.path} from the beginning: it has no checkpoint yet.")
            return True
        return False

    def _write_down(self, error: Diverged) -> None:
        """The rows of the step that was not finite, for a person to look at."""
        rows = getattr(error, "rows", [])
        split = self.job.prepared.examples.splits["train"]
        self.folder.write_json(
            "divergence.json",
            {"step": getattr(error, "step", -1) + 1, "rows": [split[int(row)] for row in rows]},
        )
        state = self.job.state
        self._append(End(step=state.step, reason="diverged", best_step=state.best_step, best_score=state.best_score))


def now() -> str:
    """The time of day, for people; nothing is ordered by it."""
    return datetime.now(UTC).isoformat(timespec="seconds")
