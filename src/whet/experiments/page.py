"""The page of a tuning: the result, the effect of the settings, and all trainings side by side."""

from __future__ import annotations

from pathlib import Path

from whet.experiments.folder import DRAWN, GIVEN, TuningFolder
from whet.experiments.outcome import Outcome
from whet.runs.compare import compare
from whet.runs.report.compare_html import Lead, write_comparison
from whet.runs.score_words import score_text

ROWS_FROM = {GIVEN: "the test rows of the source", DRAWN: "drawn before the first training"}


def write_page(folder: TuningFolder, outcome: Outcome, path: Path) -> None:
    """Write tuning.html: the result above a comparison of all trainings."""
    finished = sum(line.state == "finished" for line in outcome.trials)
    scores = "; ".join(
        f"{each.name} {score_text(outcome.metric, each.value)} "
        f"({score_text(outcome.metric, each.low)} to {score_text(outcome.metric, each.high)})"
        for each in outcome.held_out
    )
    lead = Lead(
        title=f"Tuning {folder.path.resolve().name}",
        sentences=(
            outcome.sentence,
            f"On {outcome.held_out_rows:,} rows that no training saw ({ROWS_FROM[outcome.held_out_from]}): {scores}.",
        ),
        shares=outcome.importance,
        shares_title=f"What explains the differences between {finished} trainings",
    )
    found = compare([folder.path / line.name for line in outcome.trials], "validation")
    write_comparison(found, path, lead)
