"""`TrainingArguments`: the library's own fields, bf16 if the device supports it, and names of transformers 4.

Names that version 5 no longer accepts still work, with one notice of the new name.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
from abc import ABCMeta
from collections.abc import Callable, Collection, Mapping
from dataclasses import field
from typing import Any

import transformers

from whet.engine.notices import notice
from whet.utils.device import choose_hardware

RENAMED = {
    "evaluation_strategy": "eval_strategy",
    "no_cuda": "use_cpu",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
    "warmup_ratio": "warmup_steps",
    "push_to_hub_model_id": "hub_model_id",
    "push_to_hub_token": "hub_token",
    "group_by_length": "train_sampling_strategy",
    "adafactor": "optim",
    "include_inputs_for_metrics": "include_for_metrics",
}
"""Old names, and the present ones."""

CONVERTED: dict[str, Callable[[Any], Any]] = {
    "group_by_length": lambda value: "group_by_length" if value else "random",
    "adafactor": lambda value: "adafactor" if value else "adamw_torch_fused",
    "include_inputs_for_metrics": lambda value: ["inputs"] if value else [],
}
"""How a value of an old name is converted, unless it is kept."""

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
    """Return the settings under their present names; unknown names stay, and the library refuses them.

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
            if given.get(RENAMED[old]):
                notice(f"{owner}: {old} is the old name of {RENAMED[old]}, which was given too; {RENAMED[old]} counts.")
            else:
                name, converted = _translated(old, value, owner)
                result[name] = converted
    return result


def _translated(old: str, value: Any, owner: str) -> tuple[str, Any]:
    name, converted = RENAMED[old], CONVERTED.get(old, lambda value: value)(value)
    notice(f"{owner}: {old} is now {name}; it was taken as {name}={converted!r}.")
    return name, converted


def _is_old(name: str) -> bool:
    return name in RENAMED or name in GONE or name == "logging_dir"


class _TakesOldNames(ABCMeta):
    """Translates old names before any `__init__`: a user's dataclass with more fields has its own.

    As an `ABCMeta` it lets a user's class have abstract classes beside this one.
    """

    def __call__(cls, *given: Any, **settings: Any) -> Any:
        known = {each.name for each in dataclasses.fields(cls)}  # type: ignore[arg-type]
        made = super().__call__(*given, **translate(settings, known, cls.__name__))
        vars(made).update({name: settings[name] for name in settings.keys() & GONE.keys() - known})
        return made

    @property
    def __signature__(cls) -> inspect.Signature:
        """The fields, for editors and `help`: without it they would show `*given, **settings`."""
        whole = inspect.signature(cls.__init__)  # type: ignore[misc]
        return whole.replace(parameters=list(whole.parameters.values())[1:])


@dataclasses.dataclass(repr=False)  # a generated repr would show hub_token, which the library's own hides
class TrainingArguments(transformers.TrainingArguments, metaclass=_TakesOldNames):  # type: ignore[misc]
    """The settings of a `Trainer`: `transformers.TrainingArguments` with bf16 and old names."""

    # No `| None`: the library's argument parser would then expect a value after --bf16.
    bf16: bool = field(
        default=None,  # type: ignore[assignment]
        metadata={"help": "Not set: bf16 where the device computes it natively. True and False are kept to."},
    )
    record_run: bool = field(
        default=True, metadata={"help": "Keep curves, verdict and report in output_dir, for `whet verdict` and others."}
    )

    def __post_init__(self) -> None:
        asked = vars(self)["report_to"]
        automatic = self.bf16 is None
        if automatic:
            self.bf16 = False
        super().__post_init__()
        if self.bf16 and (slow := choose_hardware("cpu" if self.use_cpu else "auto", "bf16").slow):
            notice(f"TrainingArguments: {slow}")
        if automatic and self._has_bf16():
            # After the library's checks, which refuse bf16 on a CPU without use_cpu, although it works.
            self.bf16, self.mixed_precision = True, "bf16"
            notice(
                "TrainingArguments: bf16 was not set; this device has it natively, so bf16=True. bf16=False: float32."
            )
        if "kubeflow" not in (asked if isinstance(asked, list) else [asked]) and asked not in ("all", ["all"]):
            reported: list[str] = vars(self)["report_to"]
            self.report_to = [name for name in reported if name != "kubeflow"]  # the library adds it by itself

    def _has_bf16(self) -> bool:
        if self.fp16 or self.mixed_precision != "no" or os.environ.get("ACCELERATE_MIXED_PRECISION"):
            return False
        return choose_hardware("cpu" if self.use_cpu else "auto").bf16

    def __setattr__(self, name: str, value: Any) -> None:
        if name in RENAMED and name not in self.__dataclass_fields__:
            name, value = _translated(name, value, type(self).__name__)
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        """Old names can be read: the present value, or None for what is gone and was not given."""
        if name in GONE:
            return None
        if name in RENAMED and name not in CONVERTED:
            return getattr(self, RENAMED[name])
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
