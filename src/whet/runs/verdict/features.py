"""What the rules of the verdict look at: a curve, and the few numbers that describe it.

Losses are divided by L0, the loss of knowing the label shares and nothing else: 1.0 is "has learnt nothing
yet", whatever the number of classes and however uneven they are.
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
    """The series that are judged, one value an evaluation, and what must be known to read them."""

    steps: NDArray[np.int64]
    evaluation: Floats
    """Loss on the evaluation split."""
    training: Floats | None = None
    """Loss on training rows: the fixed probe where there is one."""
    score: Floats | None = None
    """The main metric; its sign is changed where lower is better, so that more is always better here."""
    chance: float
    """L0 of the evaluation split."""
    chance_training: float | None = None
    """L0 of the training split, where it is known."""
    blind: str = "knowing only the label shares"
    """What has the loss `chance`, in words."""
    majority: float | None = None
    """The score of always giving the commonest answer."""
    constant: str = "commonest answer"
    """What that answer is called."""
    rows: int = 0
    """Evaluation rows: they say how much a score wobbles."""
    metric: str = "metric"
    higher_is_better: bool = True
    answer: str = "always giving the commonest answer"
    """What a constant answer would be, for people."""
    beaten: bool = False
    """Whether another metric than the main one is known to beat the commonest answer."""
    overlap: float = 0.0
    """Share of evaluation rows that also stand in the training split."""
    unknown: float = 0.0
    """Share of the tokens that stand for text the model's tokenizer does not know."""
    unread: float = 0.0
    """Share of the text that the model does not read, because it is longer than that."""
    probe: bool = True
    """False where `training` is the running loss, with dropout on and behind the times."""
    learning_rate: float | None = None
    epochs: float | None = None
    batch_size: int | None = None
    baselines: Baselines | None = None
    """The model among simpler answers to the same rows, where they were made."""
    nonfinite_step: int | None = None
    """The step at which training met a loss that is not finite."""
    assumed: tuple[str, ...] = ()
    """What had to be guessed to judge at all."""


class CurveFeatures:
    """Numbers of one curve, each computed when a rule first asks for it."""

    def __init__(self, data: CurveData) -> None:
        self.data = data
        self.count = len(data.steps)
        self.eval_loss = data.evaluation / data.chance
        # Where nothing is known of the training rows the evaluation loss stands in; rules that compare ask.
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
        """Where the evaluation loss was smallest."""
        return int(np.argmin(self.eval_loss))

    @cached_property
    def lowest_eval_loss(self) -> float:
        """The smallest evaluation loss, less what the luckiest of many noisy evaluations owes to luck."""
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
        """How far an evaluation lies from its neighbours; about the standard deviation of the noise."""
        return jitter(self.eval_loss)

    @cached_property
    def turns(self) -> int:
        """How often the evaluation loss changes between falling and rising."""
        signs = np.sign(np.diff(self.eval_loss))
        return int(np.sum(signs[1:] != signs[:-1]))

    @cached_property
    def noise(self) -> float:
        """The volatility, unless the curve falls, turns once and rises: on few evaluations a bend looks like noise."""
        return self.volatility if self.turns > 1 else 0.0

    @cached_property
    def wobble(self) -> float:
        """What the median of a third of the evaluations owes to noise; nothing on a smooth curve."""
        return self.volatility / math.sqrt(max(self.count / 3, 1))

    @cached_property
    def flips(self) -> float:
        """The share of turns between up and down."""
        return self.turns / (self.count - 2) if self.count > 2 else 0.0

    @cached_property
    def leap(self) -> float:
        """The largest rise of the evaluation loss from one evaluation to the next."""
        return float(np.max(np.diff(self.eval_loss), initial=0))

    @cached_property
    def order(self) -> float:
        """-1 for always falling, 1 for always rising. A running training loss is too restless to have a say."""
        return rank_correlation((self.eval_loss + self.train_loss) / 2 if self.data.probe else self.eval_loss)

    @cached_property
    def error(self) -> float:
        """The standard error of the score of always giving the commonest answer."""
        majority, rows = self.data.majority, max(self.data.rows, 1)
        if majority is not None and not self.data.higher_is_better:
            return abs(majority) * math.sqrt(2 / rows)  # an error's own spread, as for a variance
        if majority is not None and not 0 < majority < 1:
            return 1 / math.sqrt(rows)  # a correlation is 0 by chance, where p(1 - p) would say "no error"
        share = 0.5 if majority is None else majority
        return math.sqrt(share * (1 - share) / rows)

    @cached_property
    def left_open(self) -> float:
        """Two standard errors, as a share of the way from the commonest answer's score to a perfect one.

        0 where the number of rows is not known.
        """
        if self.data.rows < 1:
            return 0.0
        majority = 0.5 if self.data.majority is None else self.data.majority
        room = 1 - majority if self.data.higher_is_better else abs(majority)
        return 2 * self.error / max(room, 1e-9)

    @cached_property
    def one_row(self) -> float:
        """What a mean loss owes to luck if each row's loss moves by L0: nothing where the rows are not known."""
        return 1 / math.sqrt(self.data.rows) if self.data.rows > 0 else 0.0

    @cached_property
    def lead(self) -> float | None:
        """How far the score got and stayed above that of the commonest answer, in standard errors.

        The best of forty lucky evaluations is two errors up on its own, so neighbours are averaged.
        """
        if self.data.score is None or self.data.majority is None:
            return None
        width = 3 if self.count >= 6 else 2
        held = np.convolve(self.data.score, np.full(width, 1 / width), "valid")
        return float((np.max(held, initial=-np.inf) - self.data.majority) / self.error)

    @cached_property
    def beats_majority(self) -> bool:
        """Whether the score was above that of the commonest answer by more than luck."""
        if self.data.beaten:
            return True
        return self.lead > 2 if self.lead is not None else self.lowest_eval_loss < 0.93

    @cached_property
    def score_gain(self) -> float:
        """What the score gained from the middle third to the last, in standard errors or in its own noise."""
        if self.data.score is None:
            return 0.0
        _, middle, last = thirds(self.data.score)
        return (last - middle) / max(self.error, jitter(self.data.score), 1e-9)

    @cached_property
    def slope(self) -> float:
        """What the evaluation loss fell by, from the middle third to the last."""
        _, middle, last = thirds(self.eval_loss)
        return middle - last

    @property
    def _tail(self) -> slice:
        """The last quarter of the evaluations."""
        return slice(self.count - max(1, round(self.count / 4)), self.count)


def medians_of_three(values: Floats) -> Floats:
    """Each value replaced by the median of it and its neighbours; the ends and a short curve stay."""
    if len(values) < 6:
        return values
    middle = np.median(np.lib.stride_tricks.sliding_window_view(values, 3), axis=1)
    return np.concatenate((values[:1], middle, values[-1:]))


def jitter(values: Floats) -> float:
    """The median second difference over 1.5: a slope or a slow bend counts for little."""
    return float(np.median(np.abs(np.diff(values, 2)))) / 1.5 if len(values) > 2 else 0.0


def thirds(values: Floats) -> tuple[float, float, float]:
    """The medians of the first, the middle and the last third."""
    size = max(1, len(values) // 3)
    parts = (values[:size], values[size:-size], values[-size:])
    first, middle, last = (float(np.median(part)) if len(part) else math.nan for part in parts)
    return first, middle, last


def rank_correlation(values: Floats) -> float:
    """Spearman's, with the order of the values: 1 for always rising, -1 for always falling, 0 for flat."""
    if len(values) < 3:
        return 0.0
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts + 1) / 2)[place]
    if np.ptp(ranks) == 0:
        return 0.0
    return float(np.corrcoef(np.arange(len(values)), ranks)[0, 1])


ENOUGH_REACH = 1e-3
"""A rate of 5e-5 has moved the weights so far after 20 steps. Less than that says nothing about what can be learnt."""


def collapsed(s: CurveFeatures) -> bool:
    """Better than chance once, and at the end no better in score and worse in loss."""
    if s.data.score is None or s.data.majority is None or (s.data.probe and s.train_loss[-1] < 0.7):
        return False
    back = s.data.score[-1] <= s.data.majority + 2 * s.error
    return bool(s.beats_majority and s.eval_loss[s.best] < 0.9 and s.eval_loss[-1] > 1.1 and back)


def learnt_nothing(s: CurveFeatures) -> bool:
    """The gate of the three verdicts on the rate: no score, and no training loss below chance."""
    return not s.beats_majority and s.tail_train_loss > 0.9 and not _just_began(s)


def _just_began(s: CurveFeatures) -> bool:
    """The newest score is no luck, though it has not held for long enough to be a lead."""
    if s.data.score is None or s.data.majority is None:
        return False
    return bool(s.data.score[-1] > s.data.majority + 2 * s.error)


def reach(s: CurveFeatures) -> float:
    """The rate times the steps: about as far as AdamW can have moved a weight. Infinite where no rate is known."""
    return (s.data.learning_rate or np.inf) * float(s.data.steps[-1])


def crawls(s: CurveFeatures) -> bool:
    """Falls, and is nowhere near its end: evaluation with training, in the last third as before.

    Training alone falling is rows learnt by heart; a fall that ended early is the label shares being learnt.
    """
    first, middle, last = thirds(s.eval_loss)
    fell, lately = first - last, middle - last
    allowance = 1.5 * s.wobble
    ordered = -0.6 if s.count >= 8 else -0.75
    return s.order < ordered and fell > allowance and lately > 0.2 * fell - allowance


def rises_while_training_falls(s: CurveFeatures) -> bool:
    """The evaluation loss has a bottom with two evaluations after it, and training went on from there."""
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
    """From the best stretch of the score to its end."""
    if s.data.score is None:
        return 0.0
    held = np.convolve(s.data.score, (0.5, 0.5), "valid")
    return float(np.max(held) - held[-1])


def as_good_as_best(s: CurveFeatures, score: Floats) -> int:
    """The first evaluation whose score is within its error of the best: later ones may owe the rest to luck."""
    return int(np.argmax(score >= np.max(score) - s.error))


def levelled(s: CurveFeatures) -> int:
    """The first evaluation as good as the end, give or take the noise."""
    return int(np.argmax(s.eval_loss <= s.tail_eval_loss + 0.02 + s.volatility))


def overlaps(s: CurveFeatures) -> bool:
    return s.data.overlap > 0.01


FEW_ROWS = 1 / 3
"""Share of the way to perfect that evaluation rows may leave open before a verdict says that they are few."""
ROWS_TO_BLAME = 1 / 8
"""The same, for calling labels wrong that may as well be beyond the model."""
MOVED = 5 * ENOUGH_REACH
"""A model that has moved so far has been trained, whatever it has learnt."""


def few_rows(s: CurveFeatures) -> bool:
    """Too few evaluation rows to claim much."""
    return s.left_open > FEW_ROWS
