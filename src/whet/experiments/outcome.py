"""The result of a tuning: its trials, the comparison on the held-out rows, and the shipped run."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whet.experiments.folder import DEFAULT, PAGE, TuningFolder

if TYPE_CHECKING:
    from whet.api import Run


@dataclass(frozen=True, kw_only=True)
class TrialLine:
    """One training in the table of a tuning."""

    name: str
    state: str
    score: float | None
    """On the validation rows."""
    seconds: float
    settings: dict[str, Any]
    """The searched settings."""


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """The score of a training on the held-out rows."""

    name: str
    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The end of a tuning, as stored in `result.json`."""

    metric: str
    higher_is_better: bool
    held_out_rows: int
    held_out_from: str
    """`test` for test rows of the source, `drawn` for rows drawn from the others."""
    trials: tuple[TrialLine, ...]
    held_out: tuple[HeldOut, ...]
    """The default, and the winner on the validation rows if it is another one."""
    p_value: float | None
    """P-value of the paired test; None if the default already won on the validation rows."""
    shipped: str
    sentence: str
    importance: dict[str, float]
    """Share of the differences in score explained by each setting; empty for too few trainings."""
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> Outcome:
        return cls(
            **{
                **found,
                "trials": tuple(TrialLine(**line) for line in found["trials"]),
                "held_out": tuple(HeldOut(**each) for each in found["held_out"]),
            }
        )

    @property
    def better(self) -> bool:
        """Whether the winner is better than the default."""
        return self.shipped != DEFAULT

    def ranked(self) -> list[TrialLine]:
        """Return finished trainings from the best score down, then the others in order."""
        sign = -1 if self.higher_is_better else 1
        finished = [line for line in self.trials if line.state == "finished" and line.score is not None]
        others = [line for line in self.trials if line not in finished]
        return [*sorted(finished, key=lambda line: sign * (line.score or 0.0)), *others]


class Tuning:
    """The result of `whet.tune`. Everything is read from the folder."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.outcome = Outcome.from_dict(TuningFolder(self.path).result)

    @property
    def better(self) -> bool:
        """Whether the winner is better than the default."""
        return self.outcome.better

    @property
    def sentence(self) -> str:
        return self.outcome.sentence

    @property
    def importance(self) -> dict[str, float]:
        return self.outcome.importance

    @property
    def page(self) -> Path:
        return self.path / PAGE

    @cached_property
    def shipped(self) -> Run:
        """The run whose model to use: the winner if it is better than the default, else the default."""
        from whet.api import Run

        return Run(self.path / self.outcome.shipped)

    @property
    def settings(self) -> dict[str, Any]:
        """The searched settings of the shipped run."""
        return next(line.settings for line in self.outcome.trials if line.name == self.outcome.shipped)

    def __repr__(self) -> str:
        return f"Tuning({str(self.path)!r}, shipped={self.outcome.shipped!r})"
