"""A learning curve, and the numbers of it that the rules of the verdict use.

Losses are divided by L0, the loss of a model that knows only the label shares. So 1.0 means that nothing was learnt
yet, whatever the number of classes and their shares.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from whet.records import Baselines

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False, kw_only=True)
class CurveData:
    """The judged series, one value per evaluation, and the facts needed to read them."""

    steps: NDArray[np.int64]
    evaluation: Floats
    """Loss on the evaluation split."""
    training: Floats | None = None
    """Loss on training rows: the fixed probe if there is one."""
    score: Floats | None = None
    """The main metric, negated if lower is better, so that higher is always better here."""
    chance: float
    """L0 of the evaluation split."""
    chance_training: float | None = None
    """L0 of the training split, if known."""
    blind: str = "knowing only the label shares"
    """What has the loss `chance`, in words."""
    majority: float | None = None
    """The score of always predicting the commonest answer."""
    constant: str = "commonest answer"
    """The name of that answer."""
    rows: int = 0
    """Number of evaluation rows, which determines the noise of a score."""
    metric: str = "metric"
    higher_is_better: bool = True
    answer: str = "always giving the commonest answer"
    """A constant answer in words."""
    beaten: bool = False
    """Whether another metric than the main one beats the commonest answer."""
    overlap: float = 0.0
    """Share of evaluation rows that are also in the training split."""
    unknown: float = 0.0
    """Share of tokens for text that the tokenizer cannot represent."""
    unread: float = 0.0
    """Share of the text that the model does not read, because it is longer than that."""
    probe: bool = True
    """False if `training` is the running loss, with dropout and delayed."""
    learning_rate: float | None = None
    epochs: float | None = None
    batch_size: int | None = None
    baselines: Baselines | None = None
    """The model and its baselines on the same rows, if they were computed."""
    nonfinite_step: int | None = None
    """The step with a loss that is not finite."""
    assumed: tuple[str, ...] = ()
    """Values that had to be guessed."""


class CurveFeatures:
    """Numbers that describe a curve, each computed on first use."""

    def __init__(self, data: CurveData) -> None:
        self.data = data
        self.count = len(data.steps)
        self.eval_loss = data.evaluation / data.chance
        # Without training rows the evaluation loss is used; rules that compare both check `has_training`.
        self.has_training = data.training is not None
        self.train_loss = (
            self.eval_loss if data.training is None else data.training / (data.chance_training or data.chance)
        )

    @cached_property
    def finite(self) -> bool:
        whole = np.all(np.isfinite(self.eval_loss)) and np.all(np.isfinite(self.train_loss))
        return bool(whole) and self.data.nonfinite_step is None

    @cached_property
    def best(self) -> int:
        """The index of the smallest evaluation loss."""
        return int(np.argmin(self.eval_loss))

    @cached_property
    def lowest_eval_loss(self) -> float:
        """The smallest evaluation loss, corrected for the luck of the best of many noisy evaluations."""
        luck = self.noise * math.sqrt(2 * math.log(max(self.count, 2))) / 2
        return float(self.eval_loss[self.best]) + luck

    @cached_property
    def calm_train_loss(self) -> Floats:
        """The training loss without single jumps."""
        return medians_of_three(self.train_loss)

    @cached_property
    def tail_train_loss(self) -> float:
        return float(np.median(self.train_loss[self._tail]))

    @cached_property
    def tail_eval_loss(self) -> float:
        return float(np.median(self.eval_loss[self._tail]))

    @cached_property
    def volatility(self) -> float:
        """The distance of an evaluation from its neighbours; about the standard deviation of the noise."""
        return jitter(self.eval_loss)

    @cached_property
    def turns(self) -> int:
        """How often the evaluation loss changes between falling and rising."""
        signs = np.sign(np.diff(self.eval_loss))
        return int(np.sum(signs[1:] != signs[:-1]))

    @cached_property
    def noise(self) -> float:
        """The volatility, or 0 if the curve falls, turns once and rises: on few evaluations a bend looks like noise."""
        return self.volatility if self.turns > 1 else 0.0

    @cached_property
    def wobble(self) -> float:
        """The noise of the median of a third of the evaluations; 0 on a smooth curve."""
        return self.volatility / math.sqrt(max(self.count / 3, 1))

    @cached_property
    def flips(self) -> float:
        """The share of evaluations at which the loss changes direction."""
        return self.turns / (self.count - 2) if self.count > 2 else 0.0

    @cached_property
    def leap(self) -> float:
        """The largest rise of the evaluation loss between two evaluations."""
        return float(np.max(np.diff(self.eval_loss), initial=0))

    @cached_property
    def order(self) -> float:
        """-1 for always falling, 1 for always rising. A running training loss is too noisy to count."""
        return rank_correlation((self.eval_loss + self.train_loss) / 2 if self.data.probe else self.eval_loss)

    @cached_property
    def error(self) -> float:
        """The standard error of the commonest answer's score."""
        majority, rows = self.data.majority, max(self.data.rows, 1)
        if majority is not None and not self.data.higher_is_better:
            return abs(majority) * math.sqrt(2 / rows)  # standard error of an error, as for a variance
        if majority is not None and not 0 < majority < 1:
            return 1 / math.sqrt(rows)  # a correlation is 0 by chance; p(1 - p) would give no error
        share = 0.5 if majority is None else majority
        return math.sqrt(share * (1 - share) / rows)

    @cached_property
    def left_open(self) -> float:
        """Two standard errors, as a share of the distance from the commonest answer's score to a perfect one.

        0 if the number of rows is unknown.
        """
        if self.data.rows < 1:
            return 0.0
        majority = 0.5 if self.data.majority is None else self.data.majority
        room = 1 - majority if self.data.higher_is_better else abs(majority)
        return 2 * self.error / max(room, 1e-9)

    @cached_property
    def one_row(self) -> float:
        """The luck in a mean loss if each row's loss varies by L0; 0 if the number of rows is unknown."""
        return 1 / math.sqrt(self.data.rows) if self.data.rows > 0 else 0.0

    @cached_property
    def lead(self) -> float | None:
        """The largest sustained lead of the score over the commonest answer, in standard errors.

        The best of forty random evaluations is two standard errors above the mean, so neighbours are averaged.
        """
        if self.data.score is None or self.data.majority is None:
            return None
        width = 3 if self.count >= 6 else 2
        held = np.convolve(self.data.score, np.full(width, 1 / width), "valid")
        return float((np.max(held, initial=-np.inf) - self.data.majority) / self.error)

    @cached_property
    def beats_majority(self) -> bool:
        """Whether the score was above the commonest answer's by more than luck."""
        if self.data.beaten:
            return True
        return self.lead > 2 if self.lead is not None else self.lowest_eval_loss < 0.93

    @cached_property
    def score_gain(self) -> float:
        """The gain of the score from the middle third to the last, in standard errors or in units of its noise."""
        if self.data.score is None:
            return 0.0
        _, middle, last = thirds(self.data.score)
        return (last - middle) / max(self.error, jitter(self.data.score), 1e-9)

    @cached_property
    def slope(self) -> float:
        """The fall of the evaluation loss from the middle third to the last."""
        _, middle, last = thirds(self.eval_loss)
        return middle - last

    @property
    def _tail(self) -> slice:
        """The last quarter of the evaluations."""
        return slice(self.count - max(1, round(self.count / 4)), self.count)


def medians_of_three(values: Floats) -> Floats:
    """Return each value replaced by the median of it and its neighbours; the ends and short curves are unchanged."""
    if len(values) < 6:
        return values
    middle = np.median(np.lib.stride_tricks.sliding_window_view(values, 3), axis=1)
    return np.concatenate((values[:1], middle, values[-1:]))


def jitter(values: Floats) -> float:
    """Return the median second difference over 1.5: slopes and slow bends count little."""
    return float(np.median(np.abs(np.diff(values, 2)))) / 1.5 if len(values) > 2 else 0.0


def thirds(values: Floats) -> tuple[float, float, float]:
    """Return the medians of the first, the middle and the last third."""
    size = max(1, len(values) // 3)
    parts = (values[:size], values[size:-size], values[-size:])
    first, middle, last = (float(np.median(part)) if len(part) else math.nan for part in parts)
    return first, middle, last


def rank_correlation(values: Floats) -> float:
    """Return Spearman's correlation with the order: 1 for always rising, -1 for always falling, 0 for flat."""
    if len(values) < 3:
        return 0.0
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts + 1) / 2)[place]
    if np.ptp(ranks) == 0:
        return 0.0
    return float(np.corrcoef(np.arange(len(values)), ranks)[0, 1])


ENOUGH_REACH = 1e-3
"""Learning rate times steps after 20 steps at 5e-5. Below it, nothing can be said about what can be learnt."""


def collapsed(s: CurveFeatures) -> bool:
    """Return whether the run was better than chance once, and at the end has a chance score and a worse loss."""
    if s.data.score is None or s.data.majority is None or (s.data.probe and s.train_loss[-1] < 0.7):
        return False
    back = s.data.score[-1] <= s.data.majority + 2 * s.error
    return bool(s.beats_majority and s.eval_loss[s.best] < 0.9 and s.eval_loss[-1] > 1.1 and back)


def learnt_nothing(s: CurveFeatures) -> bool:
    """Condition of the three verdicts on the learning rate: neither a score nor a training loss better than chance."""
    return not s.beats_majority and s.tail_train_loss > 0.9 and not _just_began(s)


def _just_began(s: CurveFeatures) -> bool:
    """Return whether the newest score is no luck, although it has not lasted long enough to be a lead."""
    if s.data.score is None or s.data.majority is None:
        return False
    return bool(s.data.score[-1] > s.data.majority + 2 * s.error)


def reach(s: CurveFeatures) -> float:
    """Return the learning rate times the steps: about how far AdamW can move a weight. Infinite if the rate is
    unknown."""
    return (s.data.learning_rate or np.inf) * float(s.data.steps[-1])


def crawls(s: CurveFeatures) -> bool:
    """Return whether the evaluation loss falls with the training loss and is far from its end.

    A falling training loss alone means memorised rows; a fall that ended early means that the label shares were
    learnt.
    """
    first, middle, last = thirds(s.eval_loss)
    fell, lately = first - last, middle - last
    allowance = 1.5 * s.wobble
    ordered = -0.6 if s.count >= 8 else -0.75
    return s.order < ordered and fell > allowance and lately > 0.2 * fell - allowance


def rises_while_training_falls(s: CurveFeatures) -> bool:
    """Return whether the evaluation loss has a minimum with two later evaluations, while training continued to fall."""
    end = float(np.mean(s.eval_loss[-2:]))
    rise = end - s.lowest_eval_loss
    fell = not s.has_training or float(np.mean(s.train_loss[-2:])) < 0.9 * float(s.calm_train_loss[s.best])
    return (
        s.count - 1 - s.best >= 2
        and end > 1.1 * s.lowest_eval_loss
        and rise > max(0.03, 1.5 * s.noise)
        and fell
        and rank_correlation(s.eval_loss[s.best :]) > 0.5
    )


def rise(s: CurveFeatures) -> dict[str, float]:
    return {"rise": float(s.eval_loss[-1] - s.eval_loss[s.best]) * s.data.chance}


def score_lost(s: CurveFeatures) -> float:
    """Return the loss of score from its best stretch to its end."""
    if s.data.score is None:
        return 0.0
    held = np.convolve(s.data.score, (0.5, 0.5), "valid")
    return float(np.max(held) - held[-1])


def as_good_as_best(s: CurveFeatures, score: Floats) -> int:
    """Return the first evaluation whose score is within the standard error of the best."""
    return int(np.argmax(score >= np.max(score) - s.error))


def levelled(s: CurveFeatures) -> int:
    """Return the first evaluation as good as the last ones, within the noise."""
    return int(np.argmax(s.eval_loss <= s.tail_eval_loss + 0.02 + s.volatility))


def overlaps(s: CurveFeatures) -> bool:
    return s.data.overlap > 0.01


FEW_ROWS = 1 / 3
"""Largest share of the way to perfect that may be uncertain before a verdict mentions few rows."""
ROWS_TO_BLAME = 1 / 8
"""The same limit for calling labels wrong, which may also be too hard for the model."""
MOVED = 5 * ENOUGH_REACH
"""A model that moved this far has been trained, whatever it has learnt."""


def few_rows(s: CurveFeatures) -> bool:
    """Return whether the evaluation rows are too few for strong claims."""
    return s.left_open > FEW_ROWS
