"""One call of `Trainer.train`: the engine's loop, with the stock events at their places.

The loop asks its plan after every step what is due; the answers are the callbacks'. So `log` below, which the loop
asks first, is where a step ends, and `rate`, which it asks last before a step, is where one begins.
"""

from __future__ import annotations

import dataclasses
import math
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers.trainer_callback import TrainerState

from whet.data.tokens.table import Tokens
from whet.engine.logits import compute_logits
from whet.engine.losses import Loss
from whet.errors import Diverged, Interrupted, UsageError, nearest
from whet.metrics.scores import MAIN_METRIC, higher_is_better
from whet.records import End, Evaluation, Finding, Record, Save, Step
from whet.trainer import refusals
from whet.trainer.callbacks import SILENT, agree, overrides
from whet.trainer.checkpoints import TrainerCheckpoints
from whet.trainer.notices import notice
from whet.trainer.outputs import TrainOutput, speed
from whet.trainer.recording import describe, evaluation_record, open_folder, start_record
from whet.trainer.saving import Sums, restore, save
from whet.trainer.schedule import Schedule
from whet.trainer.setup import lay_out
from whet.training.checkpoints import load
from whet.training.evaluation import logits_together, probe_rows
from whet.training.loop import train
from whet.training.plan import Plan, SavePoint, State, Tick
from whet.utils.signals import Interrupts
from whet.utils.text import neutral_lines

if TYPE_CHECKING:
    from whet.trainer.trainer import Trainer

RECORDS_A_RUN = 100
PROBE_ROWS = 500


class TrainingInterrupted(Interrupted, KeyboardInterrupt):
    """Ctrl-C or SIGTERM, after a checkpoint was saved; also what code that waits for a KeyboardInterrupt catches."""


class Training:
    """Everything that lives from the first step to the last."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.args, self.ranks = trainer, trainer.args, trainer.ranks
        refusals.early_stopping(self.args, trainer.callback_handler.callbacks)
        self.ranks.require_same("The rows of train_dataset", trainer.fingerprint(trainer.train_dataset))
        trainer.share_weights()
        self.setup = lay_out(trainer)
        self.order = self.setup.feed.order
        self.state, self.sums = State(), Sums()
        asked = self.args.max_steps if self.args.max_steps > 0 else None
        self.total = asked or max(1, math.ceil(self.args.num_train_epochs * self.order.steps_per_epoch))
        self.plan = self._plan()
        self.hooks: list[Any] = []
        self.stepper, self.schedule = self._optimizer()
        self.interrupts = Interrupts()
        self.begun = self.evaluated_rows = -1
        self.epoch_open = False
        self.files: dict[str, bytes] | None = None

    def _plan(self) -> Plan:
        args, task = self.args, self.setup.task
        metric = (args.metric_for_best_model or (MAIN_METRIC[task.kind] if task else "loss")).removeprefix("eval_")
        better = args.greater_is_better
        return Plan(
            total_steps=self.total,
            log=self._step_ended,
            evaluate=lambda step: args.eval_on_start if step == 0 else self.trainer.control.should_evaluate,
            save=lambda step: self.trainer.control.should_save,
            higher_is_better=higher_is_better(metric) if better is None else better,
            metric=metric,
            save_best=args.load_best_model_at_end,
        )

    def _optimizer(self) -> tuple[Any, Schedule]:
        trainer = self.trainer
        if not trainer._given_scheduler:
            trainer.lr_scheduler = None
        if trainer.default_optimizer:
            # Where the engine needs none, the one made below only carries the rate, for the schedule and callbacks.
            trainer.optimizer = getattr(self.setup.chosen, "optimizer", None)
        elif trainer.overrides("create_optimizer_and_scheduler"):
            trainer.create_optimizer_and_scheduler(self.total)
        trainer.create_optimizer()
        stepper = self.setup.make_stepper()
        trainer.create_scheduler(self.total, trainer.optimizer)
        self._tell_of_optimizer_steps()
        for name in ("model", "optimizer", "lr_scheduler"):
            setattr(trainer.callback_handler, name, getattr(trainer, name))
        return stepper, Schedule(trainer.lr_scheduler, trainer.optimizer, self.total)

    def _tell_of_optimizer_steps(self) -> None:
        """Gradients can be looked at before the optimizer's step and after it; only where a callback does so."""
        trainer, handler = self.trainer, self.trainer.callback_handler

        def fire(event: str) -> Any:
            def hook(*_: Any) -> None:
                trainer.control = getattr(handler, event)(self.args, trainer.state, trainer.control)

            return hook

        if overrides(handler.callbacks, "on_pre_optimizer_step", "on_optimizer_step"):
            self.hooks = [
                trainer.optimizer.register_step_pre_hook(fire("on_pre_optimizer_step")),
                trainer.optimizer.register_step_post_hook(fire("on_optimizer_step")),
            ]

    # The whole ---------------------------------------------------------------------------------------

    def run(self, resume: str | bool | None) -> TrainOutput:
        """From the beginning or a checkpoint to the end."""
        args, ranks = self.args, self.ranks
        name = str(getattr(getattr(self.trainer.model, "config", None), "_name_or_path", "") or "")
        own = Path(args.output_dir or "").resolve()
        within = resume is True or (resume is not None and Path(str(resume)).resolve().parent == own)
        with ExitStack() as held:
            opened = None
            with ranks.together():
                if ranks.is_main:
                    opened = open_folder(args, name, resuming=bool(within))
                    held.enter_context(opened[0].locked())
            self.folder, mark = ranks.from_main(opened)
            self.checkpoints = TrainerCheckpoints(Path(args.output_dir or ""), run=mark, limit=args.save_total_limit)
            try:
                with self.interrupts, ranks.ending_together():
                    return self._run(resume, fresh=not within)
            except Interrupted as error:
                hint = "Go on with trainer.train(resume_from_checkpoint=True)."
                raise TrainingInterrupted(error.message, hint) from None

    def _run(self, resume: str | bool | None, *, fresh: bool) -> TrainOutput:
        trainer = self.trainer
        self._begin(resume, fresh=fresh)
        started, first = time.monotonic(), self.state.step
        trainer.control = trainer.callback_handler.on_train_begin(self.args, trainer.state, trainer.control)
        try:
            end = self._loop()
        except Interrupted:
            save(self, "interrupted")
            raise
        except Diverged as error:
            self.append(End(step=self.state.step, reason="diverged", best_step=self.state.best_step))
            error.hint = "Try a tenth of the learning_rate, warmup_steps=0.1 and max_grad_norm=1.0."
            raise
        finally:
            self.checkpoints.wait()
            for hook in self.hooks:
                hook.remove()
        return self._finish(end, started, self.state.step - first)

    def _begin(self, resume: str | bool | None, *, fresh: bool) -> None:
        trainer, args, setup = self.trainer, self.args, self.setup
        rows = {"train": self.order.rows}
        tokens = trainer.evaluation_tokens()
        if args.eval_strategy != "no" and tokens:
            rows["validation"] = len(tokens[0])
        fingerprint = setup.tokens.fingerprint if setup.tokens else ""
        self.fingerprint = fingerprint
        trainer.state = self._trainer_state()
        checkpoint = restore(self, resume) if resume else None
        if self.ranks.is_main:
            world = self.ranks.world
            describe(self.folder, trainer.hardware, setup.network, setup.task, rows, fingerprint, world)
        if fresh and setup.task is not None:
            labels = {"train": setup.tokens.labels if setup.tokens else None}
            labels["validation"] = tokens[0].labels if "validation" in rows else None
            self.append(
                start_record(self.plan, self.order.steps_per_epoch, setup.task, labels, rows, self._evaluations())
            )
        if checkpoint is not None:
            self.append(checkpoint)
            self.append(Save(step=checkpoint.step, path=checkpoint.path, reason="schedule"))

    def _trainer_state(self) -> TrainerState:
        state = TrainerState(train_batch_size=self.args.per_device_train_batch_size, **self.trainer.zero_flags())
        state.compute_steps(self.args, self.total)
        state.max_steps = self.total
        state.num_train_epochs = math.ceil(self.total / self.order.steps_per_epoch)
        return state

    def _evaluations(self) -> int:
        """How many evaluations are planned, as far as the strategy says."""
        state, last = self.trainer.state, self.total
        if self.args.eval_strategy == "epoch":
            return math.ceil(last / self.order.steps_per_epoch)
        return math.ceil(last / state.eval_steps) if self.args.eval_strategy == "steps" else 0

    def _loop(self) -> End:
        feed, ranks = self.setup.feed, self.ranks
        places = {"rank": ranks.rank, "world": ranks.world}
        for event in train(self.state, self.plan, feed, self.stepper, self._rate, self._measure, **places):
            if isinstance(event, End):
                return event
            if isinstance(event, Record):
                self.append(event)
            if isinstance(event, Step):
                self._logged(event)
            elif isinstance(event, Evaluation):
                self._judged(event)
            elif isinstance(event, SavePoint):
                self._save_if_wanted(event)
            self.checkpoints.poll()
            if isinstance(event, Finding):
                self._say(event.sentence)
            elif isinstance(event, Tick) or ranks.world == 1:
                # A finding comes in the middle of a step, where there is nothing whole to save.
                self.interrupts.check_together(ranks.any)
        raise AssertionError("the loop ends with an End record")

    # What the loop asks ------------------------------------------------------------------------------

    def _rate(self, step: int) -> float:
        """The learning rate of a step; asked for the first time, the step begins."""
        trainer, handler = self.trainer, self.trainer.callback_handler
        if step > self.begun:
            self.begun = step
            if not self.epoch_open:
                self.epoch_open = True
                trainer.control = handler.on_epoch_begin(self.args, trainer.state, trainer.control)
            trainer.control = handler.on_step_begin(self.args, trainer.state, trainer.control)
        return self.schedule.rate(step)

    def _step_ended(self, step: int) -> bool:
        """The schedule's step and the stock events; whether to read the loss now."""
        trainer, handler = self.trainer, self.trainer.callback_handler
        self.schedule.step()
        trainer.state.global_step, trainer.state.epoch = step, self._epoch(step)
        trainer.control = handler.on_step_end(self.args, trainer.state, trainer.control)
        if step % self.order.steps_per_epoch == 0 or trainer.control.should_training_stop:
            self._end_epoch()
        if self.setup.tokens is None:  # running statistics of a model of one's own: the main process's hold
            self.ranks.take_from_main(trainer.model.buffers())
        self._stop_if_asked(step)
        every = max(1, self.total // RECORDS_A_RUN)
        return trainer.control.should_log or step % every == 0 or step >= self.plan.total_steps

    def _measure(self, state: State) -> Evaluation:
        """An evaluation through the Trainer's own method, which a subclass may have overridden."""
        trainer = self.trainer
        trainer.last_prediction = None
        metrics = trainer.evaluate()
        found = trainer.last_prediction
        own = evaluation_record(
            state.step, trainer.state.epoch or 0.0, self.setup.task, found, metrics, self._probe_loss()
        )
        wanted = self.plan.metric
        if self.args.metric_for_best_model and wanted != "loss" and wanted not in own.metrics:
            raise UsageError(
                f"metric_for_best_model is {self.args.metric_for_best_model!r}, and the evaluation has no such metric.",
                nearest(wanted, [*own.metrics, "loss"]),
            )
        # What decides about the best step must be one number, also where a subclass measures more than rows.
        record: Evaluation = self.ranks.from_main(own)
        self.schedule.after_evaluation(record.metrics.get(wanted, record.loss))
        self._stop_if_asked(state.step)
        return record

    def _probe_loss(self) -> float | None:
        """The loss on a fixed sample of training rows, in evaluation mode: comparable with the evaluation's."""
        setup = self.setup
        if setup.tokens is None or setup.task is None:
            return None
        rows = probe_rows(len(setup.tokens), PROBE_ROWS, self.args.seed)
        compute = partial(
            compute_logits,
            setup.network,
            setup.tokens,
            self.trainer.hardware,
            batch_rows=self.args.per_device_eval_batch_size,
            between=self.interrupts.check,
        )
        logits = logits_together(self.ranks, setup.tokens, rows, lambda own: compute(rows=own))
        assert setup.tokens.labels is not None
        return Loss(setup.task).mean(logits, setup.tokens.labels[rows])

    def _stop_if_asked(self, step: int) -> None:
        control = self.trainer.control
        agree(control, self.ranks)
        if control.should_training_stop:
            self.plan.total_steps = min(self.plan.total_steps, step)
        if control.should_epoch_stop:
            control.should_epoch_stop = False
            notice("A callback asked to stop the epoch; whet goes on, because its order of rows is fixed by the seed.")

    def _end_epoch(self) -> None:
        trainer = self.trainer
        if self.epoch_open:
            self.epoch_open = False
            trainer.control = trainer.callback_handler.on_epoch_end(self.args, trainer.state, trainer.control)

    def _epoch(self, step: int) -> float:
        """Epochs done, counted in batches as the stock Trainer counts them."""
        args, order = self.args, self.order
        micro = order.rows / args.rows_together
        batches = max(1, math.floor(micro) if args.dataloader_drop_last else math.ceil(micro))
        epoch, index = divmod(step - 1, order.steps_per_epoch)
        return epoch + min((index + 1) * args.gradient_accumulation_steps, batches) / batches

    # What the loop says ------------------------------------------------------------------------------

    def _logged(self, record: Step) -> None:
        self.sums.add(record.loss, record.step - self.sums.steps)
        if not self.trainer.control.should_log:
            return
        logs = {"loss": self.sums.since_log / self.sums.steps_since_log, "grad_norm": record.grad_norm}
        self.trainer.log({**logs, "learning_rate": record.learning_rate})
        self.sums.since_log, self.sums.steps_since_log = 0.0, 0
        agree(self.trainer.control, self.ranks)

    def _judged(self, record: Evaluation) -> None:
        state = self.trainer.state
        if self.args.metric_for_best_model is not None and record.best:
            state.best_metric, state.best_global_step = self.state.best_score, record.step
        if self.args.save_strategy == "best":
            self.trainer.control.should_save = record.best

    def _save_if_wanted(self, event: SavePoint) -> None:
        best = event.step == self.trainer.state.best_global_step and self.args.load_best_model_at_end
        if not (self.trainer.control.should_save or best):
            return
        save(self, "best" if best else "schedule")
        trainer, handler = self.trainer, self.trainer.callback_handler
        if self.ranks.any(overrides(handler.callbacks, "on_save")):
            self.checkpoints.wait()  # what looks at the folder must find it
            self.ranks.wait_for_all()
        trainer.control = handler.on_save(self.args, trainer.state, trainer.control)
        agree(trainer.control, self.ranks)

    # After the last step -----------------------------------------------------------------------------

    def _finish(self, end: End, started: float, steps: int) -> TrainOutput:
        trainer, args = self.trainer, self.args
        self._end_epoch()
        window = self.stepper.window
        if window.steps:
            self.sums.add(float(window.loss) / window.steps, window.steps)
        loss = self.sums.total / max(1, self.sums.steps)
        rows = steps * args.rows_together * args.gradient_accumulation_steps
        # All wait here for the main one, whose last checkpoint may be the best.
        metrics = self.ranks.from_main({**speed("train", started, rows, steps), "train_loss": loss})
        self.write_back()
        trainer.log(metrics)
        best = trainer.state.best_model_checkpoint
        if args.load_best_model_at_end and best is not None:
            self.setup.network.load_weights(load(Path(best), weights_only=True).tensors["model"])
            if args.save_total_limit == 1 and self.ranks.is_main:
                self.checkpoints.keep_only(int(trainer.state.best_global_step))
        trainer.control = trainer.callback_handler.on_train_end(args, trainer.state, trainer.control)
        reason = "patience" if self.state.step < self.total and self._out_of_patience() else "finished"
        self.append(dataclasses.replace(end, reason=reason))
        return TrainOutput(trainer.state.global_step, loss, metrics)

    def _out_of_patience(self) -> bool:
        callbacks = self.trainer.callback_handler.callbacks
        return any(
            getattr(each, "early_stopping_patience_counter", 0) >= getattr(each, "early_stopping_patience", math.inf)
            for each in callbacks
        )

    def append(self, record: Record) -> None:
        """One process writes."""
        if self.ranks.is_main:
            self.folder.append(record)

    def _say(self, line: str) -> None:
        if self.args.log_level not in SILENT and self.ranks.is_main:
            print(neutral_lines(line), flush=True)

    # What the Trainer asks ---------------------------------------------------------------------------

    def check_interrupts(self) -> None:
        self.interrupts.check()

    def knows(self, tokens: Tokens) -> bool:
        """Whether the network in training can take these tokens: the fused one keeps only rows it was told of."""
        flat = getattr(self.setup.network, "flat", None)
        if self.setup.tokens is None:
            return False
        return flat is None or bool((flat.new_id[tokens.ids] >= 0).all())

    def write_back(self) -> None:
        """The module itself gets the current weights, for whoever looks at it."""
        self.setup.network.hand_back()
