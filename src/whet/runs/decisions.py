"""whet.json in the model folder: the temperature of the probabilities and the decisions for its use.

It is written at the end of training (the temperature) and by `whet decide`, and read by predict, serve and export.
Other libraries ignore the file.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whet.errors import ArtifactError

FILE = "whet.json"
FORMAT = 1


@dataclass(frozen=True)
class Decisions:
    """How to turn this model's logits into answers."""

    temperature: float = 1.0
    """Divisor of the logits; 1 if the rows could not determine it."""
    calibrated_on: dict[str, Any] = field(default_factory=dict)
    """The number of rows and their split, and the reason if the temperature is 1."""
    goal: str = ""
    thresholds: dict[str, float] = field(default_factory=dict)
    """Thresholds on the calibrated probability by label; with one label per row there is one."""
    abstain: float | None = None
    """The largest accepted share of wrong answers, reached by leaving rows unanswered."""
    confidence: float | None = None
    """Rows below this confidence are left unanswered."""
    coverage: float | None = None
    limit: float | None = None
    """The largest nonconformity of labels in a set; for regression half the width of the interval."""
    expected: dict[str, Any] = field(default_factory=dict)
    """The expected results with intervals, by `goal`, `abstain` and `coverage`."""

    @property
    def decided(self) -> bool:
        """Whether there is more than a temperature."""
        return bool(self.thresholds) or self.abstain is not None or self.coverage is not None

    def to_json(self) -> str:
        """Return the content of the file."""
        return json.dumps({"format": FORMAT, **dataclasses.asdict(self)}, indent=1) + "\n"


def read_decisions(model: Path) -> Decisions:
    """Return the decisions of a model folder; plain probabilities if it has none."""
    path = model / FILE
    if not path.is_file():
        return Decisions()
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.pop("format") != FORMAT:
            raise ArtifactError(f"{str(path)!r} was written by another version of whet.", "Run whet decide again.")
        found = Decisions(**content)
        numbers = [found.temperature, found.confidence, found.limit, *found.thresholds.values()]
        if not found.temperature > 0 or any(not isinstance(each, int | float | None) for each in numbers):
            raise ValueError
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ArtifactError(
            f"{str(path)!r} is damaged: it does not hold decisions.", "Run whet decide again, or delete the file."
        ) from None
    return found
