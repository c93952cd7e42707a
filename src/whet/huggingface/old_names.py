"""Names of transformers 4 that version 5 no longer takes: each works, with one notice that says the new name."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from typing import Any

from whet.engine.notices import notice

Translated = tuple[str, Any]


def _same(name: str) -> Callable[[Any], Translated]:
    return lambda value: (name, value)


RENAMED: dict[str, Callable[[Any], Translated]] = {
    "evaluation_strategy": _same("eval_strategy"),
    "no_cuda": _same("use_cpu"),
    "per_gpu_train_batch_size": _same("per_device_train_batch_size"),
    "per_gpu_eval_batch_size": _same("per_device_eval_batch_size"),
    "warmup_ratio": _same("warmup_steps"),
    "push_to_hub_model_id": _same("hub_model_id"),
    "push_to_hub_token": _same("hub_token"),
    "group_by_length": lambda value: ("train_sampling_strategy", "group_by_length" if value else "random"),
    "adafactor": lambda value: ("optim", "adafactor" if value else "adamw_torch_fused"),
    "include_inputs_for_metrics": lambda value: ("include_for_metrics", ["inputs"] if value else []),
}
"""Old name: the new one, and how the value is carried over."""

GONE = {
    "overwrite_output_dir": "a new training writes over what an earlier one left in output_dir",
    "save_safetensors": "weights are always saved as safetensors",
    "use_mps_device": "a GPU is used where there is one; use_cpu=True prevents it",
    "use_ipex": "torch has its own kernels for these processors",
    "jit_mode_eval": "use torch_compile=True",
    "fp16_backend": "there is one way to compute in half precision",
    "half_precision_backend": "there is one way to compute in half precision",
    "fp16_opt_level": "there is one way to compute in half precision",
    "past_index": "a classifier keeps no past keys",
    "tpu_num_cores": "the launcher sets the number of processes",
    "local_rank": "the launcher sets it in the environment",
    "ray_scope": "hyperparameter_search takes scope=",
}
"""Old names without a successor, and why."""

TENSORBOARD = "TENSORBOARD_LOGGING_DIR"


def translate(given: Mapping[str, Any], known: Collection[str], owner: str) -> dict[str, Any]:
    """The settings under the names there are now; unknown names stay, and the library refuses them itself.

    Only names that are no fields are translated: some left the library as late as version 5.15.
    """
    result = {name: value for name, value in given.items() if name in known or not _is_old(name)}
    for old, value in given.items():
        if old in result or value is None:
            continue
        if old in GONE:
            notice(f"{owner}: {old} is gone and has no effect: {GONE[old]}.")
        elif old == "logging_dir":
            os.environ[TENSORBOARD] = str(value)
            notice(f"{owner}: logging_dir is now the environment variable {TENSORBOARD}; it was set to {value!r}.")
        else:
            name, carried = RENAMED[old](value)
            if given.get(name):
                notice(f"{owner}: {old} is the old name of {name}, which was given too; {name} counts.")
            else:
                notice(f"{owner}: {old} is now {name}; it was taken as {name}={carried!r}.")
                result[name] = carried
    return result


def _is_old(name: str) -> bool:
    return name in RENAMED or name in GONE or name == "logging_dir"
