"""`Trainer`: the stock constructor, methods and events over whet's engine."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers.trainer_callback import CallbackHandler, DefaultFlowCallback, TrainerControl, TrainerState

from whet.data.tokens.table import Tokens
from whet.distributed.rendezvous import join_processes
from whet.engine.network import Network
from whet.engine.optimizer import make_adamw, parameter_groups
from whet.errors import UsageError
from whet.models.pretrained import save_model
from whet.task import Task
from whet.trainer import refusals, results
from whet.trainer.callbacks import PrintLines
from whet.trainer.data import LABELS, Collator, as_tokens, keep_columns, require_rows, signature
from whet.trainer.making import (
    as_arguments,
    called,
    default_collator,
    first_model,
    label_names,
    logits_of,
    name_labels,
    place_model,
    seed_everything,
    tracker_callbacks,
)
from whet.trainer.notices import notice
from whet.trainer.outputs import EvalPrediction, PredictionOutput, TrainOutput, plain, speed
from whet.trainer.predictions import BatchPredictor, Predicted, predict_tokens
from whet.trainer.recording import own_scores
from whet.trainer.setup import has_own_collator, task_of, why_own_batches
from whet.utils.device import choose_hardware

if TYPE_CHECKING:
    from whet.trainer.training import Training


TABLES_KEPT = 8


class Trainer:
    """Trains a classifier on a tokenised data set; docs/trainer.md says where it differs from the stock one."""

    loss_is_scaled_for_ga: bool | None = None
    """A subclass whose compute_loss divides by num_items_in_batch itself says so with True."""

    def __init__(
        self,
        model: Any = None,
        args: Any = None,
        data_collator: Any = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        model_init: Callable[..., Any] | None = None,
        compute_loss_func: Callable[..., Any] | None = None,
        compute_metrics: Callable[[EvalPrediction], dict[str, Any]] | None = None,
        callbacks: Sequence[Any] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        optimizer_cls_and_kwargs: tuple[Any, dict[str, Any]] | None = None,
        preprocess_logits_for_metrics: Callable[[Any, Any], Any] | None = None,
        **others: Any,
    ) -> None:
        others = refusals.trainer_arguments(others, processing_class)
        refusals.overridden_methods(type(self), Trainer)
        self.args = as_arguments(args)
        self.model_init = model_init
        seed_everything(self.args.seed)
        self.model = first_model(model, model_init)
        device = "cpu" if self.args.use_cpu else "auto"
        self.ranks, self.hardware = join_processes(device), choose_hardware(device, self.args.precision)
        place_model(self)
        self.given_collator, self.processing_class = data_collator, others.get("tokenizer", processing_class)
        self.train_dataset, self.eval_dataset = train_dataset, eval_dataset
        self.compute_loss_func, self.compute_metrics = compute_loss_func, compute_metrics
        self.preprocess_logits_for_metrics = preprocess_logits_for_metrics
        self.optimizer, self.lr_scheduler = optimizers
        self.optimizer_cls_and_kwargs = optimizer_cls_and_kwargs
        self.default_optimizer = optimizers[0] is None and optimizer_cls_and_kwargs is None
        self.default_optimizer &= not self.overrides("create_optimizer", "create_optimizer_and_scheduler")
        self.label_names = self.args.label_names or label_names(self.model)
        self.data_collator = data_collator or default_collator(self.processing_class)
        self.is_in_train = False
        self._given_scheduler = optimizers[1] is not None
        self._tokens: dict[int, tuple[Any, Tokens | None, str]] = {}
        self._training: Training | None = None
        self.last_prediction: Predicted | None = None
        name_labels(self.model, train_dataset)
        refusals.settings(self.args, self)
        self.state, self.control = TrainerState(**self.zero_flags()), TrainerControl()
        known = [DefaultFlowCallback, *tracker_callbacks(self.args), *(callbacks or []), PrintLines]
        self.callback_handler = CallbackHandler(known, self.model, self.processing_class, None, None)
        self.control = self.callback_handler.on_init_end(self.args, self.state, self.control)

    # Training ---------------------------------------------------------------------------------------

    def train(self, resume_from_checkpoint: str | bool | None = None, **others: Any) -> TrainOutput:
        """Train; with `resume_from_checkpoint=True` or a folder go on to the bit from where it stands."""
        from whet.trainer.training import Training

        refusals.train_arguments(others)
        asked = resume_from_checkpoint if resume_from_checkpoint is not None else self.args.resume_from_checkpoint
        require_rows(self.train_dataset, "train_dataset", any_rows=has_own_collator(self))
        if self.model_init is not None:
            seed_everything(self.args.seed)
            self.model = called(self.model_init)
            place_model(self)
            self.optimizer = None if self.default_optimizer else self.optimizer
        self.is_in_train = True
        try:
            with self.ranks.leaving():
                self._training = Training(self)
                return self._training.run(asked or None)
        finally:
            self.is_in_train = False
            self._training = None

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """AdamW without decay on biases and norms; override it to use another."""
        if self.optimizer is None:
            model = self.model if model is None else model
            if self.optimizer_cls_and_kwargs is not None:
                kind, settings = self.optimizer_cls_and_kwargs
                self.optimizer = kind(parameter_groups(model, self.args.weight_decay), **settings)
            else:
                self.optimizer = make_adamw(model, self.args.to_config().train)
        return self.optimizer  # type: ignore[no-any-return]

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """The schedule that lr_scheduler_type names; override it to use another."""
        if self.lr_scheduler is None:
            from transformers import get_scheduler

            self.lr_scheduler = get_scheduler(
                self.args.lr_scheduler_type,
                optimizer=self.optimizer if optimizer is None else optimizer,
                num_warmup_steps=self.args.get_warmup_steps(num_training_steps),
                num_training_steps=num_training_steps,
                scheduler_specific_kwargs=self.args.lr_scheduler_kwargs,
            )
        return self.lr_scheduler

    def create_optimizer_and_scheduler(self, num_training_steps: int) -> None:
        self.create_optimizer()
        self.create_scheduler(num_training_steps)

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The model's own loss, a mean over the rows of `inputs`; override it for another."""
        smooth = self.args.label_smoothing_factor > 0 and self.compute_loss_func is None
        labels = inputs.pop("labels", None) if smooth or self.compute_loss_func is not None else None
        outputs = model(**inputs)
        if self.compute_loss_func is not None:
            loss = self.compute_loss_func(outputs, labels, num_items_in_batch=num_items_in_batch)
        elif labels is not None:
            loss = torch.nn.functional.cross_entropy(
                logits_of(outputs).flatten(0, -2), labels.flatten(), label_smoothing=self.args.label_smoothing_factor
            )
        else:
            loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs[0]
            if loss is None:
                found = ", ".join(map(repr, inputs))
                raise UsageError(f"The model gave no loss for {found}.", "Its inputs need 'labels'.")
        return (loss, outputs) if return_outputs else loss

    def call_compute_loss(self, model: Any, inputs: dict[str, Any], *, items: Any = None, outputs: bool = False) -> Any:
        """`compute_loss` of a subclass, also where it was written before num_items_in_batch existed."""
        taken = inspect.signature(self.compute_loss).parameters
        knows = "num_items_in_batch" in taken or any(each.kind is each.VAR_KEYWORD for each in taken.values())
        extra = {"num_items_in_batch": items} if knows else {}
        if outputs:
            return self.compute_loss(model, inputs, return_outputs=True, **extra)
        return self.compute_loss(model, inputs, **extra)

    def scales_its_loss(self) -> bool:
        """Whether the loss was divided by the labels of the whole step already."""
        if self.loss_is_scaled_for_ga is not None:
            return self.loss_is_scaled_for_ga
        return self.compute_loss_func is not None

    # Evaluation and prediction ----------------------------------------------------------------------

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Sequence[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Loss and metrics on `eval_dataset`, or on the one given to the constructor."""
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(dataset, str):
            dataset = self.eval_dataset[dataset]
        if isinstance(dataset, dict):
            found: dict[str, float] = {}
            for name, each in dataset.items():
                found |= self.evaluate(each, ignore_keys, f"{metric_key_prefix}_{name}")
            return found
        metrics = self._scored(dataset, ignore_keys, metric_key_prefix, "eval_dataset")[1]
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def predict(
        self, test_dataset: Any, ignore_keys: Sequence[str] | None = None, metric_key_prefix: str = "test"
    ) -> PredictionOutput:
        """Logits in input order, the labels if there are any, and the metrics."""
        found, metrics = self._scored(test_dataset, ignore_keys, metric_key_prefix, "test_dataset")
        self.control = self.callback_handler.on_predict(self.args, self.state, self.control, metrics)
        return PredictionOutput(found.logits, found.labels, metrics)

    def _scored(
        self, dataset: Any, ignore_keys: Sequence[str] | None, prefix: str, name: str
    ) -> tuple[Predicted, dict[str, float]]:
        with self.ranks.leaving():
            require_rows(dataset, name, any_rows=has_own_collator(self))
            return self._scored_together(dataset, ignore_keys or (), prefix, name)

    def _scored_together(
        self, dataset: Any, ignore_keys: Sequence[str], prefix: str, name: str
    ) -> tuple[Predicted, dict[str, float]]:
        started = time.monotonic()
        self.ranks.require_same(f"The rows of {name}", self.fingerprint(dataset))
        found = self._predicted(dataset, ignore_keys)
        if self.preprocess_logits_for_metrics is not None:
            found = results.preprocessed(found, self.preprocess_logits_for_metrics)
        metrics: dict[str, Any] = {}
        if self.compute_metrics is not None and found.labels is not None and not self.args.prediction_loss_only:
            metrics = plain(self.compute_metrics(EvalPrediction(found.logits, found.labels)))
        metrics = self._with_deciding_metric(metrics, found)
        named = {key if key.startswith(f"{prefix}_") else f"{prefix}_{key}": each for key, each in metrics.items()}
        loss = {} if found.loss is None else {f"{prefix}_loss": found.loss}
        self.last_prediction = found
        steps = -(-found.rows // (self.args.per_device_eval_batch_size * self.ranks.world))
        # One process's numbers for all: a metric that draws samples and a clock differ between them.
        return found, self.ranks.from_main({**loss, **named, **speed(prefix, started, found.rows, steps)})

    def _with_deciding_metric(self, metrics: dict[str, Any], found: Predicted) -> dict[str, Any]:
        """A metric of whet's own that decides the best model, where compute_metrics does not give it."""
        wanted = (self.args.metric_for_best_model or "loss").removeprefix("eval_")
        if wanted == "loss" or wanted in metrics or f"eval_{wanted}" in metrics:
            return metrics
        own = own_scores(found, task_of(getattr(self.model, "config", None), found.labels))
        return {**metrics, wanted: own[wanted]} if wanted in own else metrics

    def _predicted(self, dataset: Any, ignore_keys: Sequence[str]) -> Predicted:
        batch = self.args.per_device_eval_batch_size
        tokens, _ = self.tokens(dataset)
        task = None if tokens is None else self.task(tokens)
        if tokens is not None and task is not None:
            network = self._network(tokens)
            return predict_tokens(self.ranks, network, tokens, task, self.hardware, batch, self._between_batches)
        if self._training is not None:
            self._training.write_back()
        run = BatchPredictor(
            self.ranks,
            self.model,
            self.hardware,
            self.collator(),
            self.label_names,
            lambda model, inputs: self.call_compute_loss(model, inputs, outputs=True),
            ("past_key_values", *ignore_keys),
            self._between_batches,
        )
        return run(self.usable(dataset), batch)

    def _network(self, tokens: Tokens) -> Network:
        """The network in training, if it knows these tokens; else one made of the model as it is."""
        if self._training is not None:
            if self._training.knows(tokens):
                return self._training.setup.network
            self._training.write_back()
        return Network(self.model, self.hardware.device, packed=not self.args.gradient_checkpointing)

    def _between_batches(self) -> None:
        if self._training is not None:
            self._training.check_interrupts()
        self.control = self.callback_handler.on_prediction_step(self.args, self.state, self.control)

    # Data -------------------------------------------------------------------------------------------

    def columns(self) -> list[str]:
        """Columns that are used: what the model takes, and labels under any of their names."""
        return [*signature(self.model), *LABELS, *self.label_names]

    def usable(self, dataset: Any) -> Any:
        return keep_columns(dataset, self.columns()) if self.args.remove_unused_columns else dataset

    def collator(self) -> Collator:
        return Collator(self.data_collator, frozenset(self.columns()) if self.args.remove_unused_columns else None)

    def tokens(self, dataset: Any) -> tuple[Tokens | None, str]:
        """The data set as a token table, made once; None and the reason where it must be batched otherwise."""
        reason = why_own_batches(self)
        if reason:
            return None, reason
        known = self._tokens.get(id(dataset))
        if known is None or known[0] is not dataset:
            while len(self._tokens) >= TABLES_KEPT:
                self._tokens.pop(next(iter(self._tokens)))
            known = self._tokens[id(dataset)] = (dataset, *as_tokens(dataset, self.columns()))
        return known[1], known[2]

    def fingerprint(self, dataset: Any) -> tuple[int, str]:
        """What must be the same in all processes: how many rows, and as far as they are known, which."""
        tokens, _ = self.tokens(dataset)
        return len(dataset), "" if tokens is None else tokens.fingerprint

    def evaluation_tokens(self) -> list[Tokens]:
        several = self.eval_dataset if isinstance(self.eval_dataset, dict) else {"": self.eval_dataset}
        found = [self.tokens(each)[0] for each in several.values() if each is not None]
        return [each for each in found if each is not None]

    def task(self, tokens: Tokens) -> Task | None:
        return task_of(self.model.config, tokens.labels)

    def get_train_dataloader(self) -> torch.utils.data.DataLoader[Any]:
        """The first epoch's batches, to look at; training makes its own from the same rows in the same order."""
        return results.train_loader(self)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> torch.utils.data.DataLoader[Any]:
        """Evaluation batches, to look at."""
        return results.eval_loader(self, self.eval_dataset if eval_dataset is None else eval_dataset)

    get_test_dataloader = get_eval_dataloader

    # Saving and saying ------------------------------------------------------------------------------

    def log(self, logs: dict[str, Any], start_time: float | None = None) -> None:
        """Add to `state.log_history` and tell the callbacks."""
        if self.state.epoch is not None:
            logs["epoch"] = self.state.epoch
        self.state.log_history.append({**logs, "step": self.state.global_step})
        self.control = self.callback_handler.on_log(self.args, self.state, self.control, logs)

    def save_model(self, output_dir: str | os.PathLike[str] | None = None, _internal_call: bool = False) -> None:
        """A standard folder: safetensors, configuration, tokenizer; of several processes the main one writes it."""
        if self._training is not None:
            self._training.write_back()
        if not self.is_world_process_zero():
            return
        folder = Path(output_dir if output_dir is not None else self.args.output_dir or "")
        folder.mkdir(parents=True, exist_ok=True)
        if hasattr(self.model, "save_pretrained"):
            save_model(self.model, self.saved_tokenizer(), folder)
        else:
            results.save_plain_module(self.model, folder)

    def saved_tokenizer(self) -> Any:
        return self.processing_class or getattr(self.data_collator, "tokenizer", None)

    def save_state(self) -> None:
        if self.is_world_process_zero():
            self.state.save_to_json(str(Path(self.args.output_dir or "") / "trainer_state.json"))

    def log_metrics(self, split: str, metrics: Mapping[str, Any]) -> None:
        if self.is_world_process_zero():
            results.print_metrics(split, metrics)

    def save_metrics(self, split: str, metrics: Mapping[str, Any], combined: bool = True) -> None:
        if self.is_world_process_zero():
            results.save_metrics(Path(self.args.output_dir or ""), split, metrics, combined)

    def add_callback(self, callback: Any) -> None:
        self.callback_handler.add_callback(callback)

    def pop_callback(self, callback: Any) -> Any:
        return self.callback_handler.pop_callback(callback)

    def remove_callback(self, callback: Any) -> None:
        self.callback_handler.remove_callback(callback)

    def is_world_process_zero(self) -> bool:
        return self.args.process_index == 0

    def is_local_process_zero(self) -> bool:
        return self.args.local_process_index == 0

    def zero_flags(self) -> dict[str, bool]:
        """What `state` says of this process."""
        return {
            "is_world_process_zero": self.is_world_process_zero(),
            "is_local_process_zero": self.is_local_process_zero(),
        }

    @property
    def tokenizer(self) -> Any:
        notice("Trainer.tokenizer is now Trainer.processing_class.")
        return self.processing_class

    def overrides(self, *methods: str) -> bool:
        """Whether a subclass has its own version of one of these."""
        return any(getattr(type(self), name) is not getattr(Trainer, name) for name in methods)

    def __getattr__(self, name: str) -> Any:
        raise refusals.missing_attribute(name)

    def share_weights(self) -> None:
        """A head that every process has drawn for itself becomes the main one's."""
        self.ranks.take_from_main([*self.model.parameters(), *self.model.buffers()])
