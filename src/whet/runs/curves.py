"""Records to series: what the page, the report, the verdict and a notebook draw or judge.

found = curves(records)
found.evaluation.steps, found.evaluation.values    # two arrays of one length
found["accuracy"]                                  # any series by its name
found.frame()                                      # one DataFrame, a row a step
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from whet.errors import UsageError, missing_extra, nearest
from whet.records import End, Evaluation, Record, Resume, Save, Start, Step, start_of

if TYPE_CHECKING:
    import pandas

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SMOOTHING = 0.9
_BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, eq=False)
class Series:
    """Values by step; both arrays have the same length, and steps never fall."""

    steps: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    values: Floats = field(default_factory=lambda: np.zeros(0, np.float64))

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def last(self) -> float:
        return float(self.values[-1]) if len(self) else math.nan


@dataclass(frozen=True, eq=False, kw_only=True)
class Curves:
    """Every series of a run by name, and the steps to mark."""

    loss: Series = field(default_factory=Series)
    """The training loss as logged: with dropout, averaged since the last log."""
    smoothed: Series = field(default_factory=Series)
    """The same, smoothed exponentially without bias at the start."""
    probe: Series = field(default_factory=Series)
    """The loss on fixed training rows in evaluation mode, comparable with `evaluation`."""
    evaluation: Series = field(default_factory=Series)
    metrics: Mapping[str, Series] = field(default_factory=dict)
    learning_rate: Series = field(default_factory=Series)
    grad_norm: Series = field(default_factory=Series)
    rows_per_second: Series = field(default_factory=Series)
    memory_mb: Series = field(default_factory=Series)
    split: str = ""
    """The split of `evaluation` and `metrics`."""
    best_step: int | None = None
    saves: tuple[int, ...] = ()
    resumes: tuple[int, ...] = ()
    start: Start | None = None
    end: End | None = None

    def named(self) -> dict[str, Series]:
        """Return every non-empty series by its name in the frame and on the page."""
        every = {
            "train_loss": self.loss,
            "train_loss_smoothed": self.smoothed,
            "probe_loss": self.probe,
            "eval_loss": self.evaluation,
            **self.metrics,
            "learning_rate": self.learning_rate,
            "grad_norm": self.grad_norm,
            "rows_per_second": self.rows_per_second,
            "memory_mb": self.memory_mb,
        }
        return {name: series for name, series in every.items() if len(series)}

    def __getitem__(self, name: str) -> Series:
        found = self.named()
        if name not in found:
            raise UsageError(f"This run has no series {name!r}.", nearest(name, found))
        return found[name]

    @property
    def main(self) -> Series:
        """Return the metric that decides the best step; the first one if the run has none."""
        name = self.start.metric if self.start else next(iter(self.metrics), "")
        return self.metrics.get(name, Series())

    def frame(self) -> pandas.DataFrame:
        """Return all series side by side, one row per step, empty if a series has no point."""
        try:
            import pandas
        except ImportError:
            raise missing_extra("pandas", "dev", "A table of the curves") from None
        columns = {
            # A step that was logged twice keeps its last value: the index must be unique.
            name: pandas.Series(series.values, index=series.steps).groupby(level=0).last()
            for name, series in self.named().items()
        }
        return pandas.DataFrame(columns).rename_axis("step").sort_index()


def curves(records: Iterable[Record], split: str = "", smoothing: float = SMOOTHING) -> Curves:
    """Return the series of replayed records: of this split, or validation, or the first one."""
    kept = list(records)
    steps = [record for record in kept if isinstance(record, Step)]
    evaluations = [record for record in kept if isinstance(record, Evaluation)]
    split = split or _main_split(evaluations)
    judged = [record for record in evaluations if record.split == split]
    loss = _series((record.step, record.loss) for record in steps)
    return Curves(
        loss=loss,
        smoothed=Series(loss.steps, smooth(loss.values, smoothing)),
        probe=_series((record.step, record.probe_loss) for record in judged),
        evaluation=_series((record.step, record.loss) for record in judged),
        metrics={
            name: _series((record.step, record.metrics.get(name)) for record in judged)
            for name in dict.fromkeys(name for record in judged for name in record.metrics)
        },
        learning_rate=_series((record.step, record.learning_rate) for record in steps),
        grad_norm=_series((record.step, record.grad_norm) for record in steps),
        rows_per_second=_series((record.step, record.rows_per_second or None) for record in steps),
        memory_mb=_series((record.step, record.memory_mb or None) for record in steps),
        split=split,
        best_step=_best_step(kept),
        saves=tuple(record.step for record in kept if isinstance(record, Save)),
        resumes=tuple(record.step for record in kept if isinstance(record, Resume)),
        start=start_of(kept),
        end=next((record for record in reversed(kept) if isinstance(record, End)), None),
    )


def smooth(values: Floats, smoothing: float = SMOOTHING) -> Floats:
    """Smooth exponentially, divided by the weight so far, so that it does not start from zero.

    A value that is not finite is skipped: one bad step must not erase the rest of the line.
    """
    result = np.full(len(values), np.nan)
    total = weight = 0.0
    for index, value in enumerate(values):
        if math.isfinite(value):
            total = smoothing * total + (1 - smoothing) * float(value)
            weight = smoothing * weight + (1 - smoothing)
        if weight > 0:
            result[index] = total / weight
    return result


def window_means(loss: Series, at: Ints) -> Floats:
    """Return at each step the mean of the losses logged since the previous one, or the nearest loss."""
    upper = np.searchsorted(loss.steps, at, side="right")
    lower = np.concatenate(([0], upper[:-1])).astype(int)
    means = []
    for low, high in zip(lower, upper, strict=False):
        nearest_one = min(max(high - 1, 0), len(loss) - 1)
        means.append(float(np.mean(loss.values[low:high] if high > low else loss.values[nearest_one])))
    return np.array(means)


def downsample(steps: Ints, values: Floats, points: int) -> tuple[Ints, Floats]:
    """Return at most `points` points, with the lowest and highest of every stretch, so that no peak is lost."""
    count = len(values)
    if count <= points:
        return steps, values
    if points < 4:
        raise UsageError(f"A curve cannot be drawn with {points} points.", "It takes at least 4.")
    edges = np.linspace(1, count - 1, (points - 2) // 2 + 1).astype(int)
    kept = {0, count - 1}
    for low, high in pairwise(edges):
        stretch = values[low:high]
        if high > low:
            # A stretch without a finite value keeps its first point, so that gaps remain.
            finite = np.isfinite(stretch)
            kept.add(low + int(np.argmin(np.where(finite, stretch, np.inf))))
            kept.add(low + int(np.argmax(np.where(finite, stretch, -np.inf))))
    chosen = np.array(sorted(kept))
    return steps[chosen], values[chosen]


def sparkline(values: Sequence[float] | Floats, width: int = 12) -> str:
    """Return a line of block characters, lowest to highest; × for a value that is not finite."""
    array = np.asarray(values, np.float64)
    if len(array) == 0 or width < 1:
        return ""
    parts = np.array_split(array, min(width, len(array)))
    means = np.array([float(np.mean(part)) for part in parts])
    finite = means[np.isfinite(means)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
    span = high - low
    return "".join(
        "×" if not math.isfinite(mean) else _BARS[round((mean - low) / span * 7) if span > 0 else 3] for mean in means
    )


def _series(pairs: Iterable[tuple[int, Any]]) -> Series:
    found = sorted(((step, value) for step, value in pairs if value is not None), key=lambda pair: pair[0])
    return Series(np.array([step for step, _ in found], np.int64), np.array([value for _, value in found], np.float64))


def _main_split(evaluations: list[Evaluation]) -> str:
    seen = [record.split for record in evaluations]
    return "validation" if "validation" in seen or not seen else seen[0]


def _best_step(records: list[Record]) -> int | None:
    for record in reversed(records):
        if isinstance(record, End):
            return record.best_step
        if isinstance(record, Evaluation) and record.best:
            return record.step
    return None
