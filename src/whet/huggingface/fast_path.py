"""Decides between whet's engine and the library's own loop: returns the first reason against the engine."""

from __future__ import annotations

import ast
import hashlib
import inspect
import textwrap
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import transformers
from transformers.trainer_callback import TrainerCallback

from whet.data.tokens.from_dataset import HELD, LABELS, Unrepresentable, from_rows, widths_and_labels
from whet.data.tokens.table import Tokens
from whet.engine.captured.network import why_not_captured
from whet.engine.given import fusable, why_not_adamw, why_not_as_it_is, why_not_model, why_not_tokens
from whet.models.families import PACKED
from whet.task import labels_fit, task_of

Stock = transformers.Trainer

SHAPES_TRAINING = (
    *("_inner_training_loop", "_run_epoch", "training_step", "compute_loss", "get_batch_samples"),
    *("_get_num_items_in_batch", "_prepare_inputs", "_prepare_input", "compute_loss_context_manager"),
    *("autocast_smart_context_manager", "_clip_grad_norm", "_get_grad_norm", "_get_learning_rate"),
    *("get_train_dataloader", "_get_dataloader", "_remove_unused_columns", "_get_collator_with_removed_columns"),
    *("floating_point_ops", "_track_num_input_tokens", "_wrap_model", "_prepare_for_training"),
)
"""Methods that determine what a step computes: a subclass that overrides one trains with the library's loop."""
SHAPES_EVALUATION = (
    *("evaluation_loop", "prediction_step", "compute_loss", "get_eval_dataloader", "get_test_dataloader"),
    *("_get_dataloader", "_prepare_inputs", "_prepare_input", "_remove_unused_columns", "compute_loss_context_manager"),
    *("_get_collator_with_removed_columns", "autocast_smart_context_manager", "_wrap_model"),
)
KNOWN = {
    "_run_epoch": ("ba72f078", "b3e3e800", "c9154039", "18900b5c"),
    "training_step": ("2e904197", "1563bbe5", "45bbd339"),
    "compute_loss": ("5cf872e5", "1531b58f", "dcd0994c", "1b4042b1"),
    "_get_dataloader": ("1509255c", "568f6fc7", "afda822b", "c98a2794"),
    "_get_train_sampler": ("ec8404cd", "b8b4c9b7", "726bd2c7"),
    "_get_num_items_in_batch": ("a76f7900", "a69ce112", "a8cd1242", "bd607051"),
}
"""Hashes of the library's methods that the fast epoch replaces: all releases from 5.3.0 to 5.23.0."""
CHANGE_A_STEP = (
    *("neftune_noise_alpha", "gradient_checkpointing", "activation_checkpointing", "torch_compile", "use_liger_kernel"),
    *("fp16_full_eval", "bf16_full_eval", "full_determinism", "enable_jit_checkpoint", "optim_args", "debug"),
    *("optim_target_modules", "deepspeed", "parallelism_config"),
)
NEEDED_FOR_A_STEP = ("remove_unused_columns", "dataloader_in_order")
"""Arguments that change the computation where they are on, and where they are off."""
WITHIN_A_STEP = ("on_pre_optimizer_step", "on_optimizer_step", "on_substep_end")
"""Events at which a callback finds gradients, or can stop a step; the engine does not have them."""
LOADER = ("accelerate.data_loader", "DataLoaderShard")


def why_stock(trainer: Any, loader: Any) -> str:
    """Return why the engine would not compute exactly the same training; empty if it would."""
    return (
        _of_methods(trainer, SHAPES_TRAINING)
        or unknown_version()
        or _of_settings(trainer)
        or _of_callbacks(trainer)
        or _of_model(trainer)
        or _of_scale(trainer)
        or _of_optimizer(trainer)
        or _of_rows(trainer, loader, training=True)
    )


def why_stock_evaluation(trainer: Any, loader: Any, ignore_keys: Any) -> str:
    """Return the same for an evaluation or a prediction."""
    args = trainer.args
    if args.batch_eval_metrics or args.include_for_metrics or not args.eval_do_concat_batches:
        return "compute_metrics is to see batches, inputs or losses"
    if trainer.preprocess_logits_for_metrics is not None or ignore_keys:
        return "logits are changed batch by batch"
    if args.world_size > 1:
        return "several processes share their losses in a way of the library's own"
    return (
        _of_methods(trainer, SHAPES_EVALUATION)
        or _of_settings(trainer)
        or _of_model(trainer)
        or _of_rows(trainer, loader, training=False)
    )


def _of_methods(trainer: Any, names: tuple[str, ...]) -> str:
    mine: Any = next((kind for kind in type(trainer).__mro__ if kind.__module__ == "whet.huggingface.trainer"), Stock)
    for name in names:
        own = vars(mine).get(name, vars(Stock).get(name))
        if own is None:
            continue  # missing in another version of the library
        if name in vars(trainer) or inspect.getattr_static(type(trainer), name) is not own:
            return f"{name} is overridden"
        original = vars(Stock)[name]
        if getattr(original, "__module__", "") != "transformers.trainer":
            return f"transformers.Trainer.{name} was replaced by {original.__module__}"
    return ""


@cache
def unknown_version() -> str:
    """Return why this release trains with its own loop: its methods were not compared with the fast epoch."""
    for name, known in KNOWN.items():
        try:
            source = inspect.getsource(vars(Stock)[name])
        except (OSError, KeyError, TypeError):
            return f"the source of transformers.Trainer.{name} cannot be read"
        if fingerprint(source) not in known:
            version = transformers.__version__
            return f"transformers {version} has a Trainer.{name} that was not compared with this version of whet"
    return ""


def fingerprint(source: str) -> str:
    """Return a hash of a function's statements, without docstrings, comments and indentation."""
    source = textwrap.dedent(source)
    lines, first = source.splitlines(), ast.parse(source).body[0].body[0]  # type: ignore[attr-defined]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        lines[first.lineno - 1 : first.end_lineno] = []
    kept = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
    return hashlib.sha256("\n".join(kept).encode()).hexdigest()[:8]


def _of_settings(trainer: Any) -> str:
    args, accelerator = trainer.args, trainer.accelerator
    for name in (*CHANGE_A_STEP, *NEEDED_FOR_A_STEP):
        value = getattr(args, name, name in NEEDED_FOR_A_STEP)
        if (value not in (None, "", []) and value is not False) != (name in NEEDED_FOR_A_STEP):
            return f"{name} is {value!r}"
    if trainer.compute_loss_func is not None:
        return "compute_loss_func is given"
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled or trainer.is_model_parallel or args.n_gpu > 1:
        return "the model is spread over devices"
    wrapped = trainer.model_wrapped
    if args.world_size > 1 and type(wrapped) is torch.nn.parallel.DistributedDataParallel:
        wrapped = wrapped.module
    if wrapped is not trainer.model:
        return "the model is wrapped"
    if accelerator.mixed_precision not in ("no", "bf16"):
        return f"mixed precision is {accelerator.mixed_precision}"
    if args.device.type not in ("cpu", "cuda", "mps"):
        return f"the device is {args.device.type}"
    config = args.accelerator_config
    if not config.use_seedable_sampler or config.split_batches or config.dispatch_batches or not config.even_batches:
        return "accelerator_config deals out batches in another way"
    if set(config.gradient_accumulation_kwargs or {}) - {"sync_each_batch"}:
        return "accelerator_config has gradient_accumulation_kwargs"
    return ""


def _of_model(trainer: Any) -> str:
    """Check the model. On a GPU every model of the library can be captured that is not computed in another way."""
    model, device = trainer.model, trainer.args.device
    if device.type != "cuda" or fusable(model, device, trainer.accelerator.mixed_precision == "bf16"):
        return why_not_model(model)
    return why_not_as_it_is(model) or why_not_captured(model)


def _of_scale(trainer: Any) -> str:
    """Check that micro-batches are weighted as in the tested families."""
    args, model = trainer.args, trainer.model
    if args.gradient_accumulation_steps * args.world_size == 1:
        return ""
    names = inspect.unwrap(type(model).forward).__code__.co_names
    if model.config.model_type not in PACKED or "loss_function" in names:
        return f"how {type(model).__name__} scales its loss over micro-batches is not known"
    return ""


def _of_callbacks(trainer: Any) -> str:
    events = WITHIN_A_STEP if trainer.args.gradient_accumulation_steps > 1 else WITHIN_A_STEP[:2]
    for callback in trainer.callback_handler.callbacks:
        for event in events:
            if overrides(callback, event):
                return f"{type(callback).__name__} acts within a step ({event})"
    return ""


def overrides(callback: Any, *events: str) -> bool:
    """Return whether a callback handles one of these events."""
    return any(getattr(type(callback), event, None) is not getattr(TrainerCallback, event) for event in events)


def users(callbacks: list[Any], *events: str) -> bool:
    """Return whether a callback of the user handles one of these events."""
    own = ("transformers.", "whet.")
    return any(overrides(each, *events) for each in callbacks if not type(each).__module__.startswith(own))


def plain_optimizer(trainer: Any) -> Any:
    """Return torch's optimizer, without accelerate's wrapper."""
    return getattr(trainer.optimizer, "optimizer", trainer.optimizer)


def _of_optimizer(trainer: Any) -> str:
    bf16 = trainer.accelerator.mixed_precision == "bf16"
    fused = fusable(trainer.model, trainer.args.device, bf16)
    return why_not_adamw(plain_optimizer(trainer), trainer.model, fused=fused)


@dataclass(frozen=True)
class Table:
    """A data set in the engine's format."""

    tokens: Tokens
    widths: Any
    """Length of each row as given, padding included; the collator pads to it."""
    labels: str
    """`int`, `float` or `floats` per row, `none` without labels, else the unsupported type."""


def table_of(trainer: Any, dataset: Any) -> Table:
    """Build a table once per data set. A loader's data set is a new object each time, so its fingerprint is the key."""
    key = getattr(dataset, "_fingerprint", None) or (id(dataset), len(dataset))
    if key not in trainer._tables:
        while len(trainer._tables) >= 8:
            trainer._tables.pop(next(iter(trainer._tables)))
        trainer._set_signature_columns_if_needed()
        kept, rows = set(trainer._signature_columns), dataset
        if isinstance(dataset, list):
            rows = [{name: value for name, value in row.items() if name in kept} for row in dataset]
        table = Table(from_rows(rows, inputs=kept - set(LABELS)), *widths_and_labels(rows))
        trainer._tables[key] = (dataset, table)
    return trainer._tables[key][1]  # type: ignore[no-any-return]


def _of_rows(trainer: Any, loader: Any, *, training: bool) -> str:
    import datasets

    if (type(loader).__module__, type(loader).__name__) != LOADER or loader.batch_sampler is None:
        return f"the loader is a {type(loader).__name__}"
    dataset = loader.dataset
    if type(dataset) is not list and type(dataset) is not datasets.Dataset:
        return f"the data set is a {type(dataset).__name__}"
    if not len(dataset) or not len(loader):
        return "there are no batches"
    first = dataset[0] if isinstance(dataset, list) else dataset.features
    columns = [name for name in first if name in HELD] if isinstance(first, dict) else []
    if not isinstance(dataset, list):
        form = dataset.format
        if form["type"] not in (None, "torch", "numpy") or set(columns) - set(form["columns"]):
            return f"the data set has the format {form['type']!r}"
    if sum(name in columns for name in LABELS) > 1 or trainer.label_names != ["labels"]:
        return "the labels are not in one column"
    try:
        table = table_of(trainer, dataset)
    except Unrepresentable as error:
        return str(error)
    collator, config = trainer.data_collator, trainer.model.config
    return (
        _of_collator(collator, table, "attention_mask" in columns)
        or why_not_tokens(config, table.tokens, padded_width(collator, table.widths))
        or _of_labels(trainer, table, training=training)
    )


def _of_collator(collator: Any, table: Table, masked: bool) -> str:
    longest = int(table.widths.max())
    if collator is transformers.default_data_collator:
        same = bool((table.widths == longest).all())
        return "" if same and masked else "default_data_collator gets rows of different lengths or without a mask"
    if type(collator) is not transformers.DataCollatorWithPadding:
        return f"the collator is {getattr(collator, '__name__', type(collator).__name__)}"
    if collator.tokenizer.padding_side != "right":
        return "the tokenizer pads on the left"
    padding = _padding(collator)
    if padding == "max_length" and (collator.max_length is None or longest > collator.max_length):
        return "the collator pads to a length that is not set or too short"
    if padding not in (True, "longest", "max_length"):
        return "the collator does not pad"
    if not masked and "attention_mask" not in collator.tokenizer.model_input_names:
        return "batches have no attention mask, so the model attends to padding"
    return ""


def _padding(collator: Any) -> Any:
    """Return how a collator pads; `default_data_collator` gets rows of one length."""
    padding = getattr(collator, "padding", True)
    return getattr(padding, "value", padding)


def padded_width(collator: Any, widths: Any) -> int:
    """Return the width to which the collator pads rows of these lengths."""
    width = collator.max_length if _padding(collator) == "max_length" else int(widths.max())
    multiple = getattr(collator, "pad_to_multiple_of", None) or 1
    return -(-width // multiple) * multiple


def _of_labels(trainer: Any, table: Table, *, training: bool) -> str:
    labels, config = table.tokens.labels, trainer.model.config
    if labels is None or table.labels == "none":
        missing = labels is None and table.labels == "none" and not training
        return "" if missing else "rows have no labels"
    task = task_of(config, labels)
    wanted = {"regression": "float", "multilabel": "floats"}.get(task.kind, "int") if task else ""
    if task is None or table.labels != wanted:
        return f"labels are {table.labels}, and the model's loss wants another kind"
    if not labels_fit(labels, task):
        return "a label is none of the model's"
    if trainer.label_smoother is not None and wanted != "int":
        return "labels are smoothed that are not one class per row"
    return ""
