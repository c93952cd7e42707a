"""The rules of the verdict: one small function each, in the order of `RULES`; the first that answers wins.

The thresholds are in units of L0 (see `signs`) and of the standard error of the score. They and how they were
tested are in docs/curves.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from whet.runs.verdict import wording as say
from whet.runs.verdict.beside import above_commonest, is_ahead, is_visible, labels_to_blame, rows_in_words
from whet.runs.verdict.features import (
    ENOUGH_REACH,
    MOVED,
    Signs,
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
"""Evaluations without which nothing but a loss that is not finite can be told."""
MOST_UNKNOWN = 0.5
"""Share of unknown tokens from which on nothing else about a run matters."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """What one rule says."""

    verdict: str
    sentence: str
    advice: str
    at: int = -1
    """Index of the evaluation that the sentence is about."""
    numbers: dict[str, float] = field(default_factory=dict)
    certainty: float = 1.0
    """At most this confident, however clear the curve: some signs have more than one cause."""


Rule = Callable[[Signs], Call | None]


def not_finite(s: Signs) -> Call | None:
    if s.finite:
        return None
    whole = np.isfinite(s.e) & np.isfinite(s.t)
    at = int(np.argmin(whole)) if not np.all(whole) else s.count - 1
    step = say.step(s, at) if s.seen.broke is None else s.seen.broke
    return Call(
        verdict="diverging",
        sentence=f"Diverged: the loss was not a finite number at step {step}.",
        advice=f"Lower the rate tenfold ({say.rate(s, 0.1)}), warm up (--warmup 0.1) and clip (--clip 1.0).",
        at=at,
    )


def text_unknown(s: Signs) -> Call | None:
    """Most of what the model was given stands for nothing: no curve can say anything about the settings."""
    if s.seen.unknown < MOST_UNKNOWN:
        return None
    score = "" if s.seen.score is None or not s.count else f"; {say.score(s)}"
    return Call(
        verdict="text-unknown",
        sentence=f"Text unknown: {s.seen.unknown:.0%} of the tokens stand for what this model does not know{score}.",
        advice=f"Choose a model that knows this writing, {say.OTHER_MODEL}; settings will not help.",
        at=s.count - 1,
        numbers={"unknown": s.seen.unknown},
    )


def not_enough(s: Signs) -> Call | None:
    if s.count >= ENOUGH:
        return None
    return Call(
        verdict="not-enough",
        sentence=f"Not enough evaluations to judge: {s.count}, and it takes {ENOUGH}.",
        advice="Evaluate more often: --evaluations 12.",
        at=s.count - 1,
    )


def diverging(s: Signs) -> Call | None:
    """The training rows themselves got worse: far above chance, or back to it after learning."""
    low = int(np.argmin(s.calm_t))
    lost = s.calm_t[low] < 0.7 and (s.tail_t > 0.95 or np.min(s.t[-2:]) > max(1.1, 4 * s.calm_t[low]))
    # A head that starts far off and comes down without a jump is slow, not diverging.
    above = s.tail_t > 1.5 and (rank_correlation(s.t) > -0.6 or s.leap > 0.1)
    if not (lost or above or collapsed(s)):
        return None
    end = max(s.tail_t, float(np.mean(s.t[-2:])))
    what, before, after = "training", say.train_loss(s, s.t[low]), say.train_loss(s, end)
    if not (s.has_training and (lost or above)):
        low = s.best
        what, before, after = "evaluation", say.loss(s, s.e[low]), say.loss(s, s.e[-1])
    return Call(
        verdict="diverging",
        sentence=f"Diverging: {what} loss went from {before} at step {say.step(s, low)} to {after}; {say.chance(s)}.",
        advice=f"Lower the rate tenfold ({say.rate(s, 0.1)}), warm up (--warmup 0.1) and clip (--clip 1.0).",
        at=low,
        numbers={"lowest_train_loss": float(s.t[low] * s.seen.chance)},
    )


def rate_too_high(s: Signs) -> Call | None:
    """Thrown about above chance: at the end still, or for most of the run until the rate had fallen."""
    highest = float(np.max(s.e))
    # A bend alone looks rough on a short curve: rough is what also turns, or leaps.
    rough = (s.volatility > 0.02 and s.flips > 0.2) or s.leap > 0.05
    steady = s.order < -0.8 and s.leap < 0.1
    # A curve at chance has two causes that look alike; a rate no one fine-tunes with decides.
    known = (s.seen.learning_rate or 0) >= 2e-4
    never = learnt_nothing(s) and (known or (highest > 1.1 and rough and not steady))
    idle = float(np.mean(s.e[1:] > 0.97))
    late = s.tail_t > 0.6 and idle > 0.5 and float(np.max(s.e[1:])) > 1.1 and rough and not steady
    if not (never or (late and not rises_while_training_falls(s))):
        return None
    at = int(np.argmax(s.e))
    thrown = f"evaluation loss is thrown about, up to {say.loss(s, s.e[at])} at step {say.step(s, at)}"
    stuck = f"nothing learnt at a rate of {s.seen.learning_rate or 0:.2g}, evaluation loss {say.loss(s, s.tail_e)}"
    return Call(
        verdict="rate-too-high",
        sentence=(
            f"Learning rate too high: {thrown if s.e[at] > 1.05 and rough else stuck}, where {say.chance(s)}; "
            f"{say.score(s)}."
        ),
        advice=f"Lower the rate ({say.rate(s, 0.05, '2e-5')}) and warm up (--warmup 0.1).",
        at=at,
        numbers={"highest_eval_loss": float(s.e[at] * s.seen.chance)},
    )


def rate_too_low(s: Signs) -> Call | None:
    """Slowly down, the answers as at the start; underfitting has changed some answers for the better."""
    short = learnt_nothing(s) and reach(s) < ENOUGH_REACH
    # Training below chance and evaluation not is the label shares and a few rows by heart, and no matter of the rate;
    # at a usual rate, a loss that is well below chance needs more steps.
    by_heart = s.tail_t < 0.995 and s.tail_e > 1.0
    enough = (s.seen.learning_rate or 0) >= 1e-5 and (by_heart or s.tail_e < 0.97)
    creeps = not s.beats_majority and s.tail_e > 0.85 and s.tail_e - s.tail_t < 0.15 and crawls(s) and not enough
    if not (short or creeps):
        return None
    fell = f"evaluation loss falls steadily but only from {say.loss(s, s.e[0])} to {say.loss(s, s.e[-1])}"
    stayed = (
        f"{say.step(s, -1)} steps at {s.seen.learning_rate or 0:.2g} can move a weight by {reach(s):.1g} at most; "
        f"evaluation loss went from {say.loss(s, s.e[0])} to {say.loss(s, s.e[-1])}"
    )
    return Call(
        verdict="rate-too-low",
        sentence=f"Learning rate too low or too few steps: {fell if crawls(s) else stayed}; {say.score(s)}.",
        advice=f"Raise the rate 3 to 10 times ({say.rate(s, 5)}), or train longer ({say.epochs(s, 3)}).",
        at=s.count - 1,
    )


def beyond_this_model(s: Signs) -> Call | None:
    """Nothing is wrong with the training, and neither the model nor a simpler answer gets away from the commonest."""
    found = s.seen.beside
    if found is None or s.beats_majority or s.lowest_e <= 0.9 or above_commonest(found) or labels_to_blame(s):
        return None
    trained = reach(s) >= MOVED or s.tail_t < 0.9
    constant = next((each for each in found.baselines if each["name"] == "commonest"), None)
    if not trained or constant is None or (is_visible(constant) and not is_ahead(found, constant)):
        return None
    scores = f"{say.scored(found.metric, found.value)}, commonest answer {say.scored(found.metric, constant['value'])}"
    return Call(
        verdict="beyond-this-model",
        sentence=(
            f"Beyond this model on these rows: on {rows_in_words(found)} it is no better than the "
            f"commonest answer ({found.metric} {scores}){say.none_of_them(found)}."
        ),
        advice=(
            "More labelled rows or a larger model (--model) may help, other settings hardly. If people find these "
            "rows easy, check the labels first (whet check)."
        ),
        at=s.best,
        numbers={"association": found.association},
    )


def not_learning(s: Signs) -> Call | None:
    return _nothing_learnt(s) if learnt_nothing(s) else None


def nothing_carries_over(s: Signs) -> Call | None:
    """Training fell a little, by heart; neither score nor loss on other rows ever got away from chance."""
    return _nothing_learnt(s) if not s.beats_majority and s.lowest_e > 0.9 else None


def _nothing_learnt(s: Signs) -> Call:
    simpler = above_commonest(s.seen.beside) if s.seen.beside is not None else None
    advice = (
        "Check the labels and the text column (whet check, --text, --label), then whether 32 rows can be "
        f"learnt by heart (--epochs 50); then the rate ({say.rate(s, 3)})."
    )
    if s.seen.beside is not None and simpler is not None:
        advice = (
            f"The labels can be learnt: {say.rival(s.seen.beside, simpler)} does. Train longer ({say.epochs(s, 3)}), "
            "or leave the settings to the recipe (--recipe auto)."
        )
    return Call(
        verdict="not-learning",
        sentence=(
            f"Not learning: evaluation loss is {say.loss(s, s.tail_e)} at the end, where {say.chance(s)}; "
            f"{say.score(s)}."
        ),
        advice=advice,
        at=s.count - 1,
    )


def label_noise(s: Signs) -> Call | None:
    """Learnt by heart in training, and never right elsewhere: labels that the text does not explain."""
    if s.beats_majority or not rises_while_training_falls(s) or not labels_to_blame(s):
        return None
    # Little data overfits too, but has then learnt something first.
    if s.lowest_e < 0.9 or (s.lead > 1.2 and s.lowest_e < 0.985 if s.lead is not None else s.lowest_e < 0.97):
        return None
    return Call(
        verdict="label-noise-suspected",
        sentence=(
            f"Label noise suspected: training loss fell to {say.train_loss(s, s.t[-1])}, so the rows were "
            f"learnt by heart, while evaluation loss rose to {say.loss(s, s.e[-1])}; {say.score(s)}."
        ),
        advice="Review the rows that the model contradicts most (whet report), and check --label.",
        at=s.best,
        numbers=rise(s),
        certainty=0.9,
    )


def overfitting(s: Signs) -> Call | None:
    if not rises_while_training_falls(s):
        return None
    lost = score_lost(s)
    # The score may peak after the loss has turned: it is the score that a model is stopped by.
    stop = s.best if s.seen.score is None else max(s.best, as_good_as_best(s, s.seen.score))
    severe = lost > 2 * s.error
    score = f"{s.seen.metric} fell by {say.points(s, lost)}" if severe else f"{s.seen.metric} held"
    kind = "Overfitting" if severe else "Overfitting (overconfident)"
    fell = (
        f" while training loss fell from {say.train_loss(s, s.t[s.best])} to {say.train_loss(s, s.t[-1])}"
        if s.has_training
        else ""
    )
    return Call(
        verdict="overfitting",
        sentence=(
            f"{kind} since step {say.step(s, s.best)}: evaluation loss rose from {say.loss(s, s.e[s.best])} "
            f"to {say.loss(s, s.e[-1])}{fell}" + (f"; {score}." if s.seen.score is not None else ".")
        ),
        advice=(
            f"Keep the best step; next time {say.epochs(s, say.share(s, stop))} or --patience 3; more data, "
            f"a lower rate ({say.rate(s, 0.4)}) or --weight-decay 0.01 may help."
        ),
        at=s.best,
        numbers={**rise(s), "score_lost": lost, "severe": float(severe)},
        certainty=1.0 if s.has_training else 0.7,
    )


def erratic(s: Signs) -> Call | None:
    """Up and down by more than noise; a bend that a short curve makes only once is not."""
    rises = np.diff(s.e)
    # What a few rows move the mean by is not the model's unrest.
    leaps = int(np.sum(rises > max(0.15, 2 * s.one_row)))
    least = max(0.08, s.one_row)
    # One fall from chance to almost nothing is no unrest, however large.
    restless = s.volatility > least and int(np.sum(rises > least)) >= (2 if s.tail_e < 0.3 else 1)
    if s.flips < 0.4 or s.turns < 2 or not (restless or leaps >= 2):
        return None
    jumps = np.abs(rises)
    at, jump = int(np.argmax(jumps)) + 1, float(np.median(jumps))
    return Call(
        verdict="erratic",
        sentence=(
            f"Erratic: evaluation loss jumps by about {say.loss(s, jump)} from one evaluation to the next "
            f"(most at step {say.step(s, at)}) and turns in {s.flips:.0%} of them."
        ),
        advice=(
            f"Halve the rate ({say.rate(s, 0.5)}), double the batch ({say.batch(s, 2)}), or evaluate on more rows."
        ),
        at=at,
        numbers={"flips": s.flips},
    )


def underfitting(s: Signs) -> Call | None:
    learnt = s.beats_majority or s.tail_e < 0.97
    if not (learnt and s.tail_t > 0.6 and s.tail_e - s.tail_t < 0.15):
        return None
    falling = s.slope > 0.02
    advice = (
        f"Still falling in the last third: train longer ({say.epochs(s, 2)})."
        if falling
        else f"Flat: a higher rate ({say.rate(s, 3)}) or a larger model (--model)."
    )
    return Call(
        verdict="underfitting",
        sentence=(
            f"Underfitting: training loss is still {say.train_loss(s, s.tail_t)}, where {say.chance(s)}, and "
            f"evaluation loss ({say.loss(s, s.tail_e)}) is hardly worse; {say.score(s)}."
        ),
        advice=advice,
        at=s.count - 1,
        numbers={"still_falling": float(falling)},
    )


def leak(s: Signs) -> Call | None:
    """Known overlap, or two losses that all but vanish together: a hint only, for easy data does that too."""
    vanish = s.has_training and s.tail_t < 0.1 and abs(s.tail_e - s.tail_t) < 0.1
    if not (vanish or overlaps(s)):
        return None
    known = (
        f"{s.seen.overlap:.1%} of the evaluation rows also stand in the training split"
        if overlaps(s)
        else f"evaluation loss is only {say.loss(s, s.tail_e)}, training loss {say.train_loss(s, s.tail_t)}"
    )
    return Call(
        verdict="leak-suspected",
        sentence=f"Leak suspected: {known}; {say.score(s)} may be too good to be true.",
        advice="Remove duplicates and split again: whet check names the rows. Easy data looks like this too.",
        at=s.count - 1,
        numbers={"overlap": s.seen.overlap},
        certainty=0.95 if overlaps(s) else 0.5,
    )


def plateau(s: Signs) -> Call | None:
    if not (s.slope < 0.02 + 0.5 * s.wobble and s.score_gain < 1):
        return None
    at = levelled(s)
    return Call(
        verdict="plateau",
        sentence=(
            f"Plateau: nothing gained since step {say.step(s, at)}, evaluation loss {say.loss(s, s.e[at])} "
            f"there and {say.loss(s, s.e[-1])} at the end; {say.score(s)}."
        ),
        advice=f"Converged: stop there next time ({say.epochs(s, say.share(s, at))} or --patience 3).",
        at=at,
        numbers={"gained": s.slope * s.seen.chance},
    )


def healthy(s: Signs) -> Call | None:
    falling = s.slope > 0.02 and s.best == s.count - 1
    more = f"Still falling: {say.epochs(s, 1.5)} may gain a little." if falling else "More data may still help."
    no_better = s.seen.score is not None and not s.beats_majority
    ship = f"Do not ship it yet: its answers are no better than the {s.seen.constant}." if no_better else "Ship it."
    ship = "Then ship it." if s.seen.unknown >= say.FEW_UNKNOWN and ship == "Ship it." else ship
    return Call(
        verdict="healthy",
        sentence=(
            f"Healthy: evaluation loss fell from {say.loss(s, s.e[0])} to {say.loss(s, s.e[s.best])} at step "
            f"{say.step(s, s.best)}{say.since(s)}; {say.score(s)}."
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


def first_call(s: Signs) -> Call:
    """What the first rule that has something to say says; the last one always has."""
    return next(call for rule in RULES if (call := rule(s)) is not None)
