"""Summarises the parts of a run: the scores of folds and seeds, and the shipped weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from whet.records import Part, Record, start_of


@dataclass(frozen=True, kw_only=True)
class SeedTable:
    """The validation scores of all seeds, and of the average of their weights."""

    metric: str
    seeds: tuple[int, ...]
    scores: tuple[float, ...]
    steps: tuple[int, ...]
    best: int
    """The index of the best seed; of equal ones, that with the lower loss."""
    averaged: float
    ships_average: bool

    @property
    def mean(self) -> float:
        return sum(self.scores) / len(self.scores)

    @property
    def deviation(self) -> float:
        """The standard deviation over seeds."""
        squares = sum((score - self.mean) ** 2 for score in self.scores)
        return math.sqrt(squares / max(1, len(self.scores) - 1))

    def sentence(self) -> str:
        """The mean, and the shipped model with the reason."""
        told = f"{self.metric} {self.mean:.4f} ± {self.deviation:.4f} over {len(self.seeds)} seeds. "
        average = f"the average of their weights ({self.averaged:.4f})"
        if self.ships_average:
            return f"{told}Shipped: {average}, better than their mean."
        return f"{told}Shipped: seed {self.seeds[self.best]} ({self.scores[self.best]:.4f}); {average} is no better."

    def text(self) -> str:
        """One row per seed."""
        rows = [f"{'seed':>6}  {self.metric:>9}  step"]
        rows += [
            f"{seed:>6}  {score:>9.4f}  {step}"
            for seed, score, step in zip(self.seeds, self.scores, self.steps, strict=True)
        ]
        return "\n".join([*rows, self.sentence()])

    def as_dict(self) -> dict[str, Any]:
        return {
            "metric": self.metric,
            "seeds": list(self.seeds),
            "scores": list(self.scores),
            "steps": list(self.steps),
            "mean": self.mean,
            "deviation": self.deviation,
            "averaged": self.averaged,
            "shipped": "average" if self.ships_average else self.seeds[self.best],
        }


def seed_table(members: Sequence[Part], metric: str, higher_is_better: bool, averaged: float) -> SeedTable:
    """Return the trainings side by side; the average is shipped if it is better than their mean."""
    sign = 1 if higher_is_better else -1
    scores = tuple(float(part.score if part.score is not None else math.nan) for part in members)
    order = sorted(range(len(members)), key=lambda k: (-sign * scores[k], members[k].loss or 0.0, k))
    return SeedTable(
        metric=metric,
        seeds=tuple(part.seed for part in members),
        scores=scores,
        steps=tuple(part.best_step for part in members),
        best=order[0],
        averaged=averaged,
        ships_average=sign * averaged > sign * sum(scores) / len(scores),
    )


def parts_sentence(records: Sequence[Record]) -> str:
    """Describe how the score of a run with folds was measured; empty for one training."""
    start = start_of(records)
    if start is None or not start.folds:
        return ""
    done = [part for part in _parts(records) if part.name == "fold" and part.score is not None]
    scores = [part.score for part in done if part.score is not None]
    spread = ""
    if len(scores) == start.folds:
        spread = f" Fold by fold: {start.metric} {min(scores):.4f} to {max(scores):.4f}."
    rows = start.rows.get("validation", 0)
    return (
        f"Each of {rows:,} rows was scored by the one of {start.folds} folds that held it out; the model that is kept "
        f"learnt from all {start.rows.get('train', 0):,}.{spread}"
    )


def parts_as_dicts(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return the parts of a run for `--json`, without fields that only resuming needs."""
    names = ("name", "number", "of", "seed", "rows", "held_out", "steps", "score", "loss", "best_step")
    return [{name: getattr(part, name) for name in names} for part in _parts(records)]


def _parts(records: Sequence[Record]) -> list[Part]:
    return [record for record in records if isinstance(record, Part)]
