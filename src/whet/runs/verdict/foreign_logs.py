"""Reads the curves of other tools for `whet verdict`.

| file                 | what is read                                                                  |
|----------------------|-------------------------------------------------------------------------------|
| a run folder         | its records                                                                   |
| `records.jsonl`      | the same, on its own                                                          |
| `trainer_state.json` | the log of a stock Trainer: `loss`, `eval_loss`, `eval_accuracy` or what is there |
| `checkpoint-300/`    | the same, found in a checkpoint or in the newest one of an output folder      |
| a CSV                | columns `step, train_loss, eval_loss, metric`, or what other tools call them |
"""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from whet.errors import DataError, UsageError
from whet.records import Record, from_line, replay
from whet.runs.curves import Series, window_means
from whet.runs.folder import CONFIG, RECORDS, RunFolder
from whet.runs.score_words import is_number
from whet.runs.verdict.features import CurveData
from whet.runs.verdict.judge import curve_data, entropy
from whet.utils.untrusted_files import parse_json, read_text

MAX_LOG = 1_000_000_000


STATE = "trainer_state.json"
# Keys of a stock Trainer's log that are not scores.
_NOT_SCORES = ("loss", "runtime", "samples_per_second", "steps_per_second", "model_preparation_time")
_PREFERRED = ("accuracy", "f1", "matthews_correlation", "macro_f1", "pearson", "spearmanr")
# Columns of a CSV under the names of other tools; the first match counts.
_SCORES = ("accuracy", "acc", "f1", "macro_f1", "matthews_correlation", "pearson", "spearmanr")
_COLUMNS = {
    "step": ("step", "global_step", "steps", "epoch"),
    "train_loss": ("train_loss", "training_loss", "loss"),
    "eval_loss": ("eval_loss", "val_loss", "validation_loss", "valid_loss"),
    "metric": ("metric", *(f"{split}{name}" for split in ("eval_", "val_", "") for name in _SCORES)),
}


@dataclass(frozen=True, kw_only=True)
class Constants:
    """Facts that a bare curve does not contain."""

    majority: float | None = None
    """The score of always predicting the commonest answer."""
    classes: int | None = None
    rows: int | None = None
    """Number of evaluation rows."""

    def __post_init__(self) -> None:
        if self.majority is not None and not 0 <= self.majority <= 1:
            raise UsageError(f"--majority is {self.majority:g}.", "It is a share from 0 to 1.")
        if self.classes is not None and self.classes < 2:
            raise UsageError(f"--classes is {self.classes}.", "There are at least 2.")
        if self.rows is not None and self.rows < 1:
            raise UsageError(f"--rows is {self.rows}.", "There is at least 1.")
        if self.majority is not None and self.classes and self.majority < 0.8 / self.classes:
            raise UsageError(
                f"--majority is {self.majority:g} and --classes {self.classes}.",
                f"The commonest of {self.classes} has at least {1 / self.classes:.3f} of the rows.",
            )


def read_observed(path: Path, constants: Constants | None = None) -> CurveData:
    """Return the curve in a run folder or in any of the files in the table above."""
    known = constants or Constants()
    if path.is_dir() and (state := _state_of(path)):
        return _from_trainer_state(state, known)
    if path.is_dir():
        if known != Constants():
            raise UsageError(
                f"{str(path)!r} is a run, whose records replace --majority, --classes and --rows.",
                "Leave them out.",
            )
        return curve_data(RunFolder.open(path).records())
    if not path.is_file():
        raise UsageError(f"There is no run or file {str(path)!r}.", "`whet runs` lists the runs there are.")
    if path.name == RECORDS or path.suffix == ".jsonl":
        return _with(curve_data(read_records(path)), known)
    if path.suffix == ".json":
        return _from_trainer_state(path, known)
    return _from_csv(path, known)


def _state_of(folder: Path) -> Path | None:
    """Return the log of a stock Trainer in a checkpoint, or in the newest checkpoint of its output folder."""
    if any((folder / name).exists() for name in (RECORDS, CONFIG)):
        return None
    numbered = {int(number): each for each in folder.glob("checkpoint-*") if (number := each.name[11:]).isdigit()}
    places = [folder, *(numbered[number] for number in sorted(numbered, reverse=True))]
    return next((place / STATE for place in places if (place / STATE).is_file()), None)


def read_records(path: Path) -> list[Record]:
    """Return the valid records of a single file; an incomplete last line is skipped."""
    records = []
    lines = _text(path).split("\n")
    for number, line in enumerate(lines, 1):
        try:
            record = from_line(line) if line.strip() else None
        except ValueError:
            if number == len(lines):
                break
            raise DataError("this line is not a record.", file=str(path), row=number) from None
        if record is not None:
            records.append(record)
    if not records:
        raise DataError("there is no record in this file.", file=str(path))
    return list(replay(records))


def _with(seen: CurveData, known: Constants) -> CurveData:
    """Replace recorded constants by given ones."""
    if known == Constants():
        return seen
    classes = known.classes or 2
    chance = _chance(classes, known.majority) if known.classes or known.majority is not None else seen.chance
    return dataclasses.replace(
        seen,
        chance=chance,
        chance_training=seen.chance_training if chance == seen.chance else None,
        majority=seen.majority if known.majority is None else known.majority,
        rows=known.rows or seen.rows,
        assumed=(),
    )


def _from_trainer_state(path: Path, known: Constants) -> CurveData:
    """Split `log_history` into training losses and evaluations, by their keys."""
    try:
        content = parse_json(_text(path))
    except ValueError as error:
        raise DataError(f"this is not JSON: {error}.", file=str(path)) from None
    history = content.get("log_history") if isinstance(content, dict) else None
    if not isinstance(history, list):
        raise DataError("there is no log_history, so this is no trainer_state.json.", file=str(path))
    logs = [entry for entry in history if isinstance(entry, dict) and isinstance(entry.get("step"), int | float)]
    logs.sort(key=lambda entry: entry["step"])
    prefix = _evaluation_prefix(logs)
    evaluations = _last_of_each([entry for entry in logs if is_number(entry.get(f"{prefix}loss"))])
    losses = [(float(entry["step"]), float(_unhidden(entry))) for entry in logs if is_number(entry.get("loss"))]
    if not evaluations:
        raise DataError("the log holds no evaluation.", 'Train with eval_strategy="steps" to have one.', file=str(path))
    metric = _main_score(evaluations[0], prefix)
    return _bare(
        steps=[entry["step"] for entry in evaluations],
        evaluation=[float(entry[f"{prefix}loss"]) for entry in evaluations],
        running=losses,
        score=[_number_or_nan(entry.get(f"{prefix}{metric}")) for entry in evaluations] if metric else [],
        metric=metric or "metric",
        known=known,
        probe=False,
        learning_rate=max((_number_or_nan(entry.get("learning_rate", 0)) for entry in logs), default=0) or None,
        epochs=_number_or_nan(content.get("num_train_epochs", 0)) or None,
        batch_size=int(_number_or_nan(content.get("train_batch_size", 0))) or None,
    )


def _evaluation_prefix(logs: list[dict[str, Any]]) -> str:
    """Return `eval_`, or with several evaluation sets the prefix of the first: `eval_matched_`."""
    names = [key for entry in logs for key in entry if key.startswith("eval_") and key.endswith("_loss")]
    return "eval_" if "eval_loss" in names or not names else names[0].removesuffix("loss")


def _last_of_each(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Keep the last entry per step, since evaluations may be repeated after an interruption."""
    return list({entry["step"]: entry for entry in entries}.values())


def _number_or_nan(value: Any) -> float:
    return float(value) if is_number(value) else math.nan


def _unhidden(entry: Mapping[str, Any]) -> Any:
    """Return nan for the loss of 0.0 that the stock Trainer logs instead, recognised by the gradient."""
    norm = entry.get("grad_norm")
    hidden = entry["loss"] == 0.0 and isinstance(norm, float) and not math.isfinite(norm)
    return math.nan if hidden else entry["loss"]


def _main_score(evaluation: Mapping[str, Any], prefix: str) -> str:
    """Return the main score: the log does not name it, so the usual ones come first."""
    names = [
        key.removeprefix(prefix)
        for key, value in evaluation.items()
        if key.startswith(prefix) and isinstance(value, int | float)
    ]
    names = [name for name in names if name not in _NOT_SCORES]
    return next((name for name in _PREFERRED if name in names), names[0] if names else "")


def _from_csv(path: Path, known: Constants) -> CurveData:
    """Read a CSV. An empty cell means "not measured"; `nan` is a loss that is not a number."""
    lines = _text(path).splitlines()
    head = lines[0] if lines else ""
    delimiter = max(",;\t", key=head.count)
    reader = csv.DictReader(lines, skipinitialspace=True, delimiter=delimiter)
    names = [name.strip().lower() for name in reader.fieldnames or []]
    for name in names:
        if names.count(name) > 1:
            raise DataError(f"the column {name} is there twice.", file=str(path), row=1)
    found = {ours: next((name for name in theirs if name in names), "") for ours, theirs in _COLUMNS.items()}
    if not found["eval_loss"]:
        raise DataError(
            f"there is no column eval_loss; found: {', '.join(names) or 'none'}.",
            "whet verdict reads columns step, train_loss, eval_loss, metric.",
            file=str(path),
            row=1,
        )
    reader.fieldnames = names
    comma = delimiter == ";"  # with semicolons as separators, a comma is often the decimal point
    rows = [_numbers(path, reader.line_num, row, found, comma) for row in reader]
    numbered = [row if "step" in row else {**row, "step": at} for at, row in enumerate(rows, 1)]
    numbered.sort(key=lambda row: row["step"])
    measured = [row for row in numbered if "eval_loss" in row]
    evaluations = _last_of_each(measured)
    if not evaluations:
        raise DataError(f"the column {found['eval_loss']} is empty.", file=str(path))
    if len(measured) > 2 * len(evaluations):
        raise DataError(
            f"{len(measured)} evaluations are at {len(evaluations)} different steps.",
            f"Number them in the column {found['step']}, or leave that column out.",
            file=str(path),
        )
    losses = [(row["step"], row["train_loss"]) for row in numbered if "train_loss" in row]
    scored = any("metric" in row for row in evaluations)
    return _bare(
        steps=[row["step"] for row in evaluations],
        evaluation=[row["eval_loss"] for row in evaluations],
        running=losses,
        score=[row.get("metric", math.nan) for row in evaluations] if scored else [],
        metric=found["metric"].removeprefix("eval_").removeprefix("val_") or "metric",
        known=known,
        # A training loss next to each evaluation is taken as measured at the same step.
        probe=all("train_loss" in row for row in evaluations) and len(losses) == len(evaluations),
    )


def _numbers(
    path: Path, line: int, row: Mapping[str | None, Any], columns: Mapping[str, str], comma: bool
) -> dict[str, float]:
    found = {}
    if any((cell or "").strip() for cell in row.get(None) or []):
        raise DataError(f"this row has more than the {len(row) - 1} cells of the header.", file=str(path), row=line)
    for name, column in columns.items():
        text = (row.get(column) or "").strip()
        if not text:
            continue
        try:
            found[name] = float(text.replace(",", ".") if comma else text)
        except ValueError:
            raise DataError(
                f"{text!r} is not a number.",
                "Leave a cell empty where nothing was measured.",
                file=str(path),
                row=line,
                column=column,
            ) from None
    if not abs(found.get("step", 0.0)) < 2**53:
        raise DataError("the step is not a number that a step can have.", file=str(path), row=line, column="step")
    return found


def _bare(
    *,
    steps: list[Any],
    evaluation: list[float],
    running: list[tuple[float, float]],
    score: list[float],
    metric: str,
    known: Constants,
    probe: bool,
    learning_rate: float | None = None,
    epochs: float | None = None,
    batch_size: int | None = None,
) -> CurveData:
    """Return a curve with the given constants and guesses for the others."""
    assumed = []
    if any(float(step) != int(step) for step in steps):  # epochs and parts of them
        assumed.append("the evaluations are numbered from 1, for their steps are no whole numbers")
        places = dict(zip(steps, range(1, len(steps) + 1), strict=True))
        running = [(int(np.searchsorted(steps, step)) + 1, loss) for step, loss in running]
        steps = [places[step] for step in steps]
    at = np.array(steps, np.int64)
    logged = Series(
        np.array([int(step) for step, _ in running], np.int64), np.array([loss for _, loss in running], np.float64)
    )
    scores = np.array(score, np.float64)
    highest = float(np.nanmax(scores, initial=0))
    if highest > 1.5:
        scores = scores / 100
        assumed.append(f"the {metric} is in percent, for it reaches {highest:g}")
    elif highest > 1 and metric in (*_SCORES, "metric"):
        raise DataError(f"the {metric} reaches {highest:g}, and 1 is the most it can be.", "Write shares or percent.")
    missing = int(np.sum(np.isnan(scores)))
    if missing and missing < len(scores):
        assumed.append(f"the {metric} of {missing} evaluations is that of their neighbours")
        whole = np.flatnonzero(np.isfinite(scores))
        scores = np.interp(np.arange(len(scores)), whole, scores[whole])
    classes = known.classes
    if classes is None:
        classes = _guessed_classes(running or list(zip(steps, evaluation, strict=True)))
        assumed.append(f"{classes} classes (--classes sets another number)")
    majority = known.majority
    if majority is None:
        # Before training the score is that of one answer, and classes need not be equally common.
        untrained = len(scores) and evaluation[0] > 0.85 * math.log(classes) and 0 < scores[0] < 1
        majority = max(1 / classes, float(scores[0])) if untrained else 1 / classes
        assumed.append(f"the commonest class has {majority:.1%} of the rows (--majority)")
    if known.rows is None:
        assumed.append("400 evaluation rows (--rows)")
    return CurveData(
        steps=at,
        evaluation=np.array(evaluation, np.float64),
        training=window_means(logged, at) if running else None,
        score=scores if score and np.all(np.isfinite(scores)) else None,
        chance=_chance(classes, majority),
        majority=majority if metric not in ("matthews_correlation", "pearson", "spearmanr") else 0.0,
        rows=known.rows or 400,
        metric=metric,
        probe=probe,
        learning_rate=learning_rate,
        epochs=epochs,
        batch_size=batch_size,
        assumed=tuple(assumed),
    )


def _guessed_classes(losses: list[tuple[float, float]]) -> int:
    """Guess the number of classes: training starts near its logarithm."""
    first = losses[0][1] if losses else 0.0
    return round(math.exp(first)) if 0.9 < first < 5 else 2


def _chance(classes: int, majority: float | None) -> float:
    """Return L0 if only the commonest class's share is known: the other classes count as equally common."""
    share = min(max(majority or 0.0, 1 / classes), 0.999)
    return entropy([share, *[(1 - share) / (classes - 1)] * (classes - 1)])


def _text(path: Path) -> str:
    try:
        return read_text(path, MAX_LOG)
    except UnicodeDecodeError as error:
        raise DataError(f"this is not UTF-8 text (byte {error.start}).", file=str(path)) from None
    except ValueError as error:
        raise DataError(f"{error}.", file=str(path)) from None
    except OSError as error:
        raise UsageError(f"Cannot read {str(path)!r}: {error.strerror}.") from None
