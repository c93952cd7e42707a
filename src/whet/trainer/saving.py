"""What a Trainer's checkpoint holds, and how a training goes on from it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

from transformers.trainer_callback import TrainerState

from whet.distributed.group import checksum
from whet.errors import ArtifactError
from whet.records import Resume, Save, now
from whet.trainer.callbacks import exported
from whet.trainer.callbacks import restore as restore_callbacks
from whet.trainer.checkpoints import find, model_files
from whet.trainer.notices import notice
from whet.trainer.recording import changed_arguments
from whet.training.checkpoints import Checkpoint, load
from whet.training.loop import as_values, check_finite, restore_values

if TYPE_CHECKING:
    from whet.trainer.training import Training


@dataclasses.dataclass
class Sums:
    """Training losses that were read from the device."""

    total: float = 0.0
    since_log: float = 0.0
    steps_since_log: int = 0
    steps: int = 0

    def add(self, loss: float, steps: int) -> None:
        self.total += loss * steps
        self.since_log += loss * steps
        self.steps_since_log += steps
        self.steps += steps


def save(training: Training, reason: str) -> None:
    """Everything needed to go on, in the background, unless this step was saved already."""
    trainer, state, engine, ranks = training.trainer, training.trainer.state, training.state, training.ranks
    if engine.saved == engine.step:
        return
    check_finite(training.stepper, training.setup.feed)
    # A save that no schedule asked for must not stand in for the one that the schedule asks for here.
    engine.saved = -1 if reason == "interrupted" else engine.step
    best = -1 if state.best_global_step is None else int(state.best_global_step)
    if best == engine.step or (best >= 0 and training.checkpoints.folder(best).is_dir()):
        state.best_model_checkpoint = str(training.checkpoints.folder(best))
    # The main process writes: only it knows whether the best one's folder has its name yet.
    state.best_model_checkpoint = ranks.from_main(state.best_model_checkpoint)
    state.stateful_callbacks = exported(trainer.callback_handler.callbacks, trainer.control)
    tensors = training.stepper.tensors()
    if ranks.world > 1:
        ranks.require_same("The weights", checksum(list(tensors["model"].values())))
    if not ranks.is_main:
        return
    values = {
        **as_values(engine, training.stepper),
        "reason": reason,
        "run": training.checkpoints.run,
        "needs": best if training.args.load_best_model_at_end else -1,
        "trainer": dataclasses.asdict(state),
        "sums": dataclasses.asdict(training.sums),
        "schedule": training.schedule.state(),
        "fingerprint": training.fingerprint,
    }
    if training.args.save_only_model:
        tensors.pop("optimizer")
    if training.files is None:
        training.files = model_files(trainer.model, trainer.saved_tokenizer())
    files = {
        **training.files,
        "trainer_state.json": json.dumps(values["trainer"], indent=2, sort_keys=True).encode(),
        "training_args.json": training.args.to_json_string().encode(),
    }
    record = Save(step=engine.step, path=training.checkpoints.folder(engine.step).name, reason=reason)
    training.checkpoints.write_with(
        Checkpoint(engine.step, tensors, values),
        best,
        files,
        before=training.folder.sync_records,
        done=lambda: training.append(record),
    )


def restore(training: Training, asked: str | bool) -> Resume:
    """Weights, moments, schedule, counters and the callbacks' state as they were."""
    trainer = training.trainer
    checkpoint, folder, passed_over = _found(training, asked)
    values = dict(checkpoint.values)
    training.stepper.load(checkpoint.tensors)
    restore_values(values, training.state, training.stepper)
    training.sums = Sums(**values["sums"])
    training.schedule.load(values["schedule"], checkpoint.step)
    fresh, trainer.state = trainer.state, TrainerState(**values["trainer"])
    own = ("max_steps", "num_train_epochs", "logging_steps", "eval_steps", "save_steps", *trainer.zero_flags())
    for name in own:
        setattr(trainer.state, name, getattr(fresh, name))
    restore_callbacks(trainer.callback_handler.callbacks, trainer.control, trainer.state)
    trainer.control.should_training_stop = False
    training.checkpoints.own.add(checkpoint.step)
    if asked is True and training.ranks.is_main:
        training.checkpoints.set_aside_after(checkpoint.step)
    training.epoch_open = False
    training.begun = checkpoint.step - 1
    _say_what_changed(training, str(values["fingerprint"]))
    return Resume(step=checkpoint.step, path=folder.name, note="; ".join(passed_over), time=now())


def _found(training: Training, asked: str | bool) -> tuple[Checkpoint, Path, list[str]]:
    """The checkpoint to go on from: the main process chooses, and the others follow."""
    ranks, found = training.ranks, None
    with ranks.together():
        if ranks.is_main:
            found = find(asked, training.checkpoints)
            if "optimizer" not in found[0].tensors:
                raise ArtifactError(
                    f"{str(found[1])!r} was saved with save_only_model=True: it has no optimizer state."
                )
    folder: Path = ranks.from_main(found and found[1])
    return found or (load(folder), folder, [])


def _say_what_changed(training: Training, fingerprint: str) -> None:
    if not training.ranks.is_main:
        return
    changed = {name: f"{old} → {new}" for name, (old, new) in changed_arguments(training.folder, training.args).items()}
    if fingerprint != training.fingerprint:
        changed["train_dataset"] = "other rows"
    before, world = training.folder.environment.get("processes", training.ranks.world), training.ranks.world
    if before != world:
        changed["processes"] = f"{before} → {world}"
    if changed:
        listed = "; ".join(f"{name}: {change}" for name, change in changed.items())
        notice(f"Resuming with other settings than the run was begun with: {listed}.")
