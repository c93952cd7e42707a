"""What a tuning found: its trials, the winner beside the default on rows that no trial saw, and what is shipped."""

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
    """Those that were searched."""


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """A training measured on the rows that no trial saw."""

    name: str
    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The end of a tuning, as `result.json` keeps it."""

    metric: str
    higher_is_better: bool
    held_out_rows: int
    held_out_from: str
    """`test` for test rows of the source, `drawn` for rows that were drawn from its others."""
    trials: tuple[TrialLine, ...]
    held_out: tuple[HeldOut, ...]
    """The default, and the winner on the validation rows where that is another one."""
    p_value: float | None
    """Of the paired test of the two; None where the default won on the validation rows already."""
    shipped: str
    sentence: str
    importance: dict[str, float]
    """The share of the differences in score that each setting explains; empty for too few trainings."""
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
        """Whether something better than the default was found."""
        return self.shipped != DEFAULT

    def ranked(self) -> list[TrialLine]:
        """Finished trainings from the best score down, then the others in order."""
        sign = -1 if self.higher_is_better else 1
        finished = [line for line in self.trials if line.state == "finished" and line.score is not None]
        others = [line for line in self.trials if line not in finished]
        return [*sorted(finished, key=lambda line: sign * (line.score or 0.0)), *others]


class Tuning:
    """What `whet.tune` returns. Everything is read from the folder."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.outcome = Outcome.from_dict(TuningFolder(self.path).result)

    @property
    def better(self) -> bool:
        """Whether something better than the default was found."""
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
        """The run whose model to use: the winner where it is better than the default, else the default."""
        from whet.api import Run

        return Run(self.path / self.outcome.shipped)

    @property
    def settings(self) -> dict[str, Any]:
        """The searched settings of the run that is shipped."""
        return next(line.settings for line in self.outcome.trials if line.name == self.outcome.shipped)

    def __repr__(self) -> str:
        return f"Tuning({str(self.path)!r}, shipped={self.outcome.shipped!r})"
