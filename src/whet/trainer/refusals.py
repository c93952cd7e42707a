"""What a Trainer refuses, by name and with what to do instead, before any time is spent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from whet.errors import UsageError, nearest
from whet.trainer.notices import NotHere, UnknownArgument, notice

if TYPE_CHECKING:
    from whet.trainer.arguments import TrainingArguments
    from whet.trainer.trainer import Trainer

_LOOP = "Write your own loop with whet.TrainStep, or override compute_loss."
_ROWS = "The order is train_sampling_strategy's; what a batch holds is data_collator's."
# Methods of the stock Trainer that have no effect here, so overriding them must not pass in silence.
OVERRIDES = {
    "training_step": _LOOP,
    "_inner_training_loop": _LOOP,
    "_run_epoch": _LOOP,
    "get_batch_samples": _LOOP,
    "_maybe_log_save_evaluate": "Use a callback's on_step_end and its control.",
    "get_train_dataloader": _ROWS,
    "_get_train_sampler": _ROWS,
    "get_eval_dataloader": _ROWS,
    "get_test_dataloader": _ROWS,
    "_get_eval_sampler": _ROWS,
    "prediction_step": "Override compute_loss, or pass preprocess_logits_for_metrics=.",
    "prediction_loop": "Override evaluate or predict.",
    "evaluation_loop": "Override evaluate or predict.",
    "_prepare_inputs": "Do it in data_collator.",
    "_save_checkpoint": "Use a callback's on_save.",
    "_load_best_model": "Use a callback's on_train_end.",
    "get_decay_parameter_names": "Override create_optimizer.",
    "get_optimizer_cls_and_kwargs": "Override create_optimizer.",
}
# Methods and attributes of the stock Trainer that are not here.
ABSENT = {
    "accelerator": "There is none behind this Trainer; trainer.hardware says which device computes.",
    "push_to_hub": "Use trainer.model.push_to_hub(NAME).",
    "create_model_card": "Use `whet report` on output_dir.",
    "hyperparameter_search": "Call Trainer in a loop of your own, one output_dir each.",
    "training_step": _LOOP,
    "prediction_step": _LOOP,
    "evaluation_loop": "Use evaluate or predict.",
    "floating_point_ops": "whet reports rows a second.",
}
_TRAINER_ARGUMENTS = (
    *("model", "args", "data_collator", "train_dataset", "eval_dataset", "processing_class", "model_init"),
    *("compute_loss_func", "compute_metrics", "callbacks", "optimizers", "optimizer_cls_and_kwargs"),
    *("preprocess_logits_for_metrics", "tokenizer"),
)


def trainer_arguments(others: Mapping[str, Any], processing_class: Any) -> dict[str, Any]:
    """Arguments of the constructor that it does not know: an old name, or a wrong one."""
    for name in others:
        if name != "tokenizer":
            raise UnknownArgument(f"Trainer has no argument {name!r}.", nearest(name, _TRAINER_ARGUMENTS))
    if "tokenizer" in others:
        if processing_class is not None:
            raise UsageError("Trainer was given both processing_class and its old name.", "Keep processing_class.")
        notice("Trainer: tokenizer is now processing_class; it was taken as that.")
    return dict(others)


def train_arguments(others: Mapping[str, Any]) -> None:
    """Arguments of `train` that are not here."""
    for name, value in others.items():
        if name in ("trial", "ignore_keys_for_eval") and value is None:
            continue
        hint = {"trial": ABSENT["hyperparameter_search"], "model_path": "It is now resume_from_checkpoint."}
        raise UnknownArgument(
            f"train has no argument {name!r}.", hint.get(name) or nearest(name, ["resume_from_checkpoint"])
        )


def overridden_methods(kind: type, base: type) -> None:
    """A subclass that overrides what this Trainer never calls would silently train something else."""
    for above in kind.__mro__[: kind.__mro__.index(base)]:
        for name, instead in OVERRIDES.items():
            if name in vars(above):
                raise UsageError(f"{above.__name__} overrides {name}, which whet's Trainer does not call.", instead)


def settings(args: TrainingArguments, trainer: Trainer) -> None:
    """Settings that contradict what the Trainer was given."""
    if args.eval_strategy != "no" and trainer.eval_dataset is None:
        raise UsageError(
            f"eval_strategy is {args.eval_strategy!r}, and there is no eval_dataset.", "Pass eval_dataset=."
        )
    if args.load_best_model_at_end and args.eval_strategy == "no":
        raise UsageError(
            "load_best_model_at_end is True, and eval_strategy is 'no': there is no best model to find.",
            'Set eval_strategy="epoch" or "steps".',
        )
    if args.save_strategy == "best" and args.metric_for_best_model is None:
        raise UsageError("save_strategy is 'best', and metric_for_best_model is not set.", 'Set it, as in "accuracy".')
    if trainer.optimizer is None and trainer.lr_scheduler is not None:
        raise UsageError("optimizers has a schedule without an optimizer.", "Pass optimizers=(optimizer, schedule).")


def early_stopping(args: TrainingArguments, callbacks: list[Any]) -> None:
    """Early stopping that could never stop anything."""
    if not any(type(each).__name__ == "EarlyStoppingCallback" for each in callbacks):
        return
    if args.eval_strategy == "no":
        raise UsageError("EarlyStoppingCallback needs evaluations.", 'Set eval_strategy="epoch" or "steps".')
    if args.metric_for_best_model is None:
        raise UsageError(
            "EarlyStoppingCallback needs metric_for_best_model.", "Set it, or load_best_model_at_end=True for the loss."
        )


def missing_attribute(name: str) -> AttributeError:
    """The error for an attribute that this Trainer does not have."""
    if name in ABSENT:
        return NotHere(f"whet's Trainer has no {name}.", ABSENT[name])
    return AttributeError(f"'Trainer' object has no attribute {name!r}")
