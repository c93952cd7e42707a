"""Run folders as training leaves them, with made-up sentences: what the report and the pages read in tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from whet.config import make_config
from whet.metrics.baselines import compare_baselines
from whet.metrics.majority import majority
from whet.metrics.scores import predicted, probabilities, score
from whet.records import Baselines, End, Evaluation, Record, Resume, Save, Start, Step
from whet.runs.folder import RunFolder

HOSTILE = "<script>document.title='owned'</script><img src=x onerror=alert(1)>"
LABELS = {"binary": ["different", "same"], "multiclass": ["calm", "glad", "sad"], "multilabel": ["a", "b", "c"]}
SUBJECTS = ("The baker", "A quiet river", "Her brother", "The old engine", "One of the twins", "The committee")
VERBS = ("opened", "forgot", "repaired", "described", "painted", "refused")
OBJECTS = ("the narrow door", "a letter from home", "the second plan", "every window", "the garden wall")


def build_run(
    path: Path,
    *,
    task: str = "binary",
    evaluations: int = 12,
    steps: int = 240,
    rows: int = 120,
    finished: bool = True,
    predictions: bool = True,
    test: bool = True,
    resumed: bool = False,
    hostile: bool = False,
    baselines: bool = False,
    seed: int = 0,
    labels: list[str] | None = None,
    **settings: Any,
) -> RunFolder:
    """A run of this task; `finished=False` leaves it as an interrupted process would."""
    names = labels or LABELS.get(task, [])
    if hostile:
        names = [f"{HOSTILE} {name}" for name in names]
    folder = RunFolder.create(path, make_config({"source": "reviews.csv", **settings}))
    splits = {"validation": rows, **({"test": rows} if test else {})}
    tables = {
        split: _Split(task, names, count, seed + place, hostile) for place, (split, count) in enumerate(splits.items())
    }
    folder.write_json("data.json", _data(task, names, splits))
    folder.write_json("environment.json", _environment())
    for record in _records(task, names, tables, evaluations, steps, resumed, finished):
        if baselines and isinstance(record, End):
            for split, table in tables.items():
                folder.append(baselines_record(table, split, steps))
        folder.append(record)
    if finished and predictions:
        _write_predictions(folder.path / "predictions.parquet", task, tables)
        _write_model(folder)
    return folder


def step_record(step: int, total: int = 240, seed: int = 0) -> Step:
    """One logged step of a curve that falls with some noise."""
    noise = float(np.random.default_rng([seed, step]).normal(0, 0.05))
    loss = 0.25 + 0.45 * float(np.exp(-3 * step / total)) + noise
    return Step(
        step=step,
        epoch=round(3 * step / total, 4),
        loss=round(max(loss, 0.01), 5),
        learning_rate=5e-5 * (1 - step / total),
        grad_norm=round(2 + 10 * abs(noise), 4),
        seconds=round(step * 0.25, 3),
        rows_per_second=round(64 + 20 * noise, 1),
        memory_mb=812.0,
    )


class _Split:
    """Rows with labels, and logits that get better with skill."""

    def __init__(self, task: str, names: list[str], rows: int, seed: int, hostile: bool) -> None:
        self.rng = np.random.default_rng(seed)
        self.task, self.names, self.rows = task, names, rows
        self.texts = [_sentence(self.rng) for _ in range(rows)]
        self.pairs = [_sentence(self.rng) for _ in range(rows)]
        if hostile:
            self.texts = [f"{HOSTILE} {text}" for text in self.texts]
        self.row = np.arange(1, rows + 1) + 10
        outputs = max(1, len(names))
        self.noise = self.rng.normal(0, 1.6, (rows, outputs))
        if task == "regression":
            self.labels: Any = self.rng.uniform(0, 5, rows).astype(np.float32)
        elif task == "multilabel":
            self.labels = (self.rng.random((rows, outputs)) < 0.4).astype(np.float32)
        else:
            self.labels = self.rng.choice(outputs, rows, p=_shares(outputs)).astype(np.int64)

    def logits(self, skill: float) -> np.ndarray[Any, Any]:
        if self.task == "regression":
            return (skill * self.labels[:, None] + 0.6 * self.noise).astype(np.float32)
        target = self.labels if self.task == "multilabel" else np.eye(len(self.names))[self.labels]
        return (4 * skill * (target - 0.5) + self.noise).astype(np.float32)


def _records(
    task: str,
    names: list[str],
    tables: dict[str, _Split],
    evaluations: int,
    steps: int,
    resumed: bool,
    finished: bool,
) -> Iterator[Record]:
    yield _start(task, names, tables, evaluations, steps)
    every = max(1, steps // max(1, evaluations))
    last = steps if finished else steps * 2 // 3
    best, best_step = -np.inf, -1
    for step in range(1, last + 1):
        yield step_record(step, steps)
        if evaluations and step % every == 0:
            record = _evaluation(tables["validation"], "validation", step, steps)
            main = next(iter(record.metrics.values()))
            is_best = main > best
            best, best_step = (main, step) if is_best else (best, best_step)
            yield Evaluation(**{**record.__dict__, "best": is_best})
            yield Save(
                step=step, path=f"checkpoints/step-{step:06d}", reason="best" if is_best else "schedule", seconds=0.2
            )
        if resumed and step == steps // 2:
            yield Resume(step=step, path=f"checkpoints/step-{step:06d}", time="2030-01-01T10:05:00+00:00")
    if finished:
        if "test" in tables:
            yield _evaluation(tables["test"], "test", steps, steps)
        score_there = None if best == -np.inf else float(best)
        yield End(step=steps, reason="finished", best_step=best_step, best_score=score_there, seconds=steps * 0.25)


def _start(task: str, names: list[str], tables: dict[str, _Split], evaluations: int, steps: int) -> Start:
    truth = tables["validation"].labels
    constant = majority(task, truth, truth)
    answer: Any = constant.label
    if task in ("binary", "multiclass"):
        answer = names[int(constant.label)]
    elif task == "multilabel":
        answer = [name for name, chosen in zip(names, constant.label, strict=True) if chosen]
    shares = [float(np.mean(truth == k)) for k in range(len(names))] if task in ("binary", "multiclass") else []
    return Start(
        step=0,
        total_steps=steps,
        steps_per_epoch=max(1, steps // 3),
        task=task,
        labels=names,
        rows={"train": 1280, **{name: table.rows for name, table in tables.items()}},
        prior={"train": shares, "validation": shares},
        metric={"multilabel": "micro_f1", "regression": "pearson"}.get(task, "accuracy"),
        higher_is_better=True,
        majority={"label": answer, "metric": constant.metric, "value": constant.value, **constant.scores},
        evaluations=evaluations,
        time="2030-01-01T10:00:00+00:00",
    )


def _evaluation(table: _Split, split: str, step: int, steps: int) -> Evaluation:
    skill = 0.9 * (1 - float(np.exp(-4 * step / steps))) + 0.02 * float(np.sin(step))
    logits = table.logits(skill)
    confusion, worst = [], []
    if table.task in ("binary", "multiclass"):
        said, sure = np.asarray(predicted(table.task, logits)), np.asarray(probabilities(table.task, logits))
        classes = len(table.names)
        confusion = np.bincount(table.labels * classes + said, minlength=classes**2).reshape(classes, classes).tolist()
        own = sure[np.arange(table.rows), table.labels]
        worst = [
            {
                "row": int(table.row[k]),
                "text": table.texts[k],
                "pair": table.pairs[k],
                "label": table.names[table.labels[k]],
                "predicted": table.names[said[k]],
                "probability": round(float(own[k]), 6),
            }
            for k in np.argsort(own)[:10]
            if said[k] != table.labels[k]
        ]
    return Evaluation(
        step=step,
        epoch=round(3 * step / steps, 4),
        split=split,
        loss=round(0.3 + 0.4 * float(np.exp(-4 * step / steps)) + 0.01 * float(np.sin(step)), 5),
        metrics=score(table.task, logits, table.labels),
        rows=table.rows,
        probe_loss=round(0.22 + 0.47 * float(np.exp(-4 * step / steps)), 5),
        confusion=confusion,
        worst=worst,
        seconds=0.8,
    )


def baselines_record(table: _Split, split: str, step: int) -> Baselines:
    """The model beside answers of less skill."""
    others = {"frozen": table.logits(0.5), "TF-IDF": table.logits(0.2)}
    found = compare_baselines(table.task, table.logits(0.9), table.labels, others, train_labels=table.labels)
    shown = found.as_dict()
    kept = ("name", "value", "interval", "p_value", "association", "above_commonest", "trained_on")
    return Baselines(
        step=step,
        split=split,
        metric=found.metric,
        rows=found.rows,
        value=found.value,
        interval=list(found.interval or ()),
        association=found.association,
        train_rows=1280,
        baselines=[{name: each[name] for name in kept} for each in shown["baselines"]],
        sentence=found.sentence,
        left_out=["TF-IDF: no words"] if split == "test" else [],
    )


def _write_predictions(path: Path, task: str, tables: dict[str, _Split]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    parts = []
    for split, table in tables.items():
        logits = table.logits(0.9)
        said, sure = np.asarray(predicted(task, logits)), np.asarray(probabilities(task, logits))
        several = task == "multilabel"
        kind = {"multilabel": pa.list_(pa.float32()), "regression": pa.float32()}.get(task, pa.int64())
        parts.append(
            pa.table(
                {
                    "split": pa.array([split] * table.rows),
                    "row": pa.array(table.row, pa.int64()),
                    "text": pa.array(table.texts, pa.large_string()),
                    "pair": pa.array(table.pairs, pa.large_string()),
                    "label": pa.array(list(table.labels) if several else table.labels, kind),
                    "predicted": pa.array(list(said.astype(np.float32)) if several else said.reshape(-1), kind),
                    "probability": pa.nulls(table.rows, pa.float32())
                    if task == "regression"
                    else pa.array(sure.max(axis=1).astype(np.float32)),
                    "logits": pa.array(list(logits), pa.list_(pa.float32())),
                }
            )
        )
    pq.write_table(pa.concat_tables(parts), path)


def _write_model(folder: RunFolder) -> None:
    folder.model.mkdir()
    (folder.model / "config.json").write_text("{}")


def _data(task: str, names: list[str], splits: dict[str, int]) -> dict[str, Any]:
    cut = {"rows": 14, "tokens": 212, "first_rows": 9, "first_tokens": 160, "second_rows": 5, "second_tokens": 52}
    return {
        "origin": {
            "source": "reviews.csv",
            "files": [{"split": "train", "file": "reviews.csv", "rows": 1600, "bytes": 180_000}],
            "splits": {"train": "given", "validation": "10% drawn", "test": "10% drawn"},
            "split_seed": 42,
        },
        "fingerprint": "5f3a9c2e7b1d4c60",
        "task": task,
        "labels": names,
        "columns": {"text": "first", "pair": "second", "label": "verdict"},
        "rows": {"train": 1280, **splits},
        "max_length": 128,
        "truncation": {"train": cut, **{name: {**cut, "rows": 0, "tokens": 0} for name in splits}},
        "audit": {
            "findings": [
                {
                    "severity": "warning",
                    "code": "conflict",
                    "count": 3,
                    "rows": [{"split": "train", "row": 17}, {"split": "train", "row": 204}],
                    "message": "3 texts stand there with two different labels.",
                    "advice": "Decide which label is right; whet check --json lists them.",
                }
            ]
        },
    }


def _environment() -> dict[str, Any]:
    return {
        "whet": "0.1.0",
        "python": "3.11.2",
        "platform": "Linux",
        "packages": {"torch": "2.13.0", "transformers": "5.22.0"},
        "device": "cpu",
        "device_name": "x86_64",
        "cores": 2,
        "precision": "bf16",
        "precision_why": "the processor has bf16 instructions",
    }


def _shares(outputs: int) -> list[float]:
    weights = np.linspace(1, 2, outputs)
    return list(weights / weights.sum())


def _sentence(rng: np.random.Generator) -> str:
    parts = [str(rng.choice(words)) for words in (SUBJECTS, VERBS, OBJECTS)]
    return " ".join(parts) + f" on day {rng.integers(1, 400)}."
