"""Learning curves with known truth: what the rules of the verdict are tested on.

Each kind is written from what happens in training (a model that memorises, a rate that throws it about),
not from the thresholds that judge it. Losses are in units of L0, the loss of knowing the label shares and
nothing else, and time runs from 0 to 1; `draw` turns them into steps, noise and scores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Shape = tuple[Floats, Floats, Floats]
"""Training loss and evaluation loss in units of L0, and the share of the way from majority to perfect."""
# Spread of an evaluation around its trend, in units of L0, in calm training.
CALM = (0.004, 0.016)


@dataclass(frozen=True, eq=False)
class Sample:
    """One curve and what made it."""

    truth: str
    variant: str
    steps: NDArray[np.int64]
    train_loss: Floats
    eval_loss: Floats
    metric: Floats
    prior: tuple[float, ...]
    rows: int


@dataclass(frozen=True)
class _Kind:
    truth: str
    variant: str
    shape: Callable[[np.random.Generator, Floats], Shape]
    calm: float = 1.0
    """How much of the usual noise there is: a rate that is far too low also moves little."""
    fewest: int = 4


def draw(truth: str, seed: int, *, noise: float = 1.0, evaluations: int | None = None) -> Sample:
    """A curve of this kind; the same seed gives the same curve."""
    rng = np.random.default_rng([seed, *truth.encode()])
    choices = [kind for kind in KINDS if kind.truth == truth]
    kind = choices[int(rng.integers(len(choices)))]
    count = evaluations or int(rng.integers(max(kind.fewest, 4), 41))
    time = np.arange(1, count + 1) / count
    train, evaluation, skill = kind.shape(rng, time)
    prior = _prior(rng)
    chance = float(-np.sum(np.array(prior) * np.log(prior)))
    rows = int(rng.choice([200, 400, 800, 2000, 5000]))
    spread = rng.uniform(*CALM) * noise * kind.calm
    majority = max(prior)
    score = majority + (1 - majority) * skill
    # The same rows are scored each time, so scores wander less than fresh samples would.
    wander = 0.4 * noise * kind.calm * np.sqrt(np.clip(score * (1 - score), 0.01, None) / rows)
    return Sample(
        truth,
        kind.variant,
        (np.round(time * count * rng.integers(5, 500))).astype(np.int64),
        chance * np.maximum(train + rng.normal(0, 0.7 * spread, count), 0.002),
        chance * np.maximum(evaluation + rng.normal(0, spread, count), 0.004),
        np.clip(score + rng.normal(0, 1, count) * wander, 0, 1),
        prior,
        rows,
    )


def sample(per_kind: int, *, noise: float = 1.0, seed: int = 0) -> list[Sample]:
    """The same number of curves of every kind."""
    return [draw(truth, seed * 1_000_003 + i, noise=noise) for truth in TRUTHS for i in range(per_kind)]


def _prior(rng: np.random.Generator) -> tuple[float, ...]:
    classes = int(rng.choice([2, 2, 2, 3, 4, 6, 10]))
    if rng.random() < 0.5:
        return (1 / classes,) * classes
    shares = np.sort(rng.dirichlet(np.full(classes, 6.0)))[::-1]
    shares = 0.9 * shares + 0.1 / classes
    return tuple(float(share) for share in shares)


def _fall(time: Floats, start: float, floor: float, speed: float, power: float = 1.0) -> Floats:
    """From start to about floor; speed is how many e-foldings fit into the run."""
    return np.asarray(floor + (start - floor) * np.exp(-((speed * time) ** power)))


def _skill(loss: Floats, best: float) -> Floats:
    """How far the score has come, from how far the loss has: `best` where the loss is nearest to zero."""
    return np.asarray(best * np.clip(1 - loss, 0, 1) / max(float(np.max(1 - loss)), 1e-6))


def _steady(rng: np.random.Generator, time: Floats) -> Shape:
    """Falls all the way, fast first: what one hopes for."""
    start, floor = rng.uniform(0.95, 1.15), rng.uniform(0.08, 0.4)
    speed = rng.uniform(1.2, 3.0)
    train = _fall(time, start, floor, speed)
    evaluation = _fall(time, start, floor + rng.uniform(0.02, 0.28), speed * rng.uniform(0.85, 1.05))
    return train, evaluation, _skill(evaluation, rng.uniform(0.4, 0.95))


def _warmed_up(rng: np.random.Generator, time: Floats) -> Shape:
    """Nothing at first while the rate rises, then as above."""
    delay = rng.uniform(0.05, 0.25)
    moved = np.clip((time - delay) / (1 - delay), 0, None)
    return _steady(rng, moved)


def _slowing(rng: np.random.Generator, time: Floats) -> Shape:
    """A power law: steep, then slow, never flat."""
    start, power = rng.uniform(1.0, 1.1), rng.uniform(0.35, 0.8)
    scale = rng.uniform(4, 12)
    gap = rng.uniform(0.02, 0.2)
    train = start * (1 + scale * time) ** -power
    evaluation = gap + (start - gap) * (1 + scale * time) ** (-power * rng.uniform(0.75, 0.95))
    if train[-1] > 0.55:
        return _steady(rng, time)
    return train, evaluation, _skill(evaluation, rng.uniform(0.4, 0.9))


def _score_still_growing(rng: np.random.Generator, time: Floats) -> Shape:
    """The loss turns a little, for the model grows surer, while the score still grows."""
    turn = rng.uniform(0.55, 0.8)
    floor = rng.uniform(0.35, 0.6)
    evaluation = _fall(time, 1.0, floor, rng.uniform(3, 5))
    evaluation = evaluation + floor * rng.uniform(0.01, 0.05) * np.clip((time - turn) / (1 - turn), 0, 1)
    train = _fall(time, 1.0, floor * rng.uniform(0.3, 0.7), rng.uniform(2, 3.5))
    best = rng.uniform(0.5, 0.9)
    return train, evaluation, best * time ** rng.uniform(0.5, 0.8)


def _level(rng: np.random.Generator, time: Floats) -> Shape:
    """Converged before half of the run; the rest changed nothing."""
    speed = rng.uniform(12, 25)
    floor = rng.uniform(0.12, 0.45)
    gap = rng.uniform(0.12, 0.3) if floor < 0.2 else rng.uniform(0.02, 0.25)
    evaluation = _fall(time, 1.0, floor + gap, speed)
    return _fall(time, 1.0, floor, speed), evaluation, _skill(evaluation, rng.uniform(0.4, 0.9))


def _level_but_learning_by_heart(rng: np.random.Generator, time: Floats) -> Shape:
    """Evaluation is flat while training goes on falling."""
    floor = rng.uniform(0.3, 0.6)
    evaluation = _fall(time, 1.0, floor, rng.uniform(12, 25))
    train = _fall(time, 1.0, floor * rng.uniform(0.3, 0.6), rng.uniform(4, 6))
    return train, evaluation, _skill(evaluation, rng.uniform(0.4, 0.8))


def _memorised(rng: np.random.Generator, time: Floats, *, severe: bool) -> Shape:
    turn = rng.uniform(0.12, 0.55)
    low = rng.uniform(0.3, 0.85)
    rise = low * rng.uniform(0.25, 1.8)
    before = low + (1.0 - low) * np.clip(1 - time / turn, 0, 1) ** 2
    after = rise * np.clip((time - turn) / (1 - turn), 0, 1) ** rng.uniform(0.6, 1.3)
    evaluation = before + after
    train = _fall(time, 1.0, rng.uniform(0.0, 0.1), -np.log(low * rng.uniform(0.75, 0.95)) / turn)
    best = rng.uniform(0.35, 0.85)
    skill = best * np.clip(time / turn, 0, 1) ** 0.5
    if severe:
        skill = skill - best * rng.uniform(0.15, 0.4) * np.clip((time - turn) / (1 - turn), 0, 1)
    return train, evaluation, skill


def _overfit_severe(rng: np.random.Generator, time: Floats) -> Shape:
    """Learnt by heart; the score falls too."""
    return _memorised(rng, time, severe=True)


def _overconfident(rng: np.random.Generator, time: Floats) -> Shape:
    """Learnt by heart; the loss rises while the score stays."""
    return _memorised(rng, time, severe=False)


def _overfit_from_the_start(rng: np.random.Generator, time: Floats) -> Shape:
    """Twenty epochs on little data: the best evaluation is among the first two, the end is flat and high."""
    turn = rng.uniform(0.03, 0.1)
    low = rng.uniform(0.4, 0.85)
    evaluation = (
        low
        + (1 - low) * np.clip(1 - time / turn, 0, 1)
        + low * rng.uniform(0.4, 2) * (1 - np.exp(-np.clip(time - turn, 0, None) * rng.uniform(2, 6)))
    )
    train = _fall(time, 1.0, rng.uniform(0, 0.03), rng.uniform(4, 9))
    return train, evaluation, rng.uniform(0.3, 0.7) * np.clip(time / turn, 0, 1)


def _noise_learnt(rng: np.random.Generator, time: Floats) -> Shape:
    """Labels that the text does not explain: memorised in training, never right elsewhere."""
    train = _fall(time, 1.02, rng.uniform(0.0, 0.15), rng.uniform(1.5, 4), rng.uniform(1.2, 2.0))
    evaluation = 1.0 + rng.uniform(0.25, 1.8) * time ** rng.uniform(0.9, 1.8)
    return train, evaluation, rng.normal(0, 0.01, len(time)) - 0.08 * rng.random() * time


def _too_little(rng: np.random.Generator, time: Floats) -> Shape:
    """Better than nothing, and stuck there."""
    floor = rng.uniform(0.66, 0.86)
    train = _fall(time, 1.02, floor, rng.uniform(5, 15))
    evaluation = train + rng.uniform(0.0, 0.08)
    return train, evaluation, _skill(train, rng.uniform(0.18, 0.4))


def _too_short(rng: np.random.Generator, time: Floats) -> Shape:
    """Ended while both were still falling."""
    end = rng.uniform(0.66, 0.84)
    train = 1.03 - (1.03 - end) * time ** rng.uniform(0.7, 1.2)
    evaluation = train + rng.uniform(0.0, 0.07) * time
    return train, evaluation, _skill(train, rng.uniform(0.2, 0.45))


def _zigzag(rng: np.random.Generator, time: Floats) -> Shape:
    """The trend is down, but each evaluation is far from the last."""
    floor = rng.uniform(0.25, 0.5)
    swing = rng.uniform(0.14, 0.32)
    trend = _fall(time, 1.0, floor + rng.uniform(0.05, 0.2), rng.uniform(2, 6))
    jumps = rng.normal(0, swing, len(time))
    evaluation = np.maximum(trend + jumps, 0.1)
    train = np.maximum(_fall(time, 1.0, floor, rng.uniform(2, 6)) + 0.4 * np.abs(jumps), 0.05)
    return train, evaluation, np.clip(_skill(trend, rng.uniform(0.4, 0.85)) - 0.6 * np.abs(jumps), -0.2, 1)


def _not_finite(rng: np.random.Generator, time: Floats) -> Shape:
    train, evaluation, skill = _steady(rng, time)
    broken = time > rng.uniform(0.1, 0.9)
    broken[-1] = True
    bad = np.nan if rng.random() < 0.5 else np.inf
    return np.where(broken, bad, train), np.where(broken, bad, evaluation), np.where(broken, 0.0, skill)


def _blows_up(rng: np.random.Generator, time: Floats) -> Shape:
    """Learns, then climbs without end."""
    train, evaluation, skill = _steady(rng, time)
    climb = rng.uniform(2.0, 8.0) * np.clip((time - rng.uniform(0.1, 0.55)) / 0.35, 0, 1.5) ** 1.3
    return train + climb, evaluation + climb * rng.uniform(0.9, 1.3), skill * (climb < 0.5)


def _falls_back(rng: np.random.Generator, time: Floats) -> Shape:
    """Learns well, then loses everything at one step."""
    train, evaluation, skill = _steady(rng, time * rng.uniform(1.5, 3))
    lost = time > rng.uniform(0.45, 0.65)
    back = rng.uniform(1.15, 1.4)
    return np.where(lost, back, train), np.where(lost, back + 0.02, evaluation), np.where(lost, 0.0, skill)


def _thrown_about(rng: np.random.Generator, time: Floats) -> Shape:
    """One class for every text, and which one changes."""
    swing = rng.uniform(0.06, 0.2)
    shared = np.abs(rng.normal(0, swing, len(time)))
    shared[int(rng.integers(max(1, len(time) // 2)))] += 0.12
    train = 1.0 + 0.7 * shared + np.abs(rng.normal(0, 0.03, len(time)))
    return train, 1.0 + shared, np.where(rng.random(len(time)) < 0.3, -rng.uniform(0, 0.3), 0.0)


def _crawling(rng: np.random.Generator, time: Floats) -> Shape:
    """A straight line down that is nowhere near its end, the answers as at the start."""
    start, drop = rng.uniform(1.0, 1.12), rng.uniform(0.025, 0.1)
    train = start - drop * time
    return train, train + rng.uniform(-0.01, 0.02), np.full(len(time), -rng.choice([0.0, 0.0, 0.1]))


def _crawling_noisily(rng: np.random.Generator, time: Floats) -> Shape:
    """The same with the usual noise, and far enough down to be seen in it."""
    start, drop = rng.uniform(1.0, 1.12), rng.uniform(0.08, 0.12)
    train = start - drop * time ** rng.uniform(0.8, 1.2)
    return train, train + rng.uniform(-0.01, 0.02), np.zeros(len(time))


def _flat(rng: np.random.Generator, time: Floats) -> Shape:
    """Nothing to learn, or nothing that arrives: as good as knowing the label shares."""
    level = rng.uniform(0.985, 1.03)
    wobble = rng.normal(0, rng.uniform(0.001, 0.008), len(time))
    return level + wobble, level + rng.uniform(-0.005, 0.02) + wobble, np.zeros(len(time))


def _too_good(rng: np.random.Generator, time: Floats) -> Shape:
    """Evaluation rows that were trained on: both losses all but vanish, together."""
    floor = rng.uniform(0.005, 0.05)
    train = _fall(time, 1.0, floor, rng.uniform(6, 12))
    return train, train + rng.uniform(0.0, 0.03), _skill(train, rng.uniform(0.97, 1.0))


KINDS = (
    _Kind("healthy", "steady", _steady),
    _Kind("healthy", "warmed up", _warmed_up),
    _Kind("healthy", "slowing", _slowing),
    _Kind("healthy", "score still growing", _score_still_growing),
    _Kind("plateau", "level", _level, fewest=6),
    _Kind("plateau", "level, learning by heart", _level_but_learning_by_heart, fewest=6),
    _Kind("overfitting", "severe", _overfit_severe, fewest=5),
    _Kind("overfitting", "overconfident", _overconfident, fewest=5),
    _Kind("overfitting", "from the start", _overfit_from_the_start, fewest=5),
    _Kind("label-noise-suspected", "noise learnt", _noise_learnt, fewest=5),
    _Kind("underfitting", "stuck", _too_little),
    _Kind("underfitting", "too short", _too_short),
    _Kind("erratic", "zigzag", _zigzag, fewest=6),
    _Kind("diverging", "not finite", _not_finite),
    _Kind("diverging", "blows up", _blows_up),
    _Kind("diverging", "falls back", _falls_back, fewest=5),
    _Kind("rate-too-high", "thrown about", _thrown_about),
    _Kind("rate-too-low", "crawling", _crawling, calm=0.25),
    _Kind("rate-too-low", "crawling noisily", _crawling_noisily, fewest=6),
    _Kind("not-learning", "flat", _flat, calm=0.3),
    _Kind("not-learning", "flat, noisily", _flat),
    _Kind("leak-suspected", "too good", _too_good, calm=0.4),
)
TRUTHS = tuple(dict.fromkeys(kind.truth for kind in KINDS))
