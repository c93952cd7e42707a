"""The end of a tuning: the winner and the default are compared on the held-out rows by a paired test."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from whet.config import Config, DataConfig
from whet.data.examples import load_examples
from whet.experiments.folder import DEFAULT, TuningFolder
from whet.experiments.outcome import HeldOut
from whet.experiments.search import FINISHED, Trial
from whet.metrics.scores import evidence, higher_is_better
from whet.runs.compare import Difference, Predicted, difference, score_of
from whet.runs.score_words import score_text


def winner_of(trials: Sequence[Trial], *, higher: bool) -> Trial:
    """Return the trial with the best validation score; of equal ones the first, which may be the default."""
    finished = [trial for trial in trials if trial.state == FINISHED and trial.score is not None]
    sign = 1 if higher else -1
    return max(finished, key=lambda trial: (sign * (trial.score or 0.0), -trial.number))


def answers(folder: TuningFolder, name: str, data: DataConfig, config: Config, metric: str) -> Predicted:
    """Return the predictions of a run on the held-out rows."""
    from whet.inference.predictor import Predictor

    predictor = Predictor(
        folder.path / name,
        device=config.train.device,
        precision=config.train.precision,
        trust_remote_code=config.model.trust_remote_code,
    )
    task = predictor.task
    rows = load_examples(str(folder.held_out), data, labelled=False, task=task).rows["test"]
    logits = predictor.logits(rows.column("text"), rows.column("pair") or None)
    labels = np.asarray(rows.column("label"))
    return Predicted(list(range(len(labels))), labels, evidence(task.kind, metric, logits))


def measured(name: str, answer: Predicted, metric: str) -> HeldOut:
    found = score_of(answer, metric)
    return HeldOut(name=name, value=found.value, low=found.low, high=found.high)


def beside_default(name: str, default: Predicted, winner: Predicted, metric: str) -> tuple[Difference, bool]:
    """Compare the winner with the default, and return whether it is significantly better."""
    found = difference(DEFAULT, name, default, winner, metric, "held-out")
    test = found.test
    better = test is not None and test.visible and (test.difference > 0) == higher_is_better(metric)
    return found, better


def sentence_of(others: int, shipped: str, score: HeldOut, metric: str, rows: int, found: Difference | None) -> str:
    """Describe the result."""
    if found is None:
        known = f"{metric} {score_text(metric, score.value)} on {rows:,} held-out rows"
        tried = f"None of {others} other trainings" if others != 1 else "The other training did not score"
        verb = " scored higher" if others != 1 else " higher"
        return f"{tried}{verb} than the default on the validation rows. Shipped: {DEFAULT} ({known})."
    verdict = "Better than the default" if shipped != DEFAULT else "Not better than the default"
    return f"{verdict}. {found.sentence} Shipped: {shipped}."
