"""Folders of many runs: each with settings and a score of its own, with records as long as asked for."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import numpy as np

from tests.run_folders import step_record
from whet.config import make_config, to_toml
from whet.records import End, Evaluation, Record, Start, to_line

VARIANTS = 10
"""Files of records that differ; further runs are links to them, so that hundreds of long runs are made in seconds."""
EVALUATIONS = 12


def build_many(root: Path, count: int, steps: int = 60) -> Path:
    """So many finished runs, `run-000` and up, with other rates, batches and seeds."""
    for number in range(count):
        folder = root / f"run-{number:03d}"
        folder.mkdir(parents=True)
        rate = float(f"{1e-5 * 1.3 ** (number % 12):.2g}")
        config = make_config(
            {"source": "reviews.csv", "learning_rate": rate, "batch_size": (8, 16, 32)[number % 3], "seed": number}
        )
        (folder / "config.toml").write_text(to_toml(config))
        original = root / f"run-{number % VARIANTS:03d}" / "records.jsonl"
        if number < VARIANTS:
            original.write_text("".join(to_line(record) + "\n" for record in _records(number, steps)))
        else:
            os.link(original, folder / "records.jsonl")
    return root


def score_of(number: int) -> float:
    """What run `number` reaches: a share of 200 rows."""
    return (150 + 4 * (number % VARIANTS)) / 200


def _records(number: int, steps: int) -> list[Record]:
    found: list[Record] = [_start(steps)]
    every = steps // EVALUATIONS
    for step in range(1, steps + 1):
        record = step_record(step % 500, 500) if steps > 1000 else step_record(step, steps, number)
        loss = record.loss + float(np.exp(-4 * step / steps))
        found.append(dataclasses.replace(record, step=step, loss=round(loss, 5), epoch=round(3 * step / steps, 4)))
        if step % every == 0:
            found.append(_evaluation(step, step / steps, number, last=step == every * EVALUATIONS))
    best = every * EVALUATIONS
    found.append(End(step=steps, reason="finished", best_step=best, best_score=score_of(number), seconds=60.0 + number))
    return found


def _start(steps: int) -> Start:
    return Start(
        step=0,
        task="binary",
        labels=["no", "yes"],
        metric="accuracy",
        higher_is_better=True,
        total_steps=steps,
        steps_per_epoch=max(1, steps // 3),
        prior={"train": [0.5, 0.5], "validation": [0.5, 0.5]},
        evaluations=EVALUATIONS,
        rows={"train": 1000, "validation": 200},
        majority={"accuracy": 0.5, "label": "no"},
    )


def _evaluation(step: int, share: float, number: int, *, last: bool) -> Evaluation:
    reached = score_of(number)
    return Evaluation(
        step=step,
        epoch=3 * share,
        split="validation",
        rows=200,
        loss=round(0.3 + 0.4 * float(np.exp(-3 * share)) + 0.01 * (number % VARIANTS), 5),
        metrics={"accuracy": reached if last else round(0.5 + (reached - 0.5) * float(1 - np.exp(-4 * share)), 4)},
        best=last,
    )
