"""Old names, fields without effect and fields that whet does not have, each with what to say about it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from whet.errors import UsageError, nearest
from whet.trainer.notices import UnknownArgument, notice

Translated = tuple[str, Any]


def _same(name: str) -> Callable[[Any], Translated]:
    return lambda value: (name, value)


# Old name: what it is now, and how the value is carried over.
RENAMED: dict[str, Callable[[Any], Translated]] = {
    "evaluation_strategy": _same("eval_strategy"),
    "no_cuda": _same("use_cpu"),
    "per_gpu_train_batch_size": _same("per_device_train_batch_size"),
    "per_gpu_eval_batch_size": _same("per_device_eval_batch_size"),
    "group_by_length": lambda value: ("train_sampling_strategy", "group_by_length" if value else "random"),
    "warmup_ratio": lambda value: ("warmup_steps", value),
}

# Old names that are gone without a successor.
GONE = {
    "overwrite_output_dir": "a new training writes over what an earlier one left in output_dir",
    "save_safetensors": "weights are always saved as safetensors",
    "use_mps_device": "a GPU is used where there is one; use_cpu=True says otherwise",
    "fp16_backend": "there is one way to compute in bf16",
    "half_precision_backend": "there is one way to compute in bf16",
    "fp16_opt_level": "there is one way to compute in bf16",
}

# Stock fields that change nothing here: their stock default, and why.
_OWN_BATCHES = "whet makes batches without worker processes"
_OWN_SUMS = "whet sums the gradients of several processes itself"
_ONE_WRITER = "of several processes the main one writes and prints"
WITHOUT_EFFECT: dict[str, tuple[Any, str]] = {
    "dataloader_num_workers": (0, _OWN_BATCHES),
    "dataloader_pin_memory": (True, _OWN_BATCHES),
    "dataloader_persistent_workers": (False, _OWN_BATCHES),
    "dataloader_prefetch_factor": (None, _OWN_BATCHES),
    "dataloader_multiprocessing_context": (None, _OWN_BATCHES),
    "dataloader_in_order": (True, _OWN_BATCHES),
    "length_column_name": ("length", "lengths are counted from the tokens"),
    "torch_compile": (False, "the engine picks the fastest way to compute the same training"),
    "torch_compile_backend": (None, "the engine picks the fastest way to compute the same training"),
    "torch_compile_mode": (None, "the engine picks the fastest way to compute the same training"),
    "torch_empty_cache_steps": (None, "memory is given back when it runs out"),
    "auto_find_batch_size": (False, "out of memory always means half the micro-batch and the same effective batch"),
    "eval_accumulation_steps": (None, "logits are gathered on the host"),
    "eval_do_concat_batches": (True, "predictions are always one array"),
    "eval_use_gather_object": (False, "predictions of several processes are always put together"),
    "logging_nan_inf_filter": (True, "a loss that is not finite stops the training before it harms the weights"),
    "restore_callback_states_from_checkpoint": (False, "resuming always restores the callbacks' state"),
    "average_tokens_across_devices": (
        True,
        "the loss is always the mean over all rows of a step",
    ),
    "log_on_each_node": (True, _ONE_WRITER),
    "log_level_replica": ("warning", _ONE_WRITER),
    "save_on_each_node": (False, _ONE_WRITER),
    "ddp_find_unused_parameters": (None, _OWN_SUMS),
    "ddp_bucket_cap_mb": (None, _OWN_SUMS),
    "ddp_broadcast_buffers": (None, _OWN_SUMS),
    "ddp_static_graph": (None, _OWN_SUMS),
    "ddp_backend": (None, "gloo on the CPU, NCCL on GPUs"),
    "ddp_timeout": (1800, "processes wait 3 minutes for an answer, and hours for work"),
    "local_rank": (-1, "the launcher says it in the environment"),
    "skip_memory_metrics": (True, "records.jsonl has the memory of every logged step"),
    "use_cache": (False, "a classifier has no cache of past keys"),
}

# Stock fields that would change the training or its results, and are not here: what to do instead.
_HUB = "Push when it is done: trainer.model.push_to_hub(NAME)."
_PRECISION = "Use bf16=True, or bf16=False for float32 to the letter."
_MANY = "torchrun trains with a whole model in each process; to split one that does not fit: whet train --shard."
_OPTIMIZER = "Pass an optimizer of your own: Trainer(optimizers=(optimizer, scheduler))."
REFUSED: dict[str, str] = {
    "push_to_hub": _HUB,
    "hub_model_id": _HUB,
    "hub_token": _HUB,
    "hub_strategy": _HUB,
    "hub_private_repo": _HUB,
    "hub_always_push": _HUB,
    "hub_revision": _HUB,
    "tf32": _PRECISION,
    "bf16_full_eval": _PRECISION,
    "fp16_full_eval": _PRECISION,
    "deepspeed": _MANY,
    "fsdp": _MANY,
    "fsdp_config": _MANY,
    "parallelism_config": _MANY,
    "accelerator_config": "Its settings are fields of their own here: gradient_accumulation_steps, data_seed.",
    "full_determinism": "Order and dropout are functions of the seed already; "
    "for the kernels call torch.use_deterministic_algorithms(True).",
    "optim_args": _OPTIMIZER,
    "optim_target_modules": _OPTIMIZER,
    "adafactor": _OPTIMIZER,
    "neftune_noise_alpha": "Add the noise in a subclass's compute_loss.",
    "use_liger_kernel": "The engine has its own fast path; leave it out.",
    "liger_kernel_config": "The engine has its own fast path; leave it out.",
    "gradient_checkpointing_kwargs": "Call model.gradient_checkpointing_enable(...) yourself.",
    "include_for_metrics": "compute_metrics gets predictions and label_ids.",
    "include_inputs_for_metrics": "compute_metrics gets predictions and label_ids.",
    "include_num_input_tokens_seen": "records.jsonl has the rows a second of every logged step.",
    "batch_eval_metrics": "compute_metrics is called once, with all rows.",
    "ignore_data_skip": "Resuming goes to its place in the data at once; leave it out.",
    "enable_jit_checkpoint": "SIGTERM and Ctrl-C always save a checkpoint; leave it out.",
    "debug": "Leave it out.",
    "trackio_space_id": "Trackers write locally here.",
    "trackio_bucket_id": "Trackers write locally here.",
    "trackio_static_space_id": "Trackers write locally here.",
    "predict_with_generate": "whet trains classifiers; nothing is generated.",
    "generation_max_length": "whet trains classifiers; nothing is generated.",
    "generation_num_beams": "whet trains classifiers; nothing is generated.",
    "generation_config": "whet trains classifiers; nothing is generated.",
    "sortish_sampler": 'Use train_sampling_strategy="group_by_length".',
    "jit_mode_eval": "Leave it out.",
    "torchdynamo": "Leave it out.",
    "tpu_num_cores": "whet runs on CPU, CUDA and MPS.",
    "past_index": "whet trains classifiers; nothing is generated.",
}
_HARMLESS = {"hub_strategy": "every_save", "include_num_input_tokens_seen": "no"}


def translate(given: Mapping[str, Any], known: Collection[str], owner: str) -> dict[str, Any]:
    """Arguments under the names there are now; says what is old, refuses what is not there."""
    result: dict[str, Any] = {}
    for old, given_value in given.items():
        name, value = old, given_value
        if old not in known and old in RENAMED:
            name, value = RENAMED[old](given_value)
            if value is None:
                continue
            notice(f"{owner}: {old} is now {name}; it was taken as {name}={value!r}.")
        if name in known:
            if name in result or (name != old and name in given):
                raise UsageError(f"{owner} was given both {name} and its old name.", f"Keep {name}.")
            result[name] = value
        else:
            _settle(name, value, known, owner)
    return result


def _settle(name: str, value: Any, known: Collection[str], owner: str) -> None:
    """An argument that is no field here: without effect, refused, or unknown."""
    if name in GONE:
        notice(f"{owner}: {name} is gone and has no effect: {GONE[name]}.")
    elif name in WITHOUT_EFFECT:
        default, why = WITHOUT_EFFECT[name]
        if value != default:
            notice(f"{owner}: {name}={value!r} makes no difference: {why}.")
    elif name in REFUSED:
        if value and value != _HARMLESS.get(name):
            raise UnknownArgument(f"{owner} has no {name}, which was {value!r}.", REFUSED[name])
    else:
        every = {*known, *RENAMED, *WITHOUT_EFFECT}
        raise UnknownArgument(f"{owner} has no argument {name!r}.", _close(name, known, every))


def _close(name: str, known: Collection[str], every: Collection[str]) -> str:
    hint = nearest(name, every)
    return hint if hint.startswith("Did") else f"docs/trainer.md lists the {len(known)} there are."
