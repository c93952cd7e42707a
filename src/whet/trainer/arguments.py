"""`TrainingArguments`: the fields that training a classifier needs, with the stock names and defaults."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from whet.distributed.environment import launched
from whet.errors import UsageError, nearest
from whet.trainer.notices import UnknownArgument, notice
from whet.trainer.spellings import RENAMED, WITHOUT_EFFECT, translate

if TYPE_CHECKING:
    import torch

    from whet.config import Config

SCHEDULES = (
    "linear",
    "cosine",
    "cosine_with_restarts",
    "polynomial",
    "constant",
    "constant_with_warmup",
    "inverse_sqrt",
    "reduce_lr_on_plateau",
    "cosine_with_min_lr",
    "cosine_warmup_with_min_lr",
    "warmup_stable_decay",
)
CHOICES: dict[str, tuple[str, ...]] = {
    "eval_strategy": ("no", "steps", "epoch"),
    "logging_strategy": ("no", "steps", "epoch"),
    "save_strategy": ("no", "steps", "epoch", "best"),
    "lr_scheduler_type": SCHEDULES,
    "optim": ("adamw_torch_fused", "adamw_torch"),
    "train_sampling_strategy": ("random", "sequential", "group_by_length"),
    "log_level": ("passive", "debug", "info", "warning", "error", "critical"),
}
ORDERS = {"random": "random", "sequential": "sequential", "group_by_length": "bucketed"}


@dataclass
class _Fields:
    """Every field; the stock default unless docs/trainer.md says otherwise."""

    output_dir: str | None = None
    # How the weights are moved
    num_train_epochs: float = 3.0
    max_steps: int = -1
    per_device_train_batch_size: int = 8
    gradient_accumulation_steps: int = 1
    learning_rate: float = 5e-5
    lr_scheduler_type: str = "linear"
    lr_scheduler_kwargs: dict[str, Any] | str | None = None
    warmup_steps: float = 0
    optim: str = "adamw_torch_fused"
    weight_decay: float = 0.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8
    max_grad_norm: float = 1.0
    label_smoothing_factor: float = 0.0
    gradient_checkpointing: bool = False
    # Randomness and the order of rows
    seed: int = 42
    data_seed: int | None = None
    train_sampling_strategy: str = "random"
    dataloader_drop_last: bool = False
    # Columns
    remove_unused_columns: bool = True
    label_names: list[str] | None = None
    # Where and in which precision
    use_cpu: bool = False
    bf16: bool | None = None
    fp16: bool = False
    # Evaluation
    eval_strategy: str = "no"
    eval_steps: float | None = None
    eval_delay: float = 0
    eval_on_start: bool = False
    per_device_eval_batch_size: int = 8
    prediction_loss_only: bool = False
    load_best_model_at_end: bool = False
    metric_for_best_model: str | None = None
    greater_is_better: bool | None = None
    # What is said, and to whom
    logging_strategy: str = "steps"
    logging_steps: float = 500
    logging_first_step: bool = False
    logging_dir: str | None = None
    log_level: str = "passive"
    disable_tqdm: bool | None = None
    # In this order, because the stock library's argument parser can read no other.
    report_to: None | str | list[str] = "none"  # noqa: RUF036
    run_name: str | None = None
    project: str = "huggingface"
    # Checkpoints
    save_strategy: str = "steps"
    save_steps: float = 500
    save_total_limit: int | None = None
    save_only_model: bool = False
    resume_from_checkpoint: str | None = None
    # Flags that scripts keep here for themselves
    do_train: bool = False
    do_eval: bool = False
    do_predict: bool = False

    def __post_init__(self) -> None:
        _complete(self)
        check(self)


class TrainingArguments(_Fields):
    """The settings of a `Trainer`. Old names of transformers 4 are taken, each with one notice."""

    def __init__(self, output_dir: str | None = None, **settings: Any) -> None:
        clean = translate(settings, FIELDS, "TrainingArguments")
        super().__init__(output_dir=output_dir, **clean)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in RENAMED:
            new, value = RENAMED[name](value)
            notice(f"TrainingArguments: {name} is now {new}; it was taken as {new}={value!r}.")
            name = new
        names = {field.name for field in dataclasses.fields(self)}
        if name not in names and not name.startswith("_"):
            raise UnknownArgument(f"TrainingArguments has no field {name!r}.", nearest(name, names))
        object.__setattr__(self, name, value)

    @property
    def train_batch_size(self) -> int:
        return self.per_device_train_batch_size

    @property
    def eval_batch_size(self) -> int:
        return self.per_device_eval_batch_size

    @property
    def world_size(self) -> int:
        return launched().world

    @property
    def process_index(self) -> int:
        return launched().rank

    @property
    def local_process_index(self) -> int:
        return launched().local_rank

    local_rank = local_process_index

    @property
    def should_save(self) -> bool:
        return self.process_index == 0

    should_log = should_save

    @contextmanager
    def main_process_first(self, local: bool = True, desc: str = "work") -> Iterator[None]:
        """What is done inside is done by the main process before the others, who find it in a cache then."""
        from whet.distributed.rendezvous import join_processes

        ranks = join_processes("cpu" if self.use_cpu else "auto")
        first = (self.local_process_index if local else self.process_index) == 0
        if not first:
            ranks.wait_for_all()
        try:
            yield
        finally:
            if first:
                ranks.wait_for_all()

    @property
    def rows_together(self) -> int:
        """Rows that all processes take at once, one micro-batch each."""
        return self.per_device_train_batch_size * self.world_size

    @property
    def n_gpu(self) -> int:
        return int(self.device.type == "cuda")

    @property
    def device(self) -> torch.device:
        from whet.utils.device import choose_hardware

        return choose_hardware("cpu" if self.use_cpu else "auto").device

    @property
    def precision(self) -> str:
        """The engine's name for what bf16 says: unset is bf16 where the device has it natively."""
        return {None: "auto", True: "bf16", False: "float32"}[self.bf16]

    @property
    def trackers(self) -> list[str]:
        """Names of the trackers to report to."""
        asked = self.report_to if isinstance(self.report_to, list | tuple) else [self.report_to or "none"]
        return [name for name in asked if name != "none"]

    def get_warmup_steps(self, num_training_steps: int) -> int:
        """Below 1 a share of all steps, rounded up; else a number of steps."""
        from whet.engine.optimizer import warmup_steps

        return warmup_steps(self.warmup_steps, num_training_steps)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def to_json_string(self) -> str:
        return json.dumps(self.to_dict(), indent=2, default=str)

    def to_config(self, model_name: str = "") -> Config:
        """The same settings in whet's own words, for config.toml."""
        from whet.config import make_config

        words = {
            "model": model_name or "model",
            "recipe": "course",
            "folds": 0,
            "epochs": float(self.num_train_epochs),
            "max_steps": self.max_steps if self.max_steps > 0 else None,
            "batch_size": self.rows_together,
            "accumulate": self.gradient_accumulation_steps,
            "learning_rate": float(self.learning_rate),
            "warmup": float(self.warmup_steps),
            "weight_decay": float(self.weight_decay),
            "beta1": self.adam_beta1,
            "beta2": self.adam_beta2,
            "epsilon": self.adam_epsilon,
            "clip": float(self.max_grad_norm or 0.0),
            "seed": self.seed,
            "order": ORDERS[self.train_sampling_strategy],
            "label_smoothing": self.label_smoothing_factor,
            "precision": self.precision,
            "device": "cpu" if self.use_cpu else "auto",
            "eval_batch_size": self.per_device_eval_batch_size,
            "run": self.output_dir,
        }
        schedule = self.lr_scheduler_type.removesuffix("_with_warmup")
        if schedule in ("linear", "cosine", "constant"):
            words["schedule"] = schedule
        return make_config(words)


FIELDS = tuple(field.name for field in dataclasses.fields(_Fields))
# What editors and help() show is the list of fields, and not **settings.
TrainingArguments.__signature__ = inspect.signature(_Fields)  # type: ignore[attr-defined]


def from_stock(args: Any) -> TrainingArguments:
    """A stock TrainingArguments object as whet's; its fields that whet does not have are treated as if given here."""
    given = {}
    for field in dataclasses.fields(args):
        value = getattr(args, field.name)
        default = field.default if field.default is not dataclasses.MISSING else None
        value = getattr(value, "value", value)  # its strategies are enumerations
        if field.init and value != getattr(default, "value", default) and not _filled_in(field.name, value):
            given[field.name] = value
    return TrainingArguments(**given)


def _filled_in(name: str, value: Any) -> bool:
    """What the stock class writes into its own fields when it is made."""
    return name in (*WITHOUT_EFFECT, "logging_dir", "accelerator_config", "fsdp_config", "disable_tqdm") or value == []


def _complete(args: _Fields) -> None:
    """Values that follow from others, as in the stock class."""
    if isinstance(args.lr_scheduler_kwargs, str):  # from a command line
        args.lr_scheduler_kwargs = json.loads(args.lr_scheduler_kwargs)
    for name in ("eval_strategy", "logging_strategy", "save_strategy", "lr_scheduler_type", "optim"):
        value = getattr(args, name)
        setattr(args, name, str(getattr(value, "value", value)))  # enumerations of the stock library
    args.output_dir = "trainer_output" if args.output_dir is None else str(args.output_dir)
    if args.eval_strategy == "steps" and args.eval_steps is None:
        args.eval_steps = args.logging_steps
    if args.metric_for_best_model is None and (
        args.load_best_model_at_end or args.lr_scheduler_type == "reduce_lr_on_plateau"
    ):
        args.metric_for_best_model = "loss"
    if args.greater_is_better is None and args.metric_for_best_model is not None:
        args.greater_is_better = not args.metric_for_best_model.endswith("loss")
    if args.fp16:
        notice("TrainingArguments: fp16=True is taken as bf16, where the device has it natively.")
        args.fp16 = False


def check(args: _Fields) -> None:
    """One line for a value that cannot be."""
    for name, allowed in CHOICES.items():
        value = getattr(args, name)
        if value not in allowed:
            raise UsageError(f"{name} is {value!r}.", nearest(str(value), allowed))
    for name in ("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps"):
        _require(isinstance(getattr(args, name), int) and getattr(args, name) >= 1, args, name, "a whole number from 1")
    for name in ("weight_decay", "warmup_steps", "eval_delay"):
        _require(_number(args, name) >= 0, args, name, "at least 0")
    for name in ("adam_beta1", "adam_beta2", "label_smoothing_factor"):
        _require(0 <= _number(args, name) < 1, args, name, "at least 0 and below 1")
    for name in ("logging_steps", "save_steps", *(["eval_steps"] if args.eval_steps is not None else [])):
        value = _number(args, name)
        _require(0 < value < 1 or value == int(value) >= 1, args, name, "a whole number, or a share below 1")
    _require(_number(args, "learning_rate") > 0, args, "learning_rate", "above 0")
    _require(_number(args, "num_train_epochs") > 0 or args.max_steps > 0, args, "num_train_epochs", "above 0")
    _require(args.save_total_limit is None or args.save_total_limit >= 1, args, "save_total_limit", "1 or more")
    _require(args.bf16 in (None, True, False), args, "bf16", "True, False or None")


def _number(args: _Fields, name: str) -> float:
    value = getattr(args, name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UsageError(f"{name} is {value!r}.", "It must be a number.")
    return value


def _require(condition: bool, args: _Fields, name: str, rule: str) -> None:
    if not condition:
        raise UsageError(f"{name} is {getattr(args, name)!r}.", f"It must be {rule}.")
