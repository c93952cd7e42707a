"""The rules of the verdict: one function each, in the order of `RULES`; the first match wins.

The thresholds are in units of L0 (see `features`) and of the score's standard error. docs/curves.md has them and
their tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from whet.records import FEW_UNKNOWN
from whet.runs.score_words import score_text
from whet.runs.verdict import wording as words
from whet.runs.verdict.baselines import (
    above_commonest,
    is_ahead,
    is_visible,
    labels_to_blame,
    name_in_full,
    rows_in_words,
)
from whet.runs.verdict.features import (
    ENOUGH_REACH,
    MOVED,
    ROWS_TO_BLAME,
    CurveFeatures,
    as_good_as_best,
    collapsed,
    crawls,
    learnt_nothing,
    levelled,
    overlaps,
    rank_correlation,
    reach,
    rise,
    rises_while_training_falls,
    score_lost,
)

ENOUGH = 4
"""Number of evaluations below which only a loss that is not finite can be judged."""
MAX_UNKNOWN = 0.5
"""Share of unknown tokens above which nothing else about a run matters."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """The result of a rule."""

    verdict: str
    sentence: str
    advice: str
    at: int = -1
    """Index of the evaluation that the sentence refers to."""
    numbers: dict[str, float] = field(default_factory=dict)
    certainty: float = 1.0
    """Upper bound for the confidence: some signs have more than one cause."""


Rule = Callable[[CurveFeatures], Call | None]


def not_finite(s: CurveFeatures) -> Call | None:
    if s.finite:
        return None
    whole = np.isfinite(s.eval_loss) & np.isfinite(s.train_loss)
    at = int(np.argmin(whole)) if not np.all(whole) else s.count - 1
    step = words.step(s, at) if s.data.nonfinite_step is None else s.data.nonfinite_step
    return Call(
        verdict="diverging",
        sentence=f"Diverged: the loss was not a finite number at step {step}.",
        advice=f"Lower the rate tenfold ({words.rate(s, 0.1)}), warm up (--warmup 0.1) and clip (--clip 1.0).",
        at=at,
    )


def text_unknown(s: CurveFeatures) -> Call | None:
    """Most tokens are unknown: no curve can say anything about the settings."""
    if s.data.unknown < MAX_UNKNOWN:
        return None
    score = "" if s.data.score is None or not s.count else f"; {words.score(s)}"
    return Call(
        verdict="text-unknown",
        sentence=f"Text unknown: {s.data.unknown:.0%} of the tokens stand for what this model does not know{score}.",
        advice=f"Choose a model that knows this writing, {words.OTHER_MODEL}; settings will not help.",
        at=s.count - 1,
        numbers={"unknown": s.data.unknown},
    )


def not_enough(s: CurveFeatures) -> Call | None:
    if s.count >= ENOUGH:
        return None
    return Call(
        verdict="not-enough",
        sentence=f"Not enough evaluations to judge: {s.count}, and it takes {ENOUGH}.",
        advice="Evaluate more often: --evaluations 12.",
        at=s.count - 1,
    )


def diverging(s: CurveFeatures) -> Call | None:
    """The training rows themselves got worse: far above chance, or back to chance after learning."""
    low = int(np.argmin(s.calm_train_loss))
    lost = s.calm_train_loss[low] < 0.7 and (
        s.tail_train_loss > 0.95 or np.min(s.train_loss[-2:]) > max(1.1, 4 * s.calm_train_loss[low])
    )
    # A head that starts far off and improves without a jump is slow, not diverging.
    above = s.tail_train_loss > 1.5 and (rank_correlation(s.train_loss) > -0.6 or s.leap > 0.1)
    if not (lost or above or collapsed(s)):
        return None
    end = max(s.tail_train_loss, float(np.mean(s.train_loss[-2:])))
    what, before, after = "training", words.train_loss(s, s.train_loss[low]), words.train_loss(s, end)
    if not (s.has_training and (lost or above)):
        low = s.best
        what, before, after = "evaluation", words.loss(s, s.eval_loss[low]), words.loss(s, s.eval_loss[-1])
    return Call(
        verdict="diverging",
        sentence=(
            f"Diverging: {what} loss went from {before} at step {words.step(s, low)} to {after}; {words.chance(s)}."
        ),
        advice=f"Lower the rate tenfold ({words.rate(s, 0.1)}), warm up (--warmup 0.1) and clip (--clip 1.0).",
        at=low,
        numbers={"lowest_train_loss": float(s.train_loss[low] * s.data.chance)},
    )


def rate_too_high(s: CurveFeatures) -> Call | None:
    """The loss jumps above chance: at the end, or for most of the run until the rate had fallen."""
    highest = float(np.max(s.eval_loss))
    # On a short curve a bend looks rough, so rough curves must also turn or jump.
    rough = (s.volatility > 0.02 and s.flips > 0.2) or s.leap > 0.05
    steady = s.order < -0.8 and s.leap < 0.1
    # A curve at chance has two causes that look alike; an unusual learning rate decides.
    known = (s.data.learning_rate or 0) >= 2e-4
    never = learnt_nothing(s) and (known or (highest > 1.1 and rough and not steady))
    idle = float(np.mean(s.eval_loss[1:] > 0.97))
    late = s.tail_train_loss > 0.6 and idle > 0.5 and float(np.max(s.eval_loss[1:])) > 1.1 and rough and not steady
    if not (never or (late and not rises_while_training_falls(s))):
        return None
    at = int(np.argmax(s.eval_loss))
    thrown = f"evaluation loss is thrown about, up to {words.loss(s, s.eval_loss[at])} at step {words.step(s, at)}"
    rate = f"{s.data.learning_rate or 0:.2g}"
    stuck = f"nothing learnt at a rate of {rate}, evaluation loss {words.loss(s, s.tail_eval_loss)}"
    return Call(
        verdict="rate-too-high",
        sentence=(
            f"Learning rate too high: {thrown if s.eval_loss[at] > 1.05 and rough else stuck}, "
            f"where {words.chance(s)}; {words.score(s)}."
        ),
        advice=f"Lower the rate ({words.rate(s, 0.05, '2e-5')}) and warm up (--warmup 0.1).",
        at=at,
        numbers={"highest_eval_loss": float(s.eval_loss[at] * s.data.chance)},
    )


def rate_too_low(s: CurveFeatures) -> Call | None:
    """A slow fall with unchanged answers; underfitting has improved some answers."""
    short = learnt_nothing(s) and reach(s) < ENOUGH_REACH
    # Training below chance but evaluation above means the label shares and memorised rows, whatever the rate. At a
    # usual rate, a loss clearly below chance needs more steps.
    by_heart = s.tail_train_loss < 0.995 and s.tail_eval_loss > 1.0
    enough = (s.data.learning_rate or 0) >= 1e-5 and (by_heart or s.tail_eval_loss < 0.97)
    creeps = (
        not s.beats_majority
        and s.tail_eval_loss > 0.85
        and s.tail_eval_loss - s.tail_train_loss < 0.15
        and crawls(s)
        and not enough
    )
    if not (short or creeps):
        return None
    first, last = words.loss(s, s.eval_loss[0]), words.loss(s, s.eval_loss[-1])
    fell = f"evaluation loss falls steadily but only from {first} to {last}"
    stayed = (
        f"{words.step(s, -1)} steps at {s.data.learning_rate or 0:.2g} can move a weight by {reach(s):.1g} at most; "
        f"evaluation loss went from {words.loss(s, s.eval_loss[0])} to {words.loss(s, s.eval_loss[-1])}"
    )
    return Call(
        verdict="rate-too-low",
        sentence=f"Learning rate too low or too few steps: {fell if crawls(s) else stayed}; {words.score(s)}.",
        advice=f"Raise the rate 3 to 10 times ({words.rate(s, 5)}), or train longer ({words.epochs(s, 3)}).",
        at=s.count - 1,
    )


def beyond_this_model(s: CurveFeatures) -> Call | None:
    """The training is fine, and neither the model nor a baseline does better than the commonest answer."""
    found = s.data.baselines
    if found is None or s.beats_majority or s.lowest_eval_loss <= 0.9 or above_commonest(found) or labels_to_blame(s):
        return None
    trained = reach(s) >= MOVED or s.tail_train_loss < 0.9
    constant = next((each for each in found.baselines if each["name"] == "commonest"), None)
    if not trained or constant is None or (is_visible(constant) and not is_ahead(found, constant)):
        return None
    name = name_in_full(found, "commonest")
    scores = f"{score_text(found.metric, found.value)}, {name} {score_text(found.metric, constant['value'])}"
    return Call(
        verdict="beyond-this-model",
        sentence=(
            f"Beyond this model on these rows: on {rows_in_words(found)} it is no better than the "
            f"{name} ({found.metric} {scores}){words.none_of_them(found)}."
        ),
        advice=(
            "More labelled rows or a larger model (--model) may help, other settings hardly. If people find these "
            "rows easy, check the labels first (whet check)."
        ),
        at=s.best,
        numbers={"association": found.association},
    )


def not_learning(s: CurveFeatures) -> Call | None:
    return _nothing_learnt(s) if learnt_nothing(s) else None


def nothing_carries_over(s: CurveFeatures) -> Call | None:
    """Training fell a little by memorising; score and loss on other rows stayed at chance."""
    return _nothing_learnt(s) if not s.beats_majority and s.lowest_eval_loss > 0.9 else None


def _nothing_learnt(s: CurveFeatures) -> Call:
    simpler = above_commonest(s.data.baselines) if s.data.baselines is not None else None
    advice = (
        "Check the labels and the text column (whet check, --text, --label), then whether 32 rows can be "
        f"learnt by heart (--epochs 50); then the rate ({words.rate(s, 3)})."
    )
    if s.data.baselines is not None and simpler is not None:
        advice = (
            f"The labels can be learnt: {words.rival(s.data.baselines, simpler)} does. "
            f"Train longer ({words.epochs(s, 3)}), or leave the settings to the recipe (--recipe auto)."
        )
    return Call(
        verdict="not-learning",
        sentence=(
            f"Not learning: evaluation loss is {words.loss(s, s.tail_eval_loss)} at the end, where {words.chance(s)}; "
            f"{words.score(s)}."
        ),
        advice=advice,
        at=s.count - 1,
    )


def label_noise(s: CurveFeatures) -> Call | None:
    """The training rows were memorised, and other rows are never right: the text does not explain the labels."""
    if s.beats_majority or not rises_while_training_falls(s) or not labels_to_blame(s):
        return None
    # Little data overfits too, but has learnt something first.
    if s.lowest_eval_loss < 0.9 or (
        s.lead > 1.2 and s.lowest_eval_loss < 0.985 if s.lead is not None else s.lowest_eval_loss < 0.97
    ):
        return None
    return Call(
        verdict="label-noise-suspected",
        sentence=(
            f"Label noise suspected: training loss fell to {words.train_loss(s, s.train_loss[-1])}, so the rows were "
            f"learnt by heart, while evaluation loss rose to {words.loss(s, s.eval_loss[-1])}; {words.score(s)}."
        ),
        advice="Review the rows that the model contradicts most (whet report), and check --label.",
        at=s.best,
        numbers=rise(s),
        certainty=0.9,
    )


def overfitting(s: CurveFeatures) -> Call | None:
    if not rises_while_training_falls(s):
        return None
    lost = score_lost(s)
    # The score may peak after the loss has turned, and the score decides the best step.
    stop = s.best if s.data.score is None else max(s.best, as_good_as_best(s, s.data.score))
    severe = lost > 2 * s.error
    score = f"{s.data.metric} fell by {words.points(s, lost)}" if severe else f"{s.data.metric} held"
    kind = "Overfitting" if severe else "Overfitting (overconfident)"
    fell = (
        f" while training loss fell from {words.train_loss(s, s.train_loss[s.best])} "
        f"to {words.train_loss(s, s.train_loss[-1])}"
        if s.has_training
        else ""
    )
    return Call(
        verdict="overfitting",
        sentence=(
            f"{kind} since step {words.step(s, s.best)}: evaluation loss rose "
            f"from {words.loss(s, s.eval_loss[s.best])} to {words.loss(s, s.eval_loss[-1])}{fell}"
            + (f"; {score}." if s.data.score is not None else ".")
        ),
        advice=_less_overfitting(s, stop, severe),
        at=s.best,
        numbers={**rise(s), "score_lost": lost, "severe": float(severe)},
        certainty=1.0 if s.has_training else 0.7,
    )


def _less_overfitting(s: CurveFeatures, stop: int, severe: bool) -> str:
    """Return advice for a score that held, when only the probabilities are too sure: fewer epochs would cost score."""
    if severe or s.data.score is None:
        return (
            f"Keep the best step; next time {words.epochs(s, words.share(s, stop))} or --patience 3; more data, "
            f"a lower rate ({words.rate(s, 0.4)}) or --weight-decay 0.01 may help."
        )
    shorter = (
        f"; {words.epochs(s, words.share(s, stop))} would have scored as well, "
        f"and a lower rate ({words.rate(s, 0.4)}) or --weight-decay 0.01 may help"
    )
    kept = "The score did not suffer, only the probabilities: keep this model. More data helps most"
    return f"{kept}{shorter if s.left_open <= ROWS_TO_BLAME else ''}."


def erratic(s: CurveFeatures) -> Call | None:
    """The loss rises and falls by more than noise; a single bend of a short curve does not count."""
    rises = np.diff(s.eval_loss)
    # Movements of the mean by a few rows do not count.
    leaps = int(np.sum(rises > max(0.15, 2 * s.one_row)))
    least = max(0.08, s.one_row)
    # One fall from chance to almost zero is not erratic, however large.
    restless = s.volatility > least and int(np.sum(rises > least)) >= (2 if s.tail_eval_loss < 0.3 else 1)
    if s.flips < 0.4 or s.turns < 2 or not (restless or leaps >= 2):
        return None
    jumps = np.abs(rises)
    at, jump = int(np.argmax(jumps)) + 1, float(np.median(jumps))
    return Call(
        verdict="erratic",
        sentence=(
            f"Erratic: evaluation loss jumps by about {words.loss(s, jump)} from one evaluation to the next "
            f"(most at step {words.step(s, at)}) and turns in {s.flips:.0%} of them."
        ),
        advice=(
            f"Halve the rate ({words.rate(s, 0.5)}), double the batch ({words.batch(s, 2)}), or evaluate on more rows."
        ),
        at=at,
        numbers={"flips": s.flips},
    )


def underfitting(s: CurveFeatures) -> Call | None:
    learnt = s.beats_majority or s.tail_eval_loss < 0.97
    if not (learnt and s.tail_train_loss > 0.6 and s.tail_eval_loss - s.tail_train_loss < 0.15):
        return None
    falling = s.slope > 0.02
    advice = (
        f"Still falling in the last third: train longer ({words.epochs(s, 2)})."
        if falling
        else f"Flat: a higher rate ({words.rate(s, 3)}) or a larger model (--model)."
    )
    return Call(
        verdict="underfitting",
        sentence=(
            f"Underfitting: training loss is still {words.train_loss(s, s.tail_train_loss)}, where {words.chance(s)}, "
            f"and evaluation loss ({words.loss(s, s.tail_eval_loss)}) is hardly worse; {words.score(s)}."
        ),
        advice=advice,
        at=s.count - 1,
        numbers={"still_falling": float(falling)},
    )


def leak(s: CurveFeatures) -> Call | None:
    """Known overlap, or two losses that almost vanish together: only a hint, because easy data does that too."""
    vanish = s.has_training and s.tail_train_loss < 0.1 and abs(s.tail_eval_loss - s.tail_train_loss) < 0.1
    if not (vanish or overlaps(s)):
        return None
    known = (
        f"{s.data.overlap:.1%} of the evaluation rows also occur in the training split"
        if overlaps(s)
        else f"evaluation loss is only {words.loss(s, s.tail_eval_loss)}, "
        f"training loss {words.train_loss(s, s.tail_train_loss)}"
    )
    return Call(
        verdict="leak-suspected",
        sentence=f"Leak suspected: {known}; {words.score(s)} may be too good to be true.",
        advice="Remove duplicates and split again: whet check names the rows. Easy data looks like this too.",
        at=s.count - 1,
        numbers={"overlap": s.data.overlap},
        certainty=0.95 if overlaps(s) else 0.5,
    )


def plateau(s: CurveFeatures) -> Call | None:
    if not (s.slope < 0.02 + 0.5 * s.wobble and s.score_gain < 1):
        return None
    at = levelled(s)
    return Call(
        verdict="plateau",
        sentence=(
            f"Plateau: nothing gained since step {words.step(s, at)}, evaluation loss {words.loss(s, s.eval_loss[at])} "
            f"there and {words.loss(s, s.eval_loss[-1])} at the end; {words.score(s)}."
        ),
        advice=f"Converged: stop there next time ({words.epochs(s, words.share(s, at))} or --patience 3).",
        at=at,
        numbers={"gained": s.slope * s.data.chance},
    )


def healthy(s: CurveFeatures) -> Call | None:
    falling = s.slope > 0.02 and s.best == s.count - 1
    more = f"Still falling: {words.epochs(s, 1.5)} may gain a little." if falling else "More data may still help."
    no_better = s.data.score is not None and not s.beats_majority
    ship = f"Do not ship it yet: its answers are no better than the {s.data.constant}." if no_better else "Ship it."
    ship = "Then ship it." if s.data.unknown >= FEW_UNKNOWN and ship == "Ship it." else ship
    return Call(
        verdict="healthy",
        sentence=(
            f"Healthy: evaluation loss fell from {words.loss(s, s.eval_loss[0])} "
            f"to {words.loss(s, s.eval_loss[s.best])} at step {words.step(s, s.best)}{words.since(s)}; "
            f"{words.score(s)}."
        ),
        advice=f"{ship} {more}",
        at=s.best,
    )


RULES: tuple[Rule, ...] = (
    not_finite,
    text_unknown,
    not_enough,
    diverging,
    rate_too_high,
    rate_too_low,
    beyond_this_model,
    not_learning,
    label_noise,
    overfitting,
    erratic,
    underfitting,
    nothing_carries_over,
    leak,
    plateau,
    healthy,
)


def first_call(s: CurveFeatures) -> Call:
    """Return the result of the first rule that matches; the last one always does."""
    return next(call for rule in RULES if (call := rule(s)) is not None)
