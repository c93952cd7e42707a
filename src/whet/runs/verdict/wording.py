"""Formats a verdict's numbers: losses, scores, steps, and flags with the value to try next."""

from __future__ import annotations

from typing import Any

import numpy as np

from whet.records import FEW_UNKNOWN, MUCH_UNREAD, Baselines
from whet.runs.score_words import is_share, score_text
from whet.runs.verdict.baselines import IN_SENTENCES, rivals, rows_in_words
from whet.runs.verdict.features import CurveFeatures

OTHER_MODEL = "such as --model intfloat/multilingual-e5-small, or a local folder"


def step(s: CurveFeatures, at: int) -> int:
    return int(s.data.steps[at])


def share(s: CurveFeatures, at: int) -> float:
    """Return the finished share of the run at this evaluation."""
    return step(s, at) / max(step(s, -1), 1)


def loss(s: CurveFeatures, value: float) -> str:
    """Format an evaluation loss, or a difference of two."""
    return f"{float(value) * s.data.chance:.3f}"


def train_loss(s: CurveFeatures, value: float) -> str:
    """Format a loss on the training rows, which may have other label shares."""
    unit = (s.data.chance_training or s.data.chance) if s.has_training else s.data.chance
    return f"{float(value) * unit:.3f}"


def chance(s: CurveFeatures) -> str:
    return f"{s.data.blind} gives {s.data.chance:.3f}"


def number(s: CurveFeatures, value: float) -> str:
    """Format a score of this curve, with its sign restored if lower is better."""
    return score_text(s.data.metric, value if s.data.higher_is_better else -value)


def points(s: CurveFeatures, difference: float) -> str:
    return f"{100 * difference:.1f} points" if is_share(s.data.metric) else f"{difference:.3f}"


def score(s: CurveFeatures) -> str:
    if s.data.score is None:
        return "no score was recorded"
    majority = f" ({s.data.constant}: {number(s, s.data.majority)})" if s.data.majority is not None else ""
    return f"{s.data.metric} at best {number(s, float(np.max(s.data.score)))}{majority}"


def rate(s: CurveFeatures, factor: float, otherwise: str = "") -> str:
    if s.data.learning_rate:
        return f"--lr {s.data.learning_rate * factor:.2g}"
    return f"--lr {otherwise}" if otherwise else f"--lr × {factor:g}"


def epochs(s: CurveFeatures, factor: float) -> str:
    factor = max(factor, 0.1)  # the best evaluation may be the one before the first step
    if s.data.epochs:
        return f"--epochs {max(s.data.epochs * factor, 0.1):.2g}"
    return f"--epochs × {factor:.2g}"


def batch(s: CurveFeatures, factor: int) -> str:
    return f"--batch-size {s.data.batch_size * factor}" if s.data.batch_size else f"--batch-size × {factor}"


def partly_unknown(s: CurveFeatures) -> str:
    """Return advice about unknown text, which precedes any other advice."""
    if s.data.unknown < FEW_UNKNOWN:
        return ""
    return f"{s.data.unknown:.0%} of the tokens are unknown to this model: first try another one, {OTHER_MODEL}. "


def partly_unread(s: CurveFeatures) -> str:
    """Return advice about text beyond the length limit, which follows any other advice."""
    if s.data.unread < MUCH_UNREAD:
        return ""
    return f" {s.data.unread:.0%} of the text is not read: --long windows reads all of it."


def since(s: CurveFeatures) -> str:
    """Describe the evaluation loss at the end, if it is not at its lowest."""
    return "" if s.best == s.count - 1 else f" and is {loss(s, s.eval_loss[-1])} at the end"


def rival(found: Baselines, each: dict[str, Any]) -> str:
    return f"{IN_SENTENCES.get(each['name'], each['name'])} ({score_text(found.metric, each['value'])})"


def none_of_them(found: Baselines) -> str:
    """Name the baselines that read the text, for a sentence that starts with "no better than"."""
    named = [rival(found, each) for each in rivals(found)]
    return f", and neither is {' nor '.join(named)}" if named else ""


def interval(found: Baselines) -> str:
    """Describe the interval of the model's score and its rows."""
    if not found.interval:
        return f"{found.metric} {score_text(found.metric, found.value)} on {rows_in_words(found)}"
    low, high = (score_text(found.metric, edge) for edge in found.interval)
    return f"{found.metric} {low} to {high} on {rows_in_words(found)}"


def left_open(s: CurveFeatures) -> str:
    """Describe the possible error of a score on so few rows."""
    return f"{points(s, 2 * s.error)} either way"
