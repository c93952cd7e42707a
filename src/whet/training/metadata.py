"""Describes a run at its start: data.json, environment.json and the start record."""

from __future__ import annotations

import dataclasses
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import numpy as np

import whet
from whet.metrics.majority import majority
from whet.records import Start, now
from whet.runs.folder import RunFolder
from whet.training.setup import Job
from whet.utils.arrays import Array

if TYPE_CHECKING:
    from whet.engine.network import Network
    from whet.task import Task
    from whet.utils.device import Hardware


PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "datasets",
    "accelerate",
    "safetensors",
    "numpy",
    "scikit-learn",
)


def describe_run(folder: RunFolder, job: Job, folds: Array | None = None) -> None:
    """Write data.json and environment.json. `folds` are the rows of each fold."""
    prepared = job.prepared
    folder.write_json(
        "data.json",
        {
            "origin": prepared.examples.origin,
            "fingerprint": prepared.examples.fingerprint,
            "task": prepared.examples.task.kind,
            "labels": list(prepared.examples.task.labels),
            "columns": dataclasses.asdict(prepared.examples.columns),
            "rows": {name: len(tokens) for name, tokens in prepared.tokens.items()},
            "tokens": {name: tokens.fingerprint for name, tokens in prepared.tokens.items()},
            "max_length": prepared.max_length,
            "long": prepared.config.model.long,
            "truncation": {name: dataclasses.asdict(tokens.truncation) for name, tokens in prepared.tokens.items()},
            "audit": prepared.audit.as_dict(),
            **({} if folds is None else {"folds": [int(count) for count in folds]}),
        },
    )
    if prepared.examples.dropped is not None:
        folder.write_text(prepared.examples.dropped.name, prepared.examples.dropped.read_text(encoding="utf-8"))
    packages = (*PACKAGES, "peft") if job.frozen else PACKAGES
    described = describe_environment(job.hardware, job.network, packages)
    folder.write_json("environment.json", {**described, "processes": job.ranks.world})


def describe_environment(hardware: Hardware, network: Network, packages: Sequence[str] = PACKAGES) -> dict[str, Any]:
    """Return versions, device, precision, and the engine's path with the reason for it."""
    import torch

    device = hardware.device
    return {
        "whet": whet.__version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in packages},
        "device": str(device),
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "precision": hardware.precision,
        "precision_why": hardware.why,
        "path": network.path,
        "path_why": network.why,
    }


def start_record(job: Job) -> Start:
    """Return the record with everything needed to read the curves."""
    tokens, audit = job.prepared.tokens, job.prepared.audit
    return start_of(
        job.prepared.examples.task,
        {name: split.labels for name, split in tokens.items() if split.labels is not None},
        total_steps=job.plan.total_steps,
        steps_per_epoch=job.feed.order.steps_per_epoch,
        rows={name: len(split) for name, split in tokens.items()},
        metric=job.metric,
        higher_is_better=job.plan.higher_is_better,
        evaluations=sum(job.plan.evaluate(step) for step in range(1, job.plan.total_steps + 1)),
        overlap=audit.overlap.get("validation", 0.0),
        unknown=audit.tokens.get("unknown", 0.0),
        unread=audit.tokens.get("unread", 0.0),
    )


def start_of(task: Task, labels: Mapping[str, Array], **known: Any) -> Start:
    """Return a start record with what the labels of the splits tell, beside what is known."""
    return Start(
        step=0,
        task=task.kind,
        labels=list(task.labels),
        prior={name: prior(task, each) for name, each in labels.items()},
        majority=majority_answer(task, labels.get("train"), labels.get("validation")),
        time=now(),
        **known,
    )


def majority_answer(task: Task, train: Array | None, labels: Array | None) -> dict[str, Any]:
    """Return the most common training label and the scores of always predicting it."""
    if train is None or labels is None or not len(labels):
        return {}
    found = majority(task.kind, train, labels)
    return {"label": found.named(task.labels), "metric": found.metric, "value": found.value, **found.scores}


def prior(task: Task, labels: Array) -> list[float]:
    """Return the share of each label; empty for regression."""
    if task.kind == "regression":
        return []
    if task.kind == "multilabel":
        return [float(share) for share in labels.mean(axis=0)]
    counts = np.bincount(labels, minlength=len(task.labels))
    return [float(count) / max(1, len(labels)) for count in counts]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
