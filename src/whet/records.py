"""Records of a run: small typed objects, one JSON object per line.

The engine's loop yields records, and everything that reads a run uses them alone: curves, verdict, report, live page.
`records.jsonl` is append-only. A resumed run adds a `Resume` record, which voids the records after its step; `replay`
returns the valid ones.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Any, ClassVar, get_args, get_origin, get_type_hints

VERSION = 1
_LARGEST = 2**53
"""Integers below this are exact in every program that reads JSON."""

AVERAGED = "averaged"
"""The split name for the evaluation of the averaged weights on the validation rows, at the end."""
CHOICE = "choice"
"""The `about` of the finding on the shipped weights."""

FEW_UNKNOWN = 0.03
"""Share of unknown tokens from which on they are spoken of: names and symbols make up less."""
MUCH_UNREAD = 0.05
"""Share of the text from which on it is said that it is not read."""

# Fields that differ between two executions of the same training.
TIMINGS = frozenset({"seconds", "rows_per_second", "memory_mb", "time", "eta_seconds"})


@dataclass(frozen=True, kw_only=True)
class Record:
    """Base of all records; `step` is the number of completed optimizer steps."""

    kind: ClassVar[str] = ""
    step: int


@dataclass(frozen=True, kw_only=True)
class Start(Record):
    """Everything needed to read the curves; the first record."""

    kind: ClassVar[str] = "start"
    total_steps: int
    steps_per_epoch: int
    task: str
    labels: list[str]
    rows: dict[str, int]
    """Rows by split."""
    prior: dict[str, list[float]]
    """Share of each label, by split (empty for regression)."""
    metric: str
    """The main metric, which decides the best step and early stopping."""
    higher_is_better: bool
    majority: dict[str, Any]
    """The commonest answer, `label`, and the scores of always predicting it."""
    evaluations: int = 0
    """Number of planned evaluations."""
    overlap: float = 0.0
    """Share of evaluation rows whose normalised text is also in the training split."""
    unknown: float = 0.0
    """Share of tokens for text that the tokenizer cannot represent."""
    unread: float = 0.0
    """Share of the text beyond the model's length limit."""
    folds: int = 0
    """Number of folds; with folds, `validation` stands for the held-out rows."""
    seeds: int = 1
    """Number of trainings with different seeds."""
    all_steps: int = 0
    """Steps over all parts of the run; 0 for one training."""
    time: str = ""


@dataclass(frozen=True, kw_only=True)
class Part(Record):
    """One of several trainings in a run: a fold, a seed, or the final training on all rows.

    The last record of a part replaces the earlier ones. `step` is 0, so that a resume never voids it.
    """

    kind: ClassVar[str] = "part"
    name: str
    """`fold`, `seed` or `final`."""
    number: int
    """Counted from 1."""
    of: int
    state: str
    """`running` or `done`."""
    steps: int = 0
    """Completed steps."""
    total_steps: int = 0
    rows: int = 0
    """Number of training rows."""
    held_out: int = 0
    """Number of held-out rows."""
    seed: int = 0
    score: float | None = None
    """The main metric of the held-out rows at the chosen step."""
    loss: float | None = None
    best_step: int = -1
    sha256: str = ""
    """SHA-256 of the file with the logits of the held-out rows."""
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Step(Record):
    """The training loss since the last such record (with dropout), read from the device once."""

    kind: ClassVar[str] = "step"
    epoch: float
    loss: float
    learning_rate: float
    grad_norm: float | None = None
    seconds: float = 0.0
    """Since the run started, without interruptions."""
    rows_per_second: float = 0.0
    memory_mb: float = 0.0
    uncompared: int = 0
    """Batches since the last such record in which no two rows had the same class for the contrastive loss."""


@dataclass(frozen=True, kw_only=True)
class Evaluation(Record):
    """The result of an evaluation split and of the fixed training probe, both in evaluation mode."""

    kind: ClassVar[str] = "evaluation"
    epoch: float
    split: str
    loss: float
    metrics: dict[str, float]
    rows: int
    probe_loss: float | None = None
    best: bool = False
    """Whether it is better than all before; for averaged weights, whether they are shipped."""
    error: float | None = None
    """The standard error of the main metric on these rows, if the choice of the step uses it."""
    confusion: list[list[int]] = field(default_factory=list)
    worst: list[dict[str, Any]] = field(default_factory=list)
    """The most wrong rows: `row`, `text`, `pair`, `label`, `predicted`, `probability`."""
    seconds: float = 0.0
    """Duration of this evaluation."""
    out_of_fold: bool = False
    """Whether each row was evaluated by the fold that held it out. The last such record of a step counts."""


@dataclass(frozen=True, kw_only=True)
class Baselines(Record):
    """The model and its baselines on the same rows of one split, measured after training."""

    kind: ClassVar[str] = "baselines"
    split: str
    metric: str
    rows: int
    value: float
    """The model's score on these rows."""
    interval: list[float] | None = None
    association: float = 0.0
    """Agreement of its answers with the labels beyond chance, in standard deviations over shuffled labels."""
    of_rows: int | None = None
    """Number of rows of the split, if `rows` are a sample."""
    train_rows: int | None = None
    baselines: list[dict[str, Any]] = field(default_factory=list)
    """Best first: `name`, `value`, `interval`, `p_value` (paired, against the model), `association`,
    `above_commonest` (a p-value), `trained_on` if it had fewer training rows than the model."""
    sentence: str = ""
    left_out: list[str] = field(default_factory=list)
    """Baselines that failed, with the reason."""
    out_of_fold: bool = False
    """Whether each row was predicted by trainings without its fold."""


@dataclass(frozen=True, kw_only=True)
class Save(Record):
    """A checkpoint that is complete on disk."""

    kind: ClassVar[str] = "save"
    path: str
    reason: str = "schedule"
    """`schedule`, `best` or `interrupted`."""
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Resume(Record):
    """Training resumes from this step; later records are void."""

    kind: ClassVar[str] = "resume"
    path: str
    note: str = ""
    evaluated: bool = True
    """Whether the checkpoint includes this step's evaluation; otherwise the evaluation is repeated."""
    evaluation_rows: int = 0
    """Rows per evaluation batch in the checkpoint; later reductions are found again."""
    time: str = ""


@dataclass(frozen=True, kw_only=True)
class Finding(Record):
    """A sentence for the user: a verdict, a fallback, a micro-batch that was halved."""

    kind: ClassVar[str] = "finding"
    about: str
    """`verdict`, `memory`, `engine`, `data`, `divergence`, `choice`."""
    sentence: str
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class End(Record):
    """The end of training; `reason` is `finished`, `patience`, `deadline`, `interrupted` or `diverged`.

    `pruned` and `stopped` are trials of a tuning: others were better, or its time was up.
    """

    kind: ClassVar[str] = "end"
    reason: str
    best_step: int
    best_score: float | None = None
    seconds: float = 0.0


KINDS: dict[str, type[Record]] = {
    record.kind: record for record in (Start, Part, Step, Evaluation, Finding, Save, Resume, End, Baselines)
}


def to_line(record: Record) -> str:
    """Return one JSON object on one line; numbers that are not finite become strings, because JSON has none."""
    fields = {name.name: getattr(record, name.name) for name in dataclasses.fields(record)}
    return json.dumps({"v": VERSION, "kind": record.kind, **_finite(fields)}, ensure_ascii=False)


def from_line(line: str) -> Record | None:
    """Return the record of this line; None for a kind or field that this version does not know.

    Raises ValueError for an invalid line or a value of the wrong type. The file may come from anywhere, and all
    readers of records rely on their types.
    """
    try:
        found = json.loads(line)
    except RecursionError:
        raise ValueError("the line is nested too deeply") from None
    if not isinstance(found, dict) or not isinstance(found.get("kind", ""), str):
        raise ValueError("the line is no record")
    kind = KINDS.get(found.get("kind", ""))
    if kind is None:
        return None
    fields = _field_types(kind.kind)
    values = {name: _restored(value) for name, value in found.items() if name in fields}
    for name, value in values.items():
        if not _is_of(value, fields[name]):
            raise ValueError(f"{name} is of another type")
    try:
        return kind(**values)
    except TypeError as error:  # a field is missing
        raise ValueError(str(error)) from None


@cache
def _field_types(kind: str) -> dict[str, Any]:
    hints = get_type_hints(KINDS[kind])
    return {field.name: hints[field.name] for field in dataclasses.fields(KINDS[kind])}


def _is_of(value: Any, hint: Any) -> bool:
    """Return whether a JSON value fits the field's type; integers are numbers too."""
    if hint is Any:
        return True
    if hint is int:
        return type(value) is int and abs(value) < _LARGEST
    if hint is float:
        return type(value) in (float, bool) or (type(value) is int and abs(value) < _LARGEST)
    if hint in (str, bool):
        return type(value) is hint
    origin, inner = get_origin(hint), get_args(hint)
    if origin is list:
        return type(value) is list and all(_is_of(item, inner[0]) for item in value)
    if origin is dict:
        return type(value) is dict and all(_is_of(item, inner[1]) for item in value.values())
    return any(_is_of(value, each) if each is not type(None) else value is None for each in inner)


def replay(records: Iterable[Record]) -> Iterator[Record]:
    """Return the valid records, in the order of their steps: a `Resume` voids everything that is repeated after it.

    A save is recorded when its files are complete, a few steps later; sorting moves it to its own step.
    """
    kept: list[Record] = []
    for record in records:
        if isinstance(record, Resume):
            kept = [old for old in kept if not _taken_back(old, record)]
        if isinstance(record, Start | Part) or (isinstance(record, Evaluation) and record.out_of_fold):
            kept = [old for old in kept if not _replaced(old, record)]
        kept.append(record)
    yield from sorted(kept, key=_place)


def _place(record: Record) -> tuple[int, ...]:
    if isinstance(record, Part):
        return record.step, list(KINDS).index(record.kind), record.name == "final", record.number
    if _at_the_end(record):
        return record.step, len(KINDS)
    return record.step, (len(KINDS) + 1 if isinstance(record, End) else list(KINDS).index(record.kind))


def _replaced(old: Record, new: Record) -> bool:
    """Return whether the newer record replaces the older one."""
    if isinstance(new, Start):  # written again if a run continued with other settings: all parts start again
        return isinstance(old, Start | Part) or (isinstance(old, Evaluation) and old.out_of_fold)
    if isinstance(new, Part):
        return isinstance(old, Part) and (old.name, old.number) == (new.name, new.number)
    if isinstance(new, Evaluation) and new.out_of_fold:
        return isinstance(old, Evaluation) and old.out_of_fold and (old.step, old.split) == (new.step, new.split)
    return False


def _taken_back(record: Record, resume: Resume) -> bool:
    """Return whether the resumed run records it again."""
    if isinstance(record, Resume) or (isinstance(record, Evaluation) and record.out_of_fold):
        return False
    at_the_end = isinstance(record, End) or _at_the_end(record)
    if at_the_end or record.step != resume.step:
        return at_the_end or record.step > resume.step
    if isinstance(record, Finding) and "evaluation_rows" in record.details:
        return int(record.details["evaluation_rows"]) < resume.evaluation_rows
    if isinstance(record, Evaluation) or (isinstance(record, Finding) and record.about == "verdict"):
        return not resume.evaluated
    # A process can die between completing a checkpoint and recording it, so the save is recorded after the resume.
    return isinstance(record, Save)


def _at_the_end(record: Record) -> bool:
    """Return whether this is recorded between the last step and the end of the run, which a resume repeats."""
    if isinstance(record, Evaluation):
        return record.split in ("test", AVERAGED)
    return isinstance(record, Baselines) or (isinstance(record, Finding) and record.about == CHOICE)


def start_of(records: Iterable[Record]) -> Start | None:
    """Return the start record of a run that has begun to train."""
    return next((record for record in records if isinstance(record, Start)), None)


def shipped_evaluation(records: Iterable[Record], split: str = "validation") -> Evaluation | None:
    """Return the evaluation of the shipped weights; before the end, that of the best step, else the last one."""
    splits = (split, AVERAGED) if split == "validation" else (split,)
    seen = [record for record in records if isinstance(record, Evaluation) and record.split in splits]
    candidates = [record for record in seen if record.best] or [record for record in seen if record.split == split]
    return candidates[-1] if candidates else None


def without_timings(record: Record) -> dict[str, Any]:
    """Return the part of a record that two executions of the same training share."""
    return {
        "kind": record.kind,
        **{key: value for key, value in dataclasses.asdict(record).items() if key not in TIMINGS},
    }


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _restored(value: Any) -> Any:
    if isinstance(value, str):
        return _NOT_FINITE.get(value, value)
    if isinstance(value, dict):
        return {key: _restored(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_restored(item) for item in value]
    return value


def now() -> str:
    """Return the time of day for display; nothing is sorted by it."""
    return datetime.now(UTC).isoformat(timespec="seconds")
