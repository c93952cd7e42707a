"""`TrainingArguments`: the library's own fields, old names, and bf16 where the device has it."""

from __future__ import annotations

import dataclasses
import inspect
import os
from dataclasses import field
from typing import Any

import transformers

from whet.engine.notices import notice
from whet.huggingface.old_names import RENAMED, translate
from whet.utils.device import choose_hardware


class _TakesOldNames(type):
    """Translates old names before any `__init__`: a user's dataclass with more fields has one of its own."""

    def __call__(cls, *given: Any, **settings: Any) -> Any:
        known = {each.name for each in dataclasses.fields(cls)}  # type: ignore[arg-type]
        return super().__call__(*given, **translate(settings, known, cls.__name__))

    @property
    def __signature__(cls) -> inspect.Signature:
        """The fields, for editors and `help`: without it they would show `*given, **settings`."""
        whole = inspect.signature(cls.__init__)  # type: ignore[misc]
        return whole.replace(parameters=list(whole.parameters.values())[1:])


@dataclasses.dataclass(repr=False)  # a generated repr would show hub_token, which the library's own hides
class TrainingArguments(transformers.TrainingArguments, metaclass=_TakesOldNames):  # type: ignore[misc]
    """The settings of a `Trainer`: `transformers.TrainingArguments` and two things more."""

    # No `| None`: the library's argument parser would then want a value after --bf16.
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
            # After the library's checks: they refuse bf16 on a CPU without use_cpu, where it works.
            self.bf16, self.mixed_precision = True, "bf16"
            notice(
                "TrainingArguments: bf16 was not set; this device has it natively, so bf16=True. bf16=False: float32."
            )
        if "kubeflow" not in (asked if isinstance(asked, list) else [asked]) and asked not in ("all", ["all"]):
            reported: list[str] = vars(self)["report_to"]
            self.report_to = [name for name in reported if name != "kubeflow"]  # the library adds it unasked

    def _has_bf16(self) -> bool:
        if self.fp16 or self.mixed_precision != "no" or os.environ.get("ACCELERATE_MIXED_PRECISION"):
            return False
        return choose_hardware("cpu" if self.use_cpu else "auto").bf16

    def __setattr__(self, name: str, value: Any) -> None:
        if name in RENAMED and name not in self.__dataclass_fields__:
            old, (name, value) = name, RENAMED[name](value)
            notice(f"{type(self).__name__}: {old} is now {name}; it was taken as {name}={value!r}.")
        super().__setattr__(name, value)
