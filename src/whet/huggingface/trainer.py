"""`Trainer`: the library's own, with whet's engine for its steps where that changes nothing else."""

from __future__ import annotations

import inspect
import os
from contextlib import nullcontext
from functools import wraps
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.utils import logging

from whet.data.tokens.from_dataset import Unrepresentable
from whet.data.tokens.table import Tokens
from whet.distributed.group import DistributedContext
from whet.distributed.rendezvous import join_processes
from whet.engine.notices import notice
from whet.errors import Interrupted
from whet.huggingface.checkpoints import Notes, newest_whole, read_notes, written_whole
from whet.huggingface.fast_epoch import NOWHERE, Fast, FastEpoch
from whet.huggingface.fast_evaluation import evaluate
from whet.huggingface.fast_path import (
    table_of,
    unknown_version,
    why_stock,
    why_stock_evaluation,
)
from whet.huggingface.run_folder import RunFolderCallback
from whet.huggingface.training_arguments import TrainingArguments
from whet.integrations.trackers import wandb_mode
from whet.records import Finding
from whet.utils.signals import Interrupts

# The library's logger name, so that its verbosity applies to this line too.
logger = logging.get_logger("transformers.trainer")


ADDED = {
    "compute_loss": (3, "num_items_in_batch"),
    "training_step": (2, "num_items_in_batch"),
    "log": (1, "start_time"),
    "_get_train_sampler": (0, "train_dataset"),
}
"""Methods that got an argument with transformers 5, after so many others."""


class TrainingInterrupted(Interrupted, KeyboardInterrupt):
    """Raised on Ctrl-C or SIGTERM after a checkpoint was saved; also a KeyboardInterrupt."""


class Trainer(transformers.Trainer):  # type: ignore[misc]
    """`transformers.Trainer`, faster where nothing else changes: `trainer.path` tells which path trains, and why."""

    def __init__(self, model: Any = None, args: Any = None, *others: Any, tokenizer: Any = None, **named: Any) -> None:
        self._fast: Fast | None = None
        self._paths: list[str] = []
        self._tables: dict[Any, Any] = {}
        self._last_logits: tuple[Any, Any] | None = None
        self._trial: Any = None
        self._resumed_from: str | None = None
        self._epoch_generator: torch.Tensor | None = None
        self._generator_of_nowhere = torch.get_rng_state()
        self._interrupts, self._told = Interrupts(), False
        self.ranks = DistributedContext()
        if tokenizer is not None:
            notice("Trainer: tokenizer is now processing_class.")
            named.setdefault("processing_class", tokenizer)
        if args is None:
            args = TrainingArguments("tmp_trainer")
        if "wandb" in args.report_to:
            os.environ.setdefault("WANDB_MODE", wandb_mode())  # without a key, the library's callback would ask for one
        super().__init__(model, args, *others, **named)
        if self._drops_items:
            self.model_accepts_loss_kwargs = False  # its loss is the mean of a micro-batch
        if args.world_size > 1:
            self.ranks = join_processes("cpu" if args.device.type == "cpu" else "auto")
        _name_labels(self.model, self.train_dataset)
        self._recorder = RunFolderCallback(self)
        if getattr(args, "record_run", True):
            self.add_callback(self._recorder)

    _drops_items = False

    def __init_subclass__(cls, **others: Any) -> None:
        """Accept methods in the signatures of transformers 4."""
        super().__init_subclass__(**others)
        for name, (kept, added) in ADDED.items():
            own = vars(cls).get(name)
            if not inspect.isfunction(own):
                continue
            if old := _is_old(name, own):
                notice(f"{cls.__name__}.{name} does not take {added}; it is called without it.")
                setattr(cls, name, _without(own, kept, added))
            if name == "compute_loss":
                cls._drops_items = old

    @property
    def path(self) -> str:
        """The path of the steps with its reason: `fused from step 0`, `stock (compute_loss is overridden) from step
        0`."""
        return ", then ".join(self._paths)

    def __getattr__(self, name: str) -> Any:
        """Give the old name of `processing_class`, unless a subclass has an attribute of that name."""
        if name != "tokenizer":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        notice("Trainer.tokenizer is now Trainer.processing_class.")
        return self.processing_class

    # Training ----------------------------------------------------------------------------------------

    def train(self, resume_from_checkpoint: Any = None, trial: Any = None, ignore_keys_for_eval: Any = None) -> Any:
        """Train like the library; `resume_from_checkpoint=True` uses the newest complete checkpoint."""
        if resume_from_checkpoint is True:
            newest = newest_whole(self.args.output_dir) if self.ranks.is_main else None
            resume_from_checkpoint = self.ranks.broadcast_object(str(newest) if newest else True)
        self._trial, self._paths = trial, []
        asked = resume_from_checkpoint
        self._resumed_from = str(asked) if isinstance(asked, str | Path) else None
        self._interrupts = Interrupts()
        error: BaseException | None = None
        try:
            with self._interrupts, self.ranks.publish_error(), self._answered():
                return super().train(resume_from_checkpoint, trial, ignore_keys_for_eval)
        except Interrupted as told:
            hint = "Go on with trainer.train(resume_from_checkpoint=True)."
            error = TrainingInterrupted(told.message, hint)
            raise error from None
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._recorder.ended_by(error)

    def _answered(self) -> Any:
        """With several processes: replace a connection error by the error of the rank that left."""
        return self.ranks.translate_connection_errors(computing=True) if self.ranks.world > 1 else nullcontext()

    def call_model_init(self, trial: Any = None) -> Any:
        model = super().call_model_init(trial)
        _name_labels(model, getattr(self, "train_dataset", None))
        return model

    # `find_executable_batch_size` gives `batch_size` by name.
    def _inner_training_loop(self, batch_size: Any = None, *given: Any, **named: Any) -> Any:
        try:
            return super()._inner_training_loop(batch_size, *given, **named)
        finally:  # the model holds its current weights, also after an error
            self._leave_fast_path(quietly=True)

    def _run_epoch(self, **given: Any) -> None:
        loader = given["train_dataloader"]
        # After on_train_begin and on_epoch_begin, in which callbacks may change the model.
        changed = self._fast.changed(looked_at=True) if self._fast is not None else ""
        why = self._agreed(why_stock(self, loader) or changed)
        if why:
            self._leave_fast_path()
            self._took("stock", why)
            return super()._run_epoch(**given)  # type: ignore[no-any-return]
        if self._fast is None:
            self.ranks.require_same("The rows of train_dataset", table_of(self, loader.dataset).tokens.fingerprint)
            self._fast = Fast(self, loader)
            self._took(self._fast.network.path, self._fast.network.why)
            self._restore_window(given)
        epoch = FastEpoch(self, self._fast, given)
        if why := epoch.run():
            self._leave_fast_path()
            self._took("stock", why)
            before, self.args.ignore_data_skip = self.args.ignore_data_skip, False
            try:
                super()._run_epoch(**epoch.rest())
            finally:
                self.args.ignore_data_skip = before
        return None

    def _load_rng_state(self, checkpoint: Any) -> None:
        if checkpoint == NOWHERE:
            torch.set_rng_state(self._generator_of_nowhere)
        else:
            super()._load_rng_state(checkpoint)

    def _restore_window(self, given: dict[str, Any]) -> None:
        """Restore the losses since the last log from a checkpoint of the fast path, so that the next log is
        unchanged."""
        resumed = given["resume_from_checkpoint"]
        notes = read_notes(resumed) if resumed is not None and given["epoch"] == given["epochs_trained"] else None
        if notes is not None and self._fast is not None:
            self._fast.stepper.window.loss.fill_(notes.loss)
            self._globalstep_last_logged = notes.logged
            self._total_loss_scalar -= notes.loss  # train_loss is the mean over the steps of this call

    def _agreed(self, why: str) -> str:
        """Return the same answer on all ranks: gradients are summed step by step."""
        return next(filter(None, self.ranks.gather(why)), "")

    def _took(self, path: str, why: str) -> None:
        named = f"{path} ({why})" if why else path
        if not self._paths or not self._paths[-1].startswith(f"{named} from"):
            self._paths.append(f"{named} from step {self.state.global_step}")
            logger.info(f"  Path = {named}")
            if why and why == unknown_version():
                notice(f"{why}: it trains with the library's own loop.")
            self._recorder.note_path(path, why)

    def _leave_fast_path(self, *, quietly: bool = False) -> None:
        """Leave everything as the library's loop would."""
        fast, self._fast = self._fast, None
        if fast is not None:
            fast.drain(self._tr_loss)
            fast.leave()

    def _finalize_training(self, trial: Any, num_train_samples: Any, start_time: float) -> Any:
        if self._fast is not None:
            self._fast.require_finite()
        self._leave_fast_path()
        return super()._finalize_training(trial, num_train_samples, start_time)

    def _on_finding(self, finding: Finding) -> None:
        notice(finding.sentence)
        self._recorder.note_finding(finding)

    def _maybe_log_save_evaluate(self, *given: Any, **named: Any) -> None:
        """After Ctrl-C or SIGTERM, save at the end of the step and stop once the checkpoint is complete."""
        self._told = self.ranks.any_rank(bool(self._interrupts.pending))
        if self._told:
            self.control.should_save = True
        super()._maybe_log_save_evaluate(*given, **named)
        if self._told:
            reason = self._interrupts.pending or "another process of this run was told to stop"
            raise Interrupted(f"Interrupted: {reason}.")

    # Saving and evaluation ---------------------------------------------------------------------------

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        notes = None
        if self._fast is not None:
            self._fast.write_state()
            if self._epoch_generator is not None:
                loss = float(self._fast.stepper.window.loss)
                notes = Notes(self._epoch_generator, loss, self._globalstep_last_logged)
        folder = Path(self._get_output_dir(trial)) / f"checkpoint-{self.state.global_step}"
        with written_whole(folder, notes, self.accelerator.wait_for_everyone, main=self.args.should_save):
            super()._save_checkpoint(model, trial)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        if self._fast is not None:
            self._fast.write_weights()
        super().save_model(output_dir, _internal_call)

    def _get_eval_sampler(self, eval_dataset: Any) -> Any:
        """Keep input order, also if training rows are grouped by length."""
        grouped = str(getattr(self.args.train_sampling_strategy, "value", self.args.train_sampling_strategy))
        if grouped == "group_by_length" and self.args.world_size <= 1 and hasattr(eval_dataset, "__len__"):
            return torch.utils.data.SequentialSampler(eval_dataset)
        return super()._get_eval_sampler(eval_dataset)

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: Any = None,
        metric_key_prefix: str = "eval",
    ) -> Any:
        """Evaluate with the engine if it computes the same; otherwise with the library's own loop."""
        if prediction_loss_only is None:
            prediction_loss_only = self.args.prediction_loss_only
        why = why_stock_evaluation(self, dataloader, ignore_keys)
        if not why and self._fast is not None and not self._fast.knows(table_of(self, dataloader.dataset).tokens):
            why = "the rows have tokens that the network in training does not hold"
        if not why:
            return evaluate(self, dataloader, prediction_loss_only, metric_key_prefix)
        if self._fast is not None:
            self._fast.write_weights()
        found = super().evaluation_loop(dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix)
        self._last_logits = (found.predictions, found.label_ids)
        return found

    # Data --------------------------------------------------------------------------------------------

    def _tokens_of(self, dataset: Any) -> Tokens | None:
        """Return the rows as the engine's tokens, if possible."""
        import datasets

        try:
            if type(dataset) is datasets.Dataset:
                dataset = self._remove_unused_columns(dataset)
            elif type(dataset) is not list or not dataset or not isinstance(dataset[0], dict):
                return None
            return table_of(self, dataset).tokens if len(dataset) else None
        except (Unrepresentable, ValueError):
            return None

    def _evaluation_sets(self) -> list[Any]:
        several = self.eval_dataset if isinstance(self.eval_dataset, dict) else {"": self.eval_dataset}
        return [each for each in several.values() if each is not None]

    def _evaluation_tokens(self) -> list[Tokens]:
        """Return rows that the network will evaluate during training, as far as its vocabulary allows."""
        found = [self._tokens_of(each) for each in self._evaluation_sets()]
        size = getattr(self.model.config, "vocab_size", 0)
        return [
            each
            for each in found
            if each is not None and len(each.ids) and 0 <= each.ids.min() <= each.ids.max() < size
        ]


def _is_old(name: str, method: Any) -> bool:
    """Return whether a user's method cannot be called as transformers 5 calls it."""
    signature = inspect.signature(method)
    try:
        if name == "compute_loss":
            signature.bind(*range(3), num_items_in_batch=0)
        else:
            signature.bind(*range(ADDED[name][0] + 2))
    except TypeError:
        return True
    return False


def _without(method: Any, kept: int, added: str) -> Any:
    @wraps(method)
    def called(self: Any, *given: Any, **named: Any) -> Any:
        named.pop(added, None)
        return method(self, *given[:kept], **named)

    return called


def _name_labels(model: Any, dataset: Any) -> None:
    """Replace LABEL_0, LABEL_1 … by the data set's label names, if it has them."""
    config = getattr(model, "config", None)
    for column in ("labels", "label"):
        names = getattr((getattr(dataset, "features", None) or {}).get(column), "names", None)
        generic = {f"LABEL_{index}" for index in range(len(names or ()))}
        if names and config is not None and set((getattr(config, "id2label", None) or {}).values()) == generic:
            config.id2label = dict(enumerate(names))
            config.label2id = {name: index for index, name in enumerate(names)}
