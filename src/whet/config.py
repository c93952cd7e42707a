"""The settings of a run: small dataclasses, checked when made, TOML in and out.

Every setting has one name, used in Python, in TOML, in `--set name=value` and in the environment as `WHET_NAME`.
A flag wins over the environment, the environment over the file, the file over the default written here.
"""

from __future__ import annotations

import dataclasses
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from whet.argument_names import know_arguments
from whet.errors import UsageError, nearest


def setting(
    default: Any, help: str, flag: str = "", *, changes: Literal["training", "records", "nothing"] = "training"
) -> Any:
    """A dataclass field with the sentence that becomes its `--help`, and what another value of it changes."""
    return dataclasses.field(default=default, metadata={"help": help, "flag": flag, "changes": changes})


def _check(condition: bool, name: str, value: object, rule: str) -> None:
    if not condition:
        raise UsageError(f"{name} is {value!r}.", f"It must be {rule}.")


DROPS = ("empty", "unlabelled", "conflict", "leak", "duplicate", "near-duplicate")
"""The rules by which rows are left out, in the order in which they are applied."""
SAFE_DROPS = tuple(rule for rule in DROPS if rule != "near-duplicate")
"""The rules that `all` stands for."""
REPAIRS = ("text",)
ALL_LINEAR = "all-linear"
"""The target of LoRA that stands for every linear layer of the encoder; PEFT has the same name for it."""


def _check_names(setting: str, given: tuple[str, ...], known: tuple[str, ...]) -> None:
    for name in given:
        if name not in known:
            raise UsageError(f"{setting} is {name!r}.", nearest(name, known))


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where the data is and what its columns mean."""

    source: str = setting("", "file, folder, glob, hub name, sample/pairs or - for standard input")
    validation: str | None = setting(None, "file with validation rows", "--validation")
    test: str | None = setting(None, "file with test rows", "--test")
    text: str | None = setting(None, "name of the text column", "--text")
    pair: str | None = setting(None, "name of the second text's column", "--pair")
    label: str | None = setting(None, "name of the label column", "--label")
    task: Literal["auto", "binary", "multiclass", "multilabel", "regression"] = setting(
        "auto", "what the labels are", "--task"
    )
    label_delimiter: str | None = setting(None, "what separates several labels in one cell", "--label-delimiter")
    min_rows: int = setting(0, "leave out labels with fewer training rows", "--min-rows")
    rare: str | None = setting(
        None, "merge labels below --min-rows (or below 3 rows) into one of this name, such as other", "--rare"
    )
    labels_from: str | None = setting(
        None, "file of reviewed labels that `whet labels` wrote: what was accepted is trained on", "--labels-from"
    )
    encoding: str = setting("utf-8", "encoding of text files", "--encoding")
    delimiter: str | None = setting(None, "what separates columns (found if not given)", "--delimiter")
    quoting: Literal["auto", "yes", "no", "loose"] = setting(
        "auto", "do quotes enclose fields, or belong to the text; loose: the text may hold the delimiter", "--quoting"
    )
    header: Literal["auto", "yes", "no"] = setting("auto", "does the first row name the columns", "--header")
    sheet: str | None = setting(None, "sheet of an Excel file, or table of a database, with more than one", "--sheet")
    drop: tuple[str, ...] = setting((), f"leave out rows: {', '.join(DROPS)}; or all but near-duplicate", "--drop")
    drop_empty: bool = setting(False, "leave out rows with an empty text: the same as --drop empty", "--drop-empty")
    repair: tuple[str, ...] = setting(
        (), "text: mend mojibake, HTML entities and invisible characters in texts", "--repair"
    )
    max_field_mb: float = setting(1.0, "refuse a field larger than this", "--max-field-mb")
    validation_share: float = setting(0.1, "share of rows for validation where none is given")
    test_share: float = setting(0.1, "share of rows for a test split where none is given")
    split_seed: int = setting(42, "seed of the split or of the folds where none is given")
    folds: int | Literal["auto"] = setting(
        "auto", "parts of the rows that are held out in turn to measure; 0 for a single split", "--folds"
    )
    allow: tuple[str, ...] = setting((), "findings of the audit that may stand, such as leak", "--allow")

    def __post_init__(self) -> None:
        for name in ("validation_share", "test_share"):
            value = getattr(self, name)
            _check(0 <= value < 1, name, value, "at least 0 and below 1")
        _check(self.min_rows >= 0, "min_rows", self.min_rows, "at least 0")
        _check(self.rare is None or bool(self.rare.strip()), "rare", self.rare, "the name of a label")
        _check(self.max_field_mb > 0, "max_field_mb", self.max_field_mb, "above 0")
        _check(self.folds == "auto" or self.folds == 0 or self.folds >= 2, "folds", self.folds, "auto, 0, or 2 or more")
        _check_names("drop", self.drop, (*DROPS, "all"))
        _check_names("repair", self.repair, REPAIRS)

    @property
    def drops(self) -> tuple[str, ...]:
        """Return the applied rules in order; `all` leaves out the one for similar texts, which may be intended."""
        named = {*self.drop, *(("empty",) if self.drop_empty else ()), *(SAFE_DROPS if "all" in self.drop else ())}
        return tuple(rule for rule in DROPS if rule in named)

    def dropping(self, *rules: str) -> tuple[str, str]:
        """Return the flag that also applies these rules."""
        return "--drop", ",".join(dict.fromkeys((*self.drop, *rules)))


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The pretrained model, and how much text it reads."""

    model: str = setting("minilm", "pretrained model: minilm, a local folder or a hub name", "--model")
    revision: str | None = setting(None, "revision of a hub model", "--revision")
    max_length: int | None = setting(None, "longest input in tokens (default: the model's limit)", "--max-length")
    long: Literal["head", "head-tail", "windows"] = setting(
        "head", "what is read of a text longer than that: its head, head and tail, or all of it in windows", "--long"
    )
    pooling: Literal["auto", "first", "mean"] = setting(
        "auto", "what the head reads: the first token, or the mean of all", "--pooling"
    )
    trust_remote_code: bool = setting(False, "run Python code that comes with the model", "--trust-remote-code")

    def __post_init__(self) -> None:
        _check(self.max_length is None or self.max_length >= 4, "max_length", self.max_length, "at least 4")


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """Adapters that train in place of the pretrained weights, which stay as they are."""

    lora: bool = setting(False, "train LoRA adapters and the head only; the pretrained weights stay", "--lora")
    lora_rank: int = setting(16, "inner width of the adapters", "--lora-rank")
    lora_alpha: float | None = setting(
        None, "the adapters are scaled by this, divided by the rank (default: twice the rank)", "--lora-alpha"
    )
    lora_dropout: float = setting(0.05, "dropout before the adapters", "--lora-dropout")
    lora_targets: tuple[str, ...] = setting(
        (ALL_LINEAR,),
        "names of the linear layers with adapters, such as q_proj,v_proj; or all-linear",
        "--lora-targets",
    )

    def __post_init__(self) -> None:
        _check(self.lora_rank >= 1, "lora_rank", self.lora_rank, "at least 1")
        _check(self.lora_alpha is None or self.lora_alpha > 0, "lora_alpha", self.lora_alpha, "above 0")
        _check(0 <= self.lora_dropout < 1, "lora_dropout", self.lora_dropout, "at least 0 and below 1")
        _check(all(self.lora_targets) and bool(self.lora_targets), "lora_targets", self.lora_targets, "names of layers")

    @property
    def alpha(self) -> float:
        return 2.0 * self.lora_rank if self.lora_alpha is None else self.lora_alpha


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How the weights are trained."""

    recipe: Literal["auto", "course"] = setting(
        "auto", "auto chooses what you leave unset from the rows; course has fixed defaults", "--recipe"
    )
    epochs: float = setting(3.0, "passes over the training rows", "--epochs")
    max_steps: int | None = setting(None, "stop after this many steps", "--max-steps")
    batch_size: int = setting(16, "rows per step, over all processes", "--batch-size")
    accumulate: int = setting(1, "micro-batches a step", "--accumulate")
    learning_rate: float = setting(5e-5, "peak learning rate", "--lr")
    schedule: Literal["linear", "cosine", "constant"] = setting("linear", "how the rate falls", "--schedule")
    warmup: float = setting(0.0, "warm-up: steps, or a share of them if below 1", "--warmup")
    weight_decay: float = setting(0.0, "decoupled decay; never on biases and norms", "--weight-decay")
    beta1: float = setting(0.9, "AdamW's first moment")
    beta2: float = setting(0.999, "AdamW's second moment")
    epsilon: float = setting(1e-8, "AdamW's epsilon")
    clip: float = setting(1.0, "largest gradient norm; 0 for none", "--clip")
    seed: int = setting(42, "seed of the head, the order and the dropout", "--seed")
    seeds: int = setting(1, "trainings with seeds that count up from the first; the best is kept", "--seeds")
    order: Literal["random", "bucketed", "sequential"] = setting("random", "order of the rows", "--order")
    class_weights: Literal["none", "balanced"] = setting("none", "weigh the loss by class", "--class-weights")
    label_smoothing: float = setting(0.0, "share of the target spread over all classes")
    contrastive: float = setting(0.0, "share of the supervised contrastive loss, 0 to 1", "--contrastive")
    average: float = setting(0.0, "decay per step of the running mean of the weights; 0 keeps none", "--average")
    precision: Literal["auto", "float32", "bf16"] = setting(
        "auto", "auto takes bf16 where the device has it natively", "--precision"
    )
    device: str = setting("auto", "auto, cpu, cuda or mps", "--device")
    shard: bool = setting(False, "split the model over the processes, where it does not fit into one", "--shard")

    def __post_init__(self) -> None:
        _check(self.epochs > 0, "epochs", self.epochs, "above 0")
        _check(self.max_steps is None or self.max_steps > 0, "max_steps", self.max_steps, "above 0")
        for name in ("batch_size", "accumulate", "seeds"):
            _check(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        _check(0 < self.learning_rate < 10, "learning_rate", self.learning_rate, "above 0 and below 10")
        for name in ("warmup", "weight_decay", "clip"):
            _check(getattr(self, name) >= 0, name, getattr(self, name), "at least 0")
        _check(0 <= self.contrastive <= 1, "contrastive", self.contrastive, "from 0 to 1")
        for name in ("beta1", "beta2", "label_smoothing", "average"):
            _check(0 <= getattr(self, name) < 1, name, getattr(self, name), "at least 0 and below 1")
        _check(self.epsilon > 0, "epsilon", self.epsilon, "above 0")
        _check(0 <= self.seed < 2**63, "seed", self.seed, "a whole number from 0 up")


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """When the model is evaluated, and what follows from it."""

    evaluations: int = setting(12, "evaluations a run, evenly spread", "--evaluations")
    eval_every: int | None = setting(None, "evaluate every so many steps instead", "--eval-every")
    eval_batch_size: int = setting(1024, "most rows an evaluation batch", "--eval-batch-size")
    metric: str = setting("auto", "metric that decides the best step", "--metric")
    choice: Literal["highest", "steady"] = setting(
        "highest", "what is shipped: the highest score, or of scores alike the average or the lowest loss", "--choice"
    )
    patience: int | None = setting(None, "stop after this many evaluations without a better one", "--patience")
    min_improvement: float = setting(0.0, "what counts as better")
    probe_rows: int = setting(500, "training rows evaluated together with the validation rows")

    def __post_init__(self) -> None:
        for name in ("evaluations", "probe_rows"):
            _check(getattr(self, name) >= 0, name, getattr(self, name), "at least 0")
        _check(self.eval_every is None or self.eval_every > 0, "eval_every", self.eval_every, "above 0")
        _check(self.eval_batch_size >= 1, "eval_batch_size", self.eval_batch_size, "at least 1")
        _check(self.patience is None or self.patience > 0, "patience", self.patience, "above 0")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Where the run is stored, and what it reports."""

    run: str | None = setting(
        None, "folder of the run (default: runs/NAME-001, counting up)", "--run", changes="nothing"
    )
    save_every: int | None = setting(
        None, "checkpoint every so many steps (default: at each evaluation)", "--save-every", changes="records"
    )
    keep: int = setting(2, "checkpoints kept in addition to the best", "--keep", changes="nothing")
    log_every: int | None = setting(
        None, "record the training loss every so many steps", "--log-every", changes="records"
    )
    max_minutes: float | None = setting(
        None, "save and leave with exit code 75 after this long", "--max-minutes", changes="nothing"
    )
    offline: bool = setting(False, "never contact the model hub", "--offline", changes="nothing")
    report_to: tuple[str, ...] = setting(
        (), "trackers: tensorboard, wandb, mlflow, trackio", "--report-to", changes="nothing"
    )

    def __post_init__(self) -> None:
        for name in ("save_every", "log_every", "max_minutes"):
            value = getattr(self, name)
            _check(value is None or value > 0, name, value, "above 0")
        _check(self.keep >= 1, "keep", self.keep, "at least 1")


SECTIONS: dict[str, type] = {
    "data": DataConfig,
    "model": ModelConfig,
    "lora": LoraConfig,
    "train": TrainConfig,
    "evaluate": EvaluateConfig,
    "run": RunConfig,
}
SETTINGS: dict[str, str] = {
    field.name: section for section, kind in SECTIONS.items() for field in dataclasses.fields(kind)
}
CHOSEN_BY_RECIPE = frozenset({"epochs", "learning_rate", "warmup", "batch_size", "contrastive", "average", "choice"})
"""Settings that `recipe = "auto"` chooses unless the user set them (`training/recipe.py`)."""
SHORT_NAMES: dict[str, str] = {
    field.metadata["flag"].removeprefix("--").replace("-", "_"): field.name
    for kind in SECTIONS.values()
    for field in dataclasses.fields(kind)
    if field.metadata["flag"]
}
"""Flag names that differ from their setting's: `lr` is `learning_rate`."""


def _arguments() -> dict[str, tuple[str, Any]]:
    """Return the argument and its type by flag; a setting without a flag counts as one of its name."""
    found = {}
    for kind in SECTIONS.values():
        hints = get_type_hints(kind)
        for field in dataclasses.fields(kind):
            for spelling in (field.name, field.metadata["flag"].removeprefix("--")):
                found[spelling.replace("_", "-")] = (field.name, hints[field.name])
    return found


know_arguments(_arguments)


@dataclass(frozen=True, kw_only=True)
class Config:
    """All settings of one run."""

    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    lora: LoraConfig = LoraConfig()
    train: TrainConfig = TrainConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    run: RunConfig = RunConfig()
    given: frozenset[str] = frozenset()
    """Names of the settings given by the user; the recipe may choose the others."""

    def replaced(self, values: Mapping[str, Any]) -> Config:
        """Return the same settings with these changed, by name."""
        sections: dict[str, Any] = {}
        for name, value in values.items():
            section = SETTINGS[name]
            before = sections.get(section, getattr(self, section))
            sections[section] = dataclasses.replace(before, **{name: value})
        return dataclasses.replace(self, **sections)

    def flat(self) -> dict[str, Any]:
        """Return every setting by name."""
        return {name: getattr(getattr(self, section), name) for name, section in SETTINGS.items()}


def make_config(*layers: Mapping[str, Any]) -> Config:
    """Return settings from layers of names, later ones winning; strings are converted to the field's type."""
    chosen: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for layer in layers:
        for given, value in layer.items():
            name = SHORT_NAMES.get(given, given)
            section = SETTINGS.get(name)
            if section is None:
                raise UsageError(f"There is no setting {name!r}.", nearest(name, SETTINGS))
            chosen[section][name] = _coerce(SECTIONS[section], name, value)
    names = frozenset(name for values in chosen.values() for name in values)
    return Config(**{section: kind(**chosen[section]) for section, kind in SECTIONS.items()}, given=names)


def from_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return settings from WHET_NAME; other variables with that prefix raise, because they are probably typos."""
    found = {}
    for variable, value in environment.items():
        if variable.startswith("WHET_") and variable not in RESERVED_VARIABLES:
            name = variable.removeprefix("WHET_").lower()
            if name not in SETTINGS:
                raise UsageError(
                    f"The environment sets {variable}, and there is no such setting.", nearest(name, SETTINGS)
                )
            found[name] = value
    return found


MAX_TOML = 64_000
RESERVED_VARIABLES = frozenset({"WHET_CACHE", "WHET_DEBUG"})


def read_toml(path: Path) -> dict[str, Any]:
    """Return the settings of a TOML file: in sections, or plain names at the top."""
    try:
        if path.stat().st_size > MAX_TOML:
            raise UsageError(f"{str(path)!r} is larger than {MAX_TOML:,} bytes, which no settings file is.")
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"Cannot read the settings file {str(path)!r}: {error.strerror}.") from None
    except RecursionError:
        raise UsageError(f"{str(path)!r} is not a TOML file of settings: it is nested too deeply.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{str(path)!r} is not a TOML file: {error}.") from None
    flat: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, dict):
            if key not in SECTIONS:
                raise UsageError(f"{str(path)!r} has a section [{key}].", nearest(key, SECTIONS))
            flat.update(value)
        else:
            flat[key] = value
    return flat


def to_toml(config: Config) -> str:
    """Return every setting as TOML, so that the file alone describes the run. Missing means None."""
    lines: list[str] = []
    for section, kind in SECTIONS.items():
        lines.append(f"[{section}]")
        for field in dataclasses.fields(kind):
            value = getattr(getattr(config, section), field.name)
            lines.append(f"# {field.name}: not set" if value is None else f"{field.name} = {_toml(value)}")
        lines.append("")
    return "\n".join(lines)


def settings_that_change(*what: str) -> frozenset[str]:
    """Return the names of the settings that change nothing, only the records, or the training."""
    fields = [field for kind in SECTIONS.values() for field in dataclasses.fields(kind)]
    return frozenset(field.name for field in fields if field.metadata["changes"] in what)


def differences(old: Config, new: Config) -> dict[str, tuple[Any, Any]]:
    """Return the settings that differ, as (old, new)."""
    before, after = old.flat(), new.flat()
    return {name: (before[name], after[name]) for name in before if before[name] != after[name]}


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _coerce(kind: type, name: str, value: Any) -> Any:
    """Convert the value to the field's type. TOML and Python give typed values; flags and the environment give text."""
    hint = _hints(kind)[name]
    choices = [arg for arg in (get_args(hint) or (hint,)) if arg is not type(None)]
    if value is None:
        if type(None) in get_args(hint):
            return None
        raise UsageError(f"{name} cannot be empty.")
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise UsageError(f"{name} is {value!r}.", f"It must be one of {', '.join(map(str, get_args(hint)))}.")
        return value
    if get_origin(hint) is tuple:
        parts = [value] if isinstance(value, str) else value
        return tuple(part.strip() for each in parts for part in each.split(","))
    words = [word for choice in choices if get_origin(choice) is Literal for word in get_args(choice)]
    if value in words:
        return value
    target = choices[0]
    try:
        return _READERS[target](value)
    except (ValueError, TypeError):
        raise UsageError(f"{name} is {value!r}.", f"It must be {' or '.join([_NAMES[target], *words])}.") from None


def _whole(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and value != int(value)):
        raise ValueError
    return int(value)


def _number(value: Any) -> float:
    if isinstance(value, bool):
        raise ValueError
    number = float(value)
    if number != number or number in (float("inf"), float("-inf")):
        raise ValueError
    return number


def _truth(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    answer = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}.get(str(value).lower())
    if answer is None:
        raise ValueError
    return answer


def _text(value: Any) -> str:
    if not isinstance(value, str | os.PathLike):
        raise TypeError
    return os.fspath(value)


_READERS: dict[Any, Any] = {int: _whole, float: _number, bool: _truth, str: _text}
_NAMES: dict[Any, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    text = str(value)
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c >= " " and c != "\x7f" else f"\\u{ord(c):04x}" for c in escaped) + '"'
