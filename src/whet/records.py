"""What a run says about itself: small typed records, one JSON object a line.

`records.jsonl` is the seam between the engine, which yields records, and everything that reads a run: curves,
verdict, report, live page. The file is append-only. A run that was interrupted goes on with a `Resume` record,
which takes back what was recorded after the step it resumes from: `replay` gives the records that count.
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
"""Whole numbers below it are exact in every program that reads JSON."""

AVERAGED = "averaged"
"""The split of the evaluation of the averaged weights, on the validation rows, once training has ended."""
CHOICE = "choice"
"""What the finding on the weights that are shipped is about."""

# Fields that differ from one execution of the same training to the next.
TIMINGS = frozenset({"seconds", "rows_per_second", "memory_mb", "time", "eta_seconds"})


@dataclass(frozen=True, kw_only=True)
class Record:
    """Base of all records; `step` counts optimizer steps that were completed."""

    kind: ClassVar[str] = ""
    step: int


@dataclass(frozen=True, kw_only=True)
class Start(Record):
    """What must be known to read the curves: written once, first."""

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
    """The main metric: it decides the best step and early stopping."""
    higher_is_better: bool
    majority: dict[str, Any]
    """The score of always giving the commonest answer: `label` and the value of each metric it has."""
    evaluations: int = 0
    """How many evaluations the plan holds."""
    overlap: float = 0.0
    """Share of evaluation rows whose normalised text also stands in the training split."""
    unknown: float = 0.0
    """Share of the tokens that stand for text the model's tokenizer does not know."""
    unread: float = 0.0
    """Share of the text that the model does not read, because it is longer than that."""
    folds: int = 0
    """How many folds the rows are held out in; then `validation` stands for the rows that folds held out."""
    seeds: int = 1
    """How many trainings, each with a seed of its own."""
    all_steps: int = 0
    """Steps over all parts of the run; 0 where it is one training."""
    time: str = ""


@dataclass(frozen=True, kw_only=True)
class Part(Record):
    """One training of several in a run: a fold, a seed, or the final training on all rows.

    The last record of a part stands for those before it. `step` is 0: a resume never takes it back.
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
    """Steps done in it."""
    total_steps: int = 0
    rows: int = 0
    """Rows trained on."""
    held_out: int = 0
    """Rows measured."""
    seed: int = 0
    score: float | None = None
    """The main metric of the rows that were held out, at the step that counts."""
    loss: float | None = None
    best_step: int = -1
    sha256: str = ""
    """Of the file with the logits of the rows that were held out."""
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Step(Record):
    """The training loss since the last such record (dropout on), read from the device once."""

    kind: ClassVar[str] = "step"
    epoch: float
    loss: float
    learning_rate: float
    grad_norm: float | None = None
    seconds: float = 0.0
    """Since the run began, interruptions not counted."""
    rows_per_second: float = 0.0
    memory_mb: float = 0.0
    uncompared: int = 0
    """Batches since the last such record in which the contrastive loss had no two rows of one class to compare."""


@dataclass(frozen=True, kw_only=True)
class Evaluation(Record):
    """A pass over an evaluation split, and over the fixed training probe, both in evaluation mode."""

    kind: ClassVar[str] = "evaluation"
    epoch: float
    split: str
    loss: float
    metrics: dict[str, float]
    rows: int
    probe_loss: float | None = None
    best: bool = False
    """Better than all before it; of averaged weights: whether they are the ones that are shipped."""
    error: float | None = None
    """The standard error of the main metric on these rows, where the choice of the step goes by it."""
    confusion: list[list[int]] = field(default_factory=list)
    worst: list[dict[str, Any]] = field(default_factory=list)
    """The rows the model contradicts most: `row`, `text`, `pair`, `label`, `predicted`, `probability`."""
    seconds: float = 0.0
    """What this evaluation took."""
    out_of_fold: bool = False
    """Whether each row was measured by the fold that held it out. The last such record of a step counts."""


@dataclass(frozen=True, kw_only=True)
class Baselines(Record):
    """The model beside simpler answers to the same rows of one split, measured once training is over."""

    kind: ClassVar[str] = "baselines"
    split: str
    metric: str
    rows: int
    value: float
    """The model's score on these rows."""
    interval: list[float] | None = None
    association: float = 0.0
    """How far its answers agree with the labels beyond chance, in standard deviations of shuffled labels."""
    of_rows: int | None = None
    """All rows of the split, where `rows` are a sample of them."""
    train_rows: int | None = None
    baselines: list[dict[str, Any]] = field(default_factory=list)
    """Best first: `name`, `value`, `interval`, `p_value` (paired, against the model), `association`,
    `above_commonest` (a p-value), `trained_on` where that was fewer rows than the model's."""
    sentence: str = ""
    left_out: list[str] = field(default_factory=list)
    """Baselines that could not be made, and why."""
    out_of_fold: bool = False
    """Whether each row was answered by trainings that had not seen its fold."""


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
    """Training goes on from this step; what was recorded after it no longer counts."""

    kind: ClassVar[str] = "resume"
    path: str
    note: str = ""
    evaluated: bool = True
    """Whether the checkpoint was saved after this step's evaluation; otherwise the evaluation is done again."""
    evaluation_rows: int = 0
    """Rows per evaluation batch in the checkpoint; batches that were made smaller later are made smaller again."""
    time: str = ""


@dataclass(frozen=True, kw_only=True)
class Finding(Record):
    """A sentence for people: a verdict on the curves, a fallback, a micro-batch that was halved."""

    kind: ClassVar[str] = "finding"
    about: str
    """`verdict`, `memory`, `engine`, `data`, `divergence`, `choice`."""
    sentence: str
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class End(Record):
    """Training is over; `reason` is `finished`, `patience`, `deadline`, `interrupted` or `diverged`.

    `pruned` and `stopped` are the trials of a tuning: others were better, or its time was up.
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
    """One JSON object on one line; numbers that are not finite become strings, for JSON has none."""
    fields = {name.name: getattr(record, name.name) for name in dataclasses.fields(record)}
    return json.dumps({"v": VERSION, "kind": record.kind, **_finite(fields)}, ensure_ascii=False)


def from_line(line: str) -> Record | None:
    """The record on this line; None for a kind or a field that this version does not know how to read.

    ValueError for a line that is none, or whose values are not of the kinds that the fields are for: the file may
    have come from anywhere, and everything that reads records relies on their types.
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
    """Whether a value of JSON is what a field of this type takes; a whole number is a number too."""
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
    """The records that count, in the order of their steps: a `Resume` takes back everything done again after it.

    A save is recorded when its files are complete, a few steps later; sorting puts it back to its own step.
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
    """Whether the newer record stands for the older one."""
    if isinstance(new, Start):  # written again where a run went on with other settings: all parts begin again
        return isinstance(old, Start | Part) or (isinstance(old, Evaluation) and old.out_of_fold)
    if isinstance(new, Part):
        return isinstance(old, Part) and (old.name, old.number) == (new.name, new.number)
    if isinstance(new, Evaluation) and new.out_of_fold:
        return isinstance(old, Evaluation) and old.out_of_fold and (old.step, old.split) == (new.step, new.split)
    return False


def _taken_back(record: Record, resume: Resume) -> bool:
    """Whether the resumed run records it again."""
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
    """Whether this is recorded between the last step and the end of the run: resuming comes to it again."""
    if isinstance(record, Evaluation):
        return record.split in ("test", AVERAGED)
    return isinstance(record, Baselines) or (isinstance(record, Finding) and record.about == CHOICE)


def start_of(records: Iterable[Record]) -> Start | None:
    """The first record of a run that has begun to train."""
    return next((record for record in records if isinstance(record, Start)), None)


def shipped_evaluation(records: Iterable[Record], split: str = "validation") -> Evaluation | None:
    """The evaluation of the weights that are shipped; before the end, that of the best step, else the last one."""
    splits = (split, AVERAGED) if split == "validation" else (split,)
    seen = [record for record in records if isinstance(record, Evaluation) and record.split in splits]
    candidates = [record for record in seen if record.best] or [record for record in seen if record.split == split]
    return candidates[-1] if candidates else None


def without_timings(record: Record) -> dict[str, Any]:
    """The part of a record that two executions of the same training share."""
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
    """The time of day, for people; nothing is ordered by it."""
    return datetime.now(UTC).isoformat(timespec="seconds")
