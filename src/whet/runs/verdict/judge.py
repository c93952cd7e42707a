"""Judges the learning curves of a run: a sentence, its confidence, and the flag to change.

    verdict_of(records).sentence
    judge(CurveData(...)).as_dict()

Pure functions over series: the same curve gives the same verdict, during a run and long after it.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from whet.records import Baselines, End, Evaluation, Finding, Record, Start, Step
from whet.runs.curves import Curves, Series, curves, window_means
from whet.runs.score_words import always_giving, score_text
from whet.runs.verdict import wording as words
from whet.runs.verdict.baselines import baseline_ahead, largest_record, rows_in_words
from whet.runs.verdict.features import FEW_ROWS, CurveData, CurveFeatures, Floats, few_rows, jitter
from whet.runs.verdict.rules import ENOUGH, Call, first_call

VERDICTS = (
    "healthy",
    "overfitting",
    "underfitting",
    "erratic",
    "diverging",
    "plateau",
    "rate-too-high",
    "rate-too-low",
    "not-learning",
    "leak-suspected",
    "label-noise-suspected",
    "beyond-this-model",
    "text-unknown",
    "not-enough",
)
PROBLEM_VERDICTS = frozenset(VERDICTS) - {"healthy", "plateau", "not-enough", "beyond-this-model"}
_TONES = {"not-enough": "", **dict.fromkeys(("healthy", "plateau"), "good")}
_TONES |= dict.fromkeys(("underfitting", "erratic", "overfitting", "beyond-this-model"), "warn")
_WHATEVER_THE_ROWS = frozenset({"diverging", "text-unknown", "not-enough", "rate-too-high", "rate-too-low"})
"""Verdicts that depend only on the training rows: few evaluation rows do not make them less certain."""
_SETTINGS_ARE_FINE = frozenset({"healthy", "plateau", "underfitting", "not-learning"})
"""Verdicts whose own advice would not help if a simpler answer is better."""

_REPLAYS = 30


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A verdict on a run, with advice."""

    verdict: str
    sentence: str
    step: int
    confidence: float
    """From 0 to 1: the share of replays with added noise that get the same verdict."""
    numbers: dict[str, float | None] = field(default_factory=dict)
    doubt: str = ""
    """Why the verdict is uncertain, if it is: few rows, or replays that mostly get another verdict."""
    advice: str = ""
    baseline: str = ""
    """Names a simpler answer that is as good or better, with advice; else empty."""
    assumed: tuple[str, ...] = ()
    """Values that had to be guessed, because the file lacks them."""

    @property
    def tone(self) -> str:
        """Its colour on pages: good, warn, bad, or none."""
        own = _TONES.get(self.verdict, "bad")
        return "warn" if self.doubt and own == "good" else own

    def as_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "assumed": list(self.assumed), "tone": self.tone}

    def lines(self) -> list[str]:
        """Return the lines for a terminal."""
        said = [self.sentence, self.doubt, self.baseline, self.advice]
        said += [f"Assumed: {guess}." for guess in self.assumed]
        return [line for line in said if line]


def verdict_of(records: Iterable[Record]) -> Verdict:
    """Return the verdict on replayed records."""
    return judge(curve_data(list(records)))


def verdict_name(records: Iterable[Record]) -> str:
    """Return the verdict's name without its confidence, which takes most of the time."""
    return first_call(CurveFeatures(curve_data(list(records)))).verdict


def judge(data: CurveData) -> Verdict:
    """Return the verdict of the first matching rule."""
    signs = CurveFeatures(data)
    call = first_call(signs)
    replayed = _replays(signs)
    doubt = _doubt(signs, call, replayed)
    advice = _advice(signs, call, doubt)
    return Verdict(
        verdict=call.verdict,
        sentence=call.sentence,
        step=int(data.steps[call.at]) if len(data.steps) else data.nonfinite_step or 0,
        confidence=_confidence(signs, call, replayed),
        doubt=doubt,
        numbers=_numbers(signs, call),
        advice=advice
        if call.verdict == "text-unknown"
        else f"{words.partly_unknown(signs)}{advice}{words.partly_unread(signs)}",
        baseline="" if call.verdict == "beyond-this-model" else baseline(signs),
        assumed=data.assumed,
    )


def baseline(s: CurveFeatures) -> str:
    """Return a line about a simpler answer that is as good as the model on the same rows, within chance."""
    beside = s.data.baselines
    ahead = baseline_ahead(beside) if beside is not None else None
    if beside is None or ahead is None:
        return _no_better_than_constant(s)
    other, visible = ahead
    own = f"{beside.metric} {score_text(beside.metric, beside.value)}"
    rows = rows_in_words(beside)
    if visible:
        return f"Worse than {words.rival(beside, other)} on the same {rows} ({own}, p = {other['p_value']:.2g})."
    return (
        _no_better_than_constant(s)
        or f"No better than {words.rival(beside, other)}, as far as {rows} can tell ({own})."
    )


def _advice(s: CurveFeatures, call: Call, doubt: str) -> str:
    """Return the rule's advice, unless the score on the same rows contradicts it."""
    ahead = baseline_ahead(s.data.baselines) if s.data.baselines is not None else None
    if ahead is not None and ahead[1] and call.verdict in _SETTINGS_ARE_FINE:
        longer = f"Train longer ({words.epochs(s, 3)}): the model has hardly moved. " if s.tail_train_loss > 0.6 else ""
        return f"{longer}More labelled rows or a larger model (--model) would let fine-tuning pay."
    if doubt and _TONES.get(call.verdict) == "good":
        return _by_the_score(s)
    return call.advice


def _no_better_than_constant(s: CurveFeatures) -> str:
    data = s.data
    if data.score is None or data.majority is None or not len(data.score) or data.beaten:
        return ""
    best = float(np.nanmax(data.score, initial=-np.inf))
    if best > data.majority + 2 * s.error:
        return ""
    rows = f", as far as {data.rows} rows can tell" if data.rows else ""
    scores = f"({words.number(s, data.majority)}){rows}: {data.metric} at best {words.number(s, best)}"
    return f"No better than {data.answer} {scores}."


def _by_the_score(s: CurveFeatures) -> str:
    """Return the advice to go by the score, if the curve looks good but proves nothing."""
    if s.data.baselines is None:
        return "Go by the score on rows that played no part in training, not by the curve."
    return f"Go by the score, not by the curve: {words.interval(s.data.baselines)}."


def curve_data(records: Sequence[Record]) -> CurveData:
    """Return the judged series of a run, with the constants of its first record."""
    run_curves = curves(records)
    start = run_curves.start
    steps = run_curves.evaluation.steps
    score, majority, higher = _score(run_curves)
    is_regression = start is not None and start.task == "regression"
    return CurveData(
        steps=steps,
        evaluation=run_curves.evaluation.values,
        training=_training(run_curves),
        score=score,
        majority=majority,
        metric=start.metric if start else next(iter(run_curves.metrics), "metric"),
        higher_is_better=higher,
        chance=_chance(start, run_curves.split, run_curves.evaluation),
        chance_training=_chance(start, "train", run_curves.evaluation) if start and start.prior.get("train") else None,
        rows=_rows(records, run_curves),
        answer=_answer(start),
        constant="constant prediction" if is_regression else CurveData.constant,
        blind="always giving the mean" if is_regression else CurveData.blind,
        beaten=_accuracy_beats(run_curves),
        overlap=start.overlap if start else 0.0,
        unknown=start.unknown if start else 0.0,
        unread=start.unread if start else 0.0,
        probe=len(run_curves.probe) == len(steps) > 0,
        learning_rate=_peak(run_curves.learning_rate),
        epochs=start.total_steps / start.steps_per_epoch if start and start.steps_per_epoch else None,
        baselines=_beside(records),
        nonfinite_step=_nonfinite_step(records),
        assumed=() if start else ("two even classes, because the records lack the shares",),
    )


def _rows(records: Sequence[Record], run_curves: Curves) -> int:
    """Return the number of evaluation rows; with folds, all held-out rows."""
    judged = [record.rows for record in records if isinstance(record, Evaluation) and record.split == run_curves.split]
    return judged[-1] if judged else run_curves.start.rows.get(run_curves.split, 0) if run_curves.start else 0


def _beside(records: Sequence[Record]) -> Baselines | None:
    made = [record for record in records if isinstance(record, Baselines)]
    return largest_record(made) if made else None


def entropy(shares: Iterable[float]) -> float:
    """Return the loss of a model that knows only the label shares."""
    return -sum(share * math.log(share) for share in shares if share > 0)


def _chance(start: Start | None, split: str, evaluation: Series) -> float:
    """Return L0, with a lower bound, so that dividing by it does not amplify noise."""
    if start is None:
        return math.log(2)
    if start.task == "regression":
        first = float(evaluation.values[0]) if len(evaluation) else 1.0
        chance = float(start.majority.get("mse", first))
    else:
        prior = start.prior.get(split) or start.prior.get("train") or []
        parts = [entropy((share, 1 - share)) for share in prior]
        chance = sum(parts) / max(len(parts), 1) if start.task == "multilabel" else entropy(prior)
    return chance if math.isfinite(chance) and chance > 0.02 else 0.02


def _score(run_curves: Curves) -> tuple[Floats | None, float | None, bool]:
    """Return the main metric, the commonest answer's score, both with higher as better, and whether higher is
    better."""
    start = run_curves.start
    higher = start.higher_is_better if start else True
    if len(run_curves.main) != len(run_curves.evaluation) or not len(run_curves.main):
        return None, None, higher
    sign = 1.0 if higher else -1.0
    majority = start.majority.get(start.metric) if start else None
    return sign * run_curves.main.values, sign * majority if isinstance(majority, int | float) else None, higher


def _accuracy_beats(run_curves: Curves) -> bool:
    """Return whether accuracy beats the commonest answer's: the F1 of always answering "yes" is hard to beat."""
    start, series = run_curves.start, run_curves.metrics.get("accuracy")
    if start is None or series is None or start.metric == "accuracy":
        return False
    majority = start.majority.get("accuracy")
    if not isinstance(majority, int | float) or len(series) < ENOUGH:
        return False
    return CurveFeatures(
        CurveData(
            steps=series.steps,
            evaluation=np.ones(len(series)),
            score=series.values,
            chance=1.0,
            majority=float(majority),
            rows=start.rows.get(run_curves.split, 0),
        )
    ).beats_majority


def _training(run_curves: Curves) -> Floats | None:
    if len(run_curves.probe) == len(run_curves.evaluation):
        return run_curves.probe.values
    return window_means(run_curves.loss, run_curves.evaluation.steps) if len(run_curves.loss) else None


def _answer(start: Start | None) -> str:
    return always_giving(start.task, start.majority.get("label")) if start else CurveData.answer


def _peak(rates: Series) -> float | None:
    return float(np.max(rates.values)) if len(rates) else None


def _nonfinite_step(records: Sequence[Record]) -> int | None:
    """Return the step with a loss that is not finite."""
    for record in records:
        if isinstance(record, Step) and not math.isfinite(record.loss):
            return record.step
        if isinstance(record, End) and record.reason == "diverged":
            return record.step
    return None


def _replays(s: CurveFeatures) -> Counter[str]:
    """Return the verdicts on replays of the curve with added noise."""
    if s.count < ENOUGH or not s.finite:
        return Counter()
    rng = np.random.default_rng(0)
    return Counter(first_call(CurveFeatures(_replayed(s, rng))).verdict for _ in range(_REPLAYS))


def _doubt(s: CurveFeatures, call: Call, replayed: Counter[str]) -> str:
    """Return the reason for doubt. Few rows come first, because other doubts follow from them."""
    if few_rows(s) and call.verdict not in _WHATEVER_THE_ROWS:
        rows = f"{s.data.rows} evaluation rows determine a score of {s.data.metric} to {words.left_open(s)}"
        return f"Unsure: {rows}."
    other, times = next(iter(replayed.most_common(1)), (call.verdict, 0))
    if other == call.verdict or times <= replayed[call.verdict]:
        return ""
    return f"Unsure: with its own noise on top, this curve is called {other} {times} times of {_REPLAYS}."


def _confidence(s: CurveFeatures, call: Call, replayed: Counter[str]) -> float:
    """Return the share of replays with the same verdict."""
    if not replayed:
        return 1.0
    share = (replayed[call.verdict] + 1) / (_REPLAYS + 2) * s.count / (s.count + 1)
    doubt = (1.0 if s.data.probe else 0.85) * (0.85 if s.data.assumed else 1.0)
    if call.verdict not in _WHATEVER_THE_ROWS:
        doubt *= min(1.0, FEW_ROWS / max(s.left_open, 1e-9))
    return round(min(share, call.certainty) * doubt, 2)


def _replayed(s: CurveFeatures, rng: np.random.Generator) -> CurveData:
    data = s.data

    def with_noise(values: Floats, least: float) -> Floats:
        return values + rng.normal(0, max(jitter(values), least), len(values))

    return dataclasses.replace(
        data,
        evaluation=with_noise(data.evaluation, 0.003 * data.chance),
        training=None if data.training is None else with_noise(data.training, 0.003 * data.chance),
        score=None if data.score is None else with_noise(data.score, 0.1 * s.error),
    )


def _numbers(s: CurveFeatures, call: Call) -> dict[str, float | None]:
    """Return the observed numbers and the rule's own; None for a number that is not finite."""
    data = s.data
    numbers: dict[str, float] = {"evaluations": s.count, "chance_loss": data.chance}
    if s.count:
        numbers |= {"first_eval_loss": data.evaluation[0], "last_eval_loss": data.evaluation[-1]}
        if s.finite:
            numbers |= {"best_eval_loss": data.evaluation[s.best], "volatility": s.volatility}
        if data.training is not None:
            numbers["last_train_loss"] = data.training[-1]
        if data.score is not None:
            sign = 1 if data.higher_is_better else -1
            numbers |= {"best_score": sign * np.max(data.score), "last_score": sign * data.score[-1]}
            numbers["score_error"] = s.error
            if data.majority is not None:
                numbers["majority"] = sign * data.majority
    numbers |= call.numbers
    return {name: round(float(value), 6) if math.isfinite(value) else None for name, value in numbers.items()}


SURE_ENOUGH = 0.6
"""Confidence from which on a verdict is recorded before the end; below it, the next evaluation often changes it."""


def early_verdict(records: Sequence[Record], step: int) -> Finding | None:
    """Return a verdict to record before the end: certain enough, and different from the last one recorded.

    It depends on the records alone, so that a resumed run records the same.
    """

    verdict = verdict_of(records)
    told = [record for record in records if isinstance(record, Finding) and record.about == "verdict"]
    # The first early verdict is reported only if it is a problem.
    news = verdict.verdict != told[-1].details["verdict"] if told else verdict.verdict in PROBLEM_VERDICTS
    # A run that is still training has not learnt everything yet, which is no underfitting.
    if not news or verdict.verdict in ("not-enough", "underfitting") or verdict.confidence < SURE_ENOUGH:
        return None
    return Finding(step=step, about="verdict", sentence=verdict.sentence, details={"verdict": verdict.verdict})
