"""Runs an epoch with the engine in place of the library's step, and keeps the Trainer's state up to date."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from transformers import optimization

from whet.config import TrainConfig
from whet.data.tokens.batches import BatchOrder
from whet.data.tokens.table import Tokens
from whet.engine.dispatch import choose_path, used_ids
from whet.engine.fused.moments import Moments, moves_others, updates_of
from whet.engine.given import Watch
from whet.engine.network import TokenBatches
from whet.errors import Diverged
from whet.huggingface.checkpoints import read_notes
from whet.huggingface.fast_evaluation import draw_as_a_loader, hardware_of, loss_of, own_randomness
from whet.huggingface.fast_path import padded_width, plain_optimizer, table_of, users
from whet.task import PROBLEM_TYPES, notes_problem_type
from whet.training.loop import step_within_memory

NOWHERE = "/nonexistent/whet-hand-over"
"""A name without a checkpoint: with it, the library's own resume code continues in the middle of an epoch."""
STEP_EVENTS = ("on_step_begin", "on_step_end")
FLAGS = ("should_training_stop", "should_epoch_stop", "should_save", "should_evaluate", "should_log")
RARE_EVENTS = ("on_epoch_begin", "on_epoch_end", "on_log", "on_evaluate", "on_save", "on_predict")
LATER = tuple(
    kind for kind in (torch.optim.lr_scheduler.ReduceLROnPlateau, getattr(optimization, "GreedyLR", None)) if kind
)
"""Schedules that depend on evaluations instead of steps."""


class Fast:
    """Replaces the library's forward, backward, clipping and update."""

    def __init__(self, trainer: Any, loader: Any) -> None:
        self.trainer, self.model, args = trainer, trainer.model, trainer.args
        self.table = table_of(trainer, loader.dataset)
        tokens, config = self.table.tokens, trainer.model.config
        self.optimizer, self.hardware = plain_optimizer(trainer), hardware_of(trainer)
        self.loss = loss_of(trainer, tokens)
        if config.problem_type is None and trainer.label_smoother is None and notes_problem_type(config):
            config.problem_type = PROBLEM_TYPES[self.loss.task.kind]  # the model's own forward notes it too
        callbacks = trainer.callback_handler.callbacks
        self.observed, self.told = users(callbacks, *STEP_EVENTS), users(callbacks, *RARE_EVENTS)
        group = max(self.optimizer.param_groups, key=lambda each: each["weight_decay"])
        size, word = trainer._train_batch_size, self.model.get_input_embeddings().weight
        settings = TrainConfig(
            batch_size=size,
            weight_decay=group["weight_decay"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            epsilon=group["eps"],
            clip=max(0.0, args.max_grad_norm or 0.0),
            seed=args.seed,
        )
        seen = [tokens, *trainer._evaluation_tokens()]
        # Only a GPU needs the order, for the number of tokens in a random batch.
        kind = "random" if args.train_sampling_strategy == "random" else "sequential"
        order = BatchOrder(len(tokens), size * args.world_size, args.seed, kind)  # type: ignore[arg-type]
        self.network, self.stepper = choose_path(
            self.model,
            self.loss,
            settings,
            self.hardware,
            seen,
            trainer.ranks,
            order if self.hardware.device.type == "cuda" else None,
            optimizer=self.optimizer,
            every_word=self.observed or moves_others(self.optimizer, word, lambda: used_ids(seen, len(word))),
        )
        self.flat: Any = getattr(self.network, "flat", None)
        self.feed = TokenBatches(tokens, order, self.network, self.loss)
        self.size = self.model.num_parameters(exclude_embeddings=True)
        self.watch = Watch(self.model, self.optimizer)
        self.updates = updates_of(self.optimizer)
        self.offset = trainer.state.global_step - self.updates
        self.moments: Moments | None = None
        if self.flat is not None:
            self.moments = Moments(self.flat, self.optimizer)
            self.moments.read()
            self.network.words_seen = self.flat.words_with_moments()  # type: ignore[attr-defined]

    # Exchange with the library ---------------------------------------------------------------------------

    def write_weights(self) -> None:
        """Write the current weights to the module, and read weights that a callback has changed."""
        self.take_back()
        self.network.sync_to_module()

    def lend(self) -> None:
        """Give callbacks the module and the optimizer's state; they may change the weights until the next step."""
        self.write_weights()
        if self.moments is not None:
            self.moments.advance(self.updates)
        self._lent = True

    def take_back(self) -> None:
        """Read the weights from the module if callbacks have it; they keep it until the next step."""
        if self._lent and self.flat is not None:
            self.flat.load_from_module()

    _lent = False

    def write_state(self) -> None:
        """Give torch's optimizer the state that it would have; moments stay views of the engine's."""
        self.write_weights()
        if self.moments is not None:
            self.moments.write(self.updates)

    def leave(self) -> None:
        """Leave everything as the library's loop would; every tensor owns its memory again."""
        self.write_state()
        if hasattr(self.stepper, "forget"):
            self.stepper.forget()  # the memory of its graphs
        if self.moments is not None:
            self.flat.release()
            self.moments.release()
        if hasattr(self.optimizer, "found_inf"):
            del self.optimizer.found_inf  # the engine's flag on the device, which torch's own step would read

    # A step ------------------------------------------------------------------------------------------

    def step(self, parts: list[Any], divisors: list[float], rate: float) -> None:
        """Take one update with the rows of all micro-batches."""
        self.take_back()
        self._lent = False
        self.stepper.groups = list(zip(parts, divisors, strict=True))
        rows = np.concatenate(parts)
        take = partial(self.stepper, self.updates, self.feed, rows, rows, rate)
        with own_randomness(self.hardware.device):
            for finding in step_within_memory(self.updates, self.stepper, take):
                self.trainer._on_finding(finding)
        self.updates += 1
        if self.hardware.device.type == "cpu":
            self.require_finite()  # free if there is no queue to wait for

    def require_finite(self) -> None:
        """Raise before weights that are not finite are logged, evaluated or saved."""
        if int(self.stepper.window.first_nonfinite_step) >= 0:
            step = int(self.stepper.window.first_nonfinite_step) + 1 + self.offset
            raise Diverged(
                f"The loss or its gradient stopped being finite at step {step}; the weights stay as before it.",
                "Try a tenth of the learning_rate, warmup_steps=0.1 and max_grad_norm=1.0.",
            )

    def drain(self, total: torch.Tensor) -> None:
        """Add the losses since the last log to the Trainer's own sum."""
        times = self.trainer.accelerator.gradient_accumulation_steps  # above 1 up to 5.5.3: backward divides by it
        total += (self.stepper.window.loss * times).to(total)
        self.stepper.window.clear()

    def divisors(self, parts: list[Any]) -> list[float]:
        """Return the library's divisors of each micro-batch's loss, which changed between versions."""
        trainer, world = self.trainer, self.trainer.args.world_size
        again = trainer.accelerator.gradient_accumulation_steps
        # Each process multiplies its loss by their number, and the mean of the gradients divides by it again.
        shared = world > 1 and trainer.args.average_tokens_across_devices and trainer.model_accepts_loss_kwargs
        processes = 1 if shared else world
        smoother = inspect.signature(type(trainer.label_smoother).__call__).parameters if trainer.label_smoother else ()
        if "num_items_in_batch" in smoother and trainer.model_accepts_loss_kwargs:  # since 5.15: by all labels
            rows = sum(map(len, parts)) * (world if trainer.args.average_tokens_across_devices else 1)
            return [float(rows * again * processes)] * len(parts)
        scaled = getattr(trainer, "loss_is_scaled_for_ga", None)  # since 5.14
        scaled = trainer.model_accepts_loss_kwargs if scaled is None else scaled
        return [float(len(rows) * (1 if scaled else len(parts)) * again * processes) for rows in parts]

    def changed(self, *, looked_at: bool) -> str:
        """Return what a callback or a schedule has changed that the engine does not support."""
        return self.watch.changed() or (self.watch.model_changed() if looked_at else "")

    def count(self, rows: Any) -> None:
        """Count the floating point operations and tokens of a micro-batch, padded as by the collator."""
        trainer = self.trainer
        tokens = len(rows) * padded_width(trainer.data_collator, self.table.widths[rows])
        trainer.current_flos += 6.0 * tokens * self.size
        counted = trainer.args.include_num_input_tokens_seen
        if counted != "no":
            found = tokens if counted == "all" else int(self.table.tokens.lengths[rows].sum())
            every = trainer.accelerator.gather(torch.tensor(found, device=trainer.args.device))
            trainer.state.num_input_tokens_seen += every.sum().item()

    def knows(self, tokens: Tokens) -> bool:
        """Return whether the network has embedding rows for all of these tokens."""
        return self.flat is None or bool((self.flat.new_id[tokens.ids] >= 0).all())


class FastEpoch:
    """One call of `_run_epoch`: the same rows, events, counters and logs, computed by the engine."""

    def __init__(self, trainer: Any, fast: Fast, given: dict[str, Any]) -> None:
        self.trainer, self.fast, self.given = trainer, fast, given
        self.epoch, self.in_epoch = given["epoch"], given["steps_in_epoch"]
        self.done = 0
        self.grad_norm: Any = None
        self.rate: Any = None
        self.looked_at = False
        """Whether a user's callback had access to the model since the last step."""

    def run(self) -> str:
        """Return an empty string at the end of the epoch, or why the library's loop must continue from batch `done`."""
        trainer, fast, args = self.trainer, self.fast, self.trainer.args
        batches = self._batches()
        while self.done < self.in_epoch:
            parts = [np.asarray(rows, np.int64) for rows in islice(batches, args.gradient_accumulation_steps)]
            if not parts:
                break
            trainer.current_gradient_accumulation_steps = len(parts)
            trainer.accelerator.gradient_state._set_sync_gradients(True)
            self._event("on_step_begin")
            for _ in parts[:-1]:
                self._event("on_substep_end")
            if self._stopped():  # the library also stops without an update
                break
            self._step(parts)
            if self._stopped():
                break
            if self.done < self.in_epoch and (reason := fast.changed(looked_at=self.looked_at)):
                return reason
        self._event("on_epoch_end")
        self._flow()
        return ""

    def _batches(self) -> Iterator[Any]:
        """Yield the rows of this epoch's batches from the library's own sampler, from the resumed position on."""
        trainer, given, loader = self.trainer, self.given, self.given["train_dataloader"]
        resumed = given["resume_from_checkpoint"] if self.epoch == given["epochs_trained"] else None
        skip = 0 if trainer.args.ignore_data_skip else given["steps_trained_in_current_epoch"]
        if resumed is not None and given["steps_trained_in_current_epoch"] == 0:
            trainer._load_rng_state(resumed)
        elif resumed is not None and skip and (notes := read_notes(resumed)) is not None:
            torch.set_rng_state(notes.generator)  # a sampler by length draws from torch's generator
        self.before = torch.get_rng_state()
        trainer._epoch_generator = self.before
        loader.set_epoch(self.epoch)
        inner: Any = getattr(loader.batch_sampler, "batch_sampler", None)
        if hasattr(inner, "set_epoch"):
            inner.set_epoch(self.epoch)
        draw_as_a_loader(loader)
        batches: Iterator[Any] = iter(loader.batch_sampler)
        if resumed is not None and skip:
            self.done = sum(1 for _ in islice(batches, skip))
            trainer._load_rng_state(resumed)
        return batches

    def _step(self, parts: list[Any]) -> None:
        trainer, fast = self.trainer, self.fast
        fast.step(parts, fast.divisors(parts), float(fast.optimizer.param_groups[0]["lr"]))
        trainer._took(fast.network.path, fast.network.why)  # a step may be the first that cannot be captured
        for rows in parts:
            fast.count(rows)
        self.grad_norm = fast.stepper.window.grad_norm
        self._event("on_pre_optimizer_step")
        self._event("on_optimizer_step")
        self.rate = trainer._get_learning_rate()
        if not isinstance(trainer.lr_scheduler, LATER):
            trainer.optimizer._opt_called = True  # otherwise torch warns that the schedule came first
            trainer.lr_scheduler.step()
        self.done += len(parts)
        trainer.state.global_step += 1
        trainer.state.epoch = self.epoch + self.done / self.in_epoch
        self._event("on_step_end")
        self._flow()

    def _event(self, name: str) -> None:
        trainer, fast = self.trainer, self.fast
        if (fast.observed and name in STEP_EVENTS) or (fast.told and name == "on_epoch_end"):
            fast.lend()
        trainer.control = getattr(trainer.callback_handler, name)(trainer.args, trainer.state, trainer.control)
        if name == "on_step_end" and trainer.ranks.world > 1:
            # All processes follow a callback's request on any of them; otherwise they would wait for each other.
            asked = trainer.ranks.any_rank_each([bool(getattr(trainer.control, flag)) for flag in FLAGS])
            for flag, value in zip(FLAGS, asked, strict=True):
                setattr(trainer.control, flag, value)

    def _flow(self) -> None:
        """Log, evaluate and save with the library's own method."""
        trainer, fast, given, control = self.trainer, self.fast, self.given, self.trainer.control
        due = control.should_log or control.should_evaluate or control.should_save
        self.looked_at = fast.observed or (bool(due) and fast.told)
        if due:
            fast.require_finite()
        if control.should_log:
            fast.drain(trainer._tr_loss)
        if due and fast.told:
            fast.lend()
        trainer._maybe_log_save_evaluate(
            trainer._tr_loss,
            self.grad_norm,
            given["model"],
            given["trial"],
            self.epoch,
            given["ignore_keys_for_eval"],
            given["start_time"],
            learning_rate=self.rate,
        )

    def _stopped(self) -> bool:
        return bool(self.trainer.control.should_epoch_stop or self.trainer.control.should_training_stop)

    def rest(self) -> dict[str, Any]:
        """Return the arguments with which the library's `_run_epoch` continues in the middle of this epoch.

        It draws the order of the epoch again, skips the finished batches, and then loads the random state of NOWHERE.
        """
        self.trainer._generator_of_nowhere = torch.get_rng_state()
        torch.set_rng_state(self.before)
        place = {"epochs_trained": self.epoch, "resume_from_checkpoint": NOWHERE}
        return {**self.given, **place, "steps_trained_in_current_epoch": self.done}
