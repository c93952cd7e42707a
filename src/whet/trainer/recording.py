"""The run folder of a Trainer: output_dir holds what `whet verdict`, `report`, `watch` and `compare` read."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from whet.config import to_toml
from whet.errors import EnvironmentFault
from whet.metrics.scores import predicted, score
from whet.records import Evaluation, Start, now
from whet.runs.folder import CONFIG, RECORDS, RunFolder
from whet.task import Task
from whet.trainer.predictions import Predicted, labels_fit
from whet.training.evaluation import confusion_matrix
from whet.training.metadata import describe_environment, majority_answer, prior

if TYPE_CHECKING:
    from whet.engine.network import Network
    from whet.trainer.arguments import TrainingArguments
    from whet.training.plan import Plan
    from whet.utils.device import Hardware

TRAINER = "trainer.json"
Array = np.ndarray[Any, Any]


def open_folder(args: TrainingArguments, model_name: str, *, resuming: bool) -> tuple[RunFolder, str]:
    """output_dir as a run folder and the mark of its run; a new training takes back an earlier one's records."""
    path = Path(args.output_dir or "")
    try:
        path.mkdir(parents=True, exist_ok=True)
        folder = RunFolder(path)
        known = folder.read_json(TRAINER)
        if resuming and known.get("run"):
            folder.drop_torn_line()
            return folder, str(known["run"])
        (path / RECORDS).unlink(missing_ok=True)
    except OSError as error:
        raise EnvironmentFault(f"Cannot write to output_dir {str(path)!r}: {error.strerror or error}.") from None
    run = secrets.token_hex(8)
    folder.write_text(CONFIG, to_toml(args.to_config(model_name)))
    folder.write_json(TRAINER, {"run": run, "arguments": json.loads(args.to_json_string())})
    return folder, run


def changed_arguments(folder: RunFolder, args: TrainingArguments) -> dict[str, tuple[Any, Any]]:
    """Arguments that differ from those the run was begun with."""
    before = folder.read_json(TRAINER).get("arguments", {})
    after = json.loads(args.to_json_string())
    free = {"output_dir", "resume_from_checkpoint", "save_total_limit", "report_to", "log_level", "disable_tqdm"}
    return {
        name: (before[name], after[name])
        for name in after
        if name in before and name not in free and before[name] != after[name]
    }


def describe(
    folder: RunFolder,
    hardware: Hardware,
    network: Network,
    task: Task | None,
    rows: Mapping[str, int],
    fingerprint: str,
    processes: int,
) -> None:
    """data.json and environment.json, as far as a Trainer knows the data."""
    folder.write_json(
        "data.json",
        {
            "origin": {"files": [], "split": "given to the Trainer"},
            "fingerprint": fingerprint,
            "task": task.kind if task else "",
            "labels": list(task.labels) if task else [],
            "columns": {},
            "rows": dict(rows),
            "truncation": {},
            "audit": {"findings": []},
        },
    )
    folder.write_json("environment.json", {**describe_environment(hardware, network), "processes": processes})


def start_record(
    plan: Plan,
    steps_per_epoch: int,
    task: Task,
    labels: Mapping[str, Array | None],
    rows: Mapping[str, int],
    evaluations: int,
) -> Start:
    """What must be known to read the curves."""
    known = {name: each for name, each in labels.items() if each is not None and len(each) and labels_fit(each, task)}
    return Start(
        step=0,
        total_steps=plan.total_steps,
        steps_per_epoch=steps_per_epoch,
        task=task.kind,
        labels=list(task.labels),
        rows=dict(rows),
        prior={name: prior(task, each) for name, each in known.items()},
        metric=plan.metric,
        higher_is_better=plan.higher_is_better,
        majority=majority_answer(task, known.get("train"), known.get("validation")),
        evaluations=evaluations,
        time=now(),
    )


def evaluation_record(
    step: int,
    epoch: float,
    task: Task | None,
    found: Predicted | None,
    metrics: Mapping[str, Any],
    probe_loss: float | None,
) -> Evaluation:
    """One evaluation: whet's own scores of the task, and over them what `compute_metrics` gave."""
    own = own_scores(found, task) if found else {}
    confusion: list[list[int]] = []
    if own and found and task and task.kind in ("binary", "multiclass"):
        answers = np.asarray(predicted(task.kind, found.logits))
        confusion = confusion_matrix(found.labels, answers, len(task.labels))
    loss = metrics.get("eval_loss", found.loss if found and found.loss is not None else float("nan"))
    return Evaluation(
        step=step,
        epoch=round(epoch, 6),
        split="validation",
        loss=float(loss),
        metrics=own | numbers(metrics),
        rows=found.rows if found else 0,
        probe_loss=probe_loss,
        confusion=confusion,
        seconds=float(metrics.get("eval_runtime", 0.0)),
    )


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The scores among a Trainer's metrics, without the prefix and without timings."""
    timings = ("runtime", "samples_per_second", "steps_per_second")
    return {
        name.removeprefix("eval_"): float(value)
        for name, value in metrics.items()
        if isinstance(value, int | float) and name not in ("epoch", "eval_loss") and not name.endswith(timings)
    }


def own_scores(found: Predicted, task: Task | None) -> dict[str, float]:
    """The task's metrics, where the predictions are of a shape that has them."""
    if task is None or not _scorable(found, task):
        return {}
    return {name: float(value) for name, value in score(task.kind, found.logits, found.labels).items()}


def _scorable(found: Predicted, task: Task) -> bool:
    logits, labels = found.logits, found.labels
    if not isinstance(logits, np.ndarray) or not isinstance(labels, np.ndarray) or logits.ndim != 2:
        return False
    return logits.shape == (len(labels), task.outputs) and labels_fit(labels, task)
