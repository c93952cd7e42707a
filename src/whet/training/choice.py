"""Chooses the weights that a run ships: those of one step, or the running mean of its last steps.

On a small evaluation split many steps have almost the same score, and the highest is as often the luckiest as the
best. So the `steady` rule first checks whether two scores differ by more than the standard error of one. If they do
not, the lower loss wins, and the averaged weights win over all unless they are clearly worse. Everything here is a
function of records, so a resumed run chooses like an uninterrupted one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from whet.records import AVERAGED, CHOICE, Evaluation, Finding, Record


@dataclass(frozen=True)
class Rule:
    """Compares two evaluations on the same rows."""

    metric: str
    higher_is_better: bool = True
    min_improvement: float = 0.0
    steady: bool = False
    """Whether scores must differ by more than their standard error; if not, the highest score is the best."""

    def score(self, record: Evaluation) -> float | None:
        """Return the deciding number of an evaluation; None if it lacks the metric."""
        return record.metrics.get(self.metric, record.loss if self.metric == "loss" else None)

    def replaces(self, new: Evaluation, best: Evaluation | None) -> bool:
        """Return whether a later evaluation replaces the best one so far."""
        if best is None:
            return self.score(new) is not None
        gain, margin = self.gain(new, best), self.margin(new, best)
        if not self.steady or gain is None:
            return gain is not None and gain > margin
        return gain > margin or (gain >= -margin and new.loss <= best.loss)

    def keeps_average(self, averaged: Evaluation, best: Evaluation | None) -> bool:
        """Return whether to ship the averaged weights instead of the best step's."""
        if best is None:
            return True
        gain, margin = self.gain(averaged, best), self.margin(averaged, best)
        if gain is None:
            return False
        return gain >= -margin if self.steady else gain > margin

    def gain(self, new: Evaluation, best: Evaluation) -> float | None:
        """Return the first score's advantage; None if a score is missing."""
        after, before = self.score(new), self.score(best)
        if after is None or before is None:
            return None
        return after - before if self.higher_is_better else before - after

    def margin(self, new: Evaluation, best: Evaluation) -> float:
        """Return the smallest difference of two scores that these rows can show."""
        if not self.steady:
            return self.min_improvement
        return max(self.min_improvement, new.error or 0.0, best.error or 0.0)


@dataclass(frozen=True)
class Choice:
    """The shipped weights, and a sentence with the reason."""

    step: int
    averaged: bool
    sentence: str

    def finding(self, step: int) -> Finding:
        """Return the record of the choice, for a run that ended at this step."""
        details = {"step": self.step, "averaged": self.averaged}
        return Finding(step=step, about=CHOICE, sentence=self.sentence, details=details)


def best_of(records: Iterable[Record], rule: Rule) -> Evaluation | None:
    """Return the best evaluation by the rule, applied in order."""
    best: Evaluation | None = None
    for record in records:
        if isinstance(record, Evaluation) and record.split == "validation" and rule.replaces(record, best):
            best = record
    return best


def choose(records: Iterable[Record], rule: Rule, last_step: int) -> Choice:
    """Choose from the evaluations of a finished run, including the averaged weights'.

    The best step is the last one marked as best: the only one whose checkpoint certainly exists.
    """
    best = averaged = None
    for record in records:
        if isinstance(record, Evaluation) and record.split == "validation" and record.best:
            best = record
        elif isinstance(record, Evaluation) and record.split == AVERAGED:
            averaged = record
    if averaged is None:
        return Choice(best.step if best else last_step, False, "")
    if best is None:
        return Choice(last_step, True, "")
    kept = rule.keeps_average(averaged, best)
    return Choice(last_step if kept else best.step, kept, _reason(rule, averaged, best, kept))


def _reason(rule: Rule, averaged: Evaluation, best: Evaluation, kept: bool) -> str:
    """Describe the choice, its reason and both scores."""
    gain, step, rows = rule.gain(averaged, best) or 0.0, f"step {best.step}", f"{best.rows:,} rows"
    scores = f"{rule.metric} {rule.score(averaged):.4f} and {rule.score(best):.4f}"
    if kept:
        alike = f"as good as {step} as far as {rows} can tell"
        why = f"better than {step} on {rows}" if gain > rule.margin(averaged, best) else alike
        return f"Shipped: the averaged weights of the last steps, {why} ({scores})."
    why = "worse" if gain < 0 else "no better"
    return f"Shipped: {step}. The averaged weights of the last steps are {why} on {rows} ({scores})."
