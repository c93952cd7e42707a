"""whet.json in the model folder: the temperature of the probabilities, and what was decided for its use.

Written at the end of training (the temperature) and by `whet decide`; read by predict, serve and export. Libraries
that load the folder pass the file over.
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
    """How the logits of this model are to be read."""

    temperature: float = 1.0
    """Logits are divided by it; 1 where the rows could not tell."""
    calibrated_on: dict[str, Any] = field(default_factory=dict)
    """How many rows of which split, and why the temperature is 1 where it is."""
    goal: str = ""
    thresholds: dict[str, float] = field(default_factory=dict)
    """Of the calibrated probability, by label; for one label a row there is one."""
    abstain: float | None = None
    """The error to keep to by leaving rows to a person."""
    confidence: float | None = None
    """Below it a row is left to a person."""
    coverage: float | None = None
    limit: float | None = None
    """The strangeness up to which a label belongs into the set; for regression the half width."""
    expected: dict[str, Any] = field(default_factory=dict)
    """What to expect of each, with intervals: by `goal`, `abstain`, `coverage`."""

    @property
    def decided(self) -> bool:
        """Whether there is more than a temperature."""
        return bool(self.thresholds) or self.abstain is not None or self.coverage is not None

    def to_json(self) -> str:
        """The content of the file."""
        return json.dumps({"format": FORMAT, **dataclasses.asdict(self)}, indent=1) + "\n"


def read_decisions(model: Path) -> Decisions:
    """Those of a model folder; probabilities as the model gives them where it has none."""
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
