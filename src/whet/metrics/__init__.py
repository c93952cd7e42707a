"""Metrics: arrays in, numbers out; no network, and neither scikit-learn, scipy nor torch on import.

    import whet.metrics as evaluate
    evaluate.load("glue", "mrpc").compute(predictions=[1, 0], references=[1, 1])

`scores` computes from labels or logits, `intervals` says how far a score can be trusted, `calibration`
whether the probabilities can, `majority` what a constant answer would have scored, `linear_models` and `baselines` what
linear models score on the same rows, and `evaluate_api` has the objects that code written for the `evaluate` library
expects.
"""

from __future__ import annotations

from whet.metrics.calibration import (
    Bin,
    expected_calibration_error,
    fit_temperature,
    negative_log_likelihood,
    reliability,
)
from whet.metrics.evaluate_api import Combined, Metric, combine, load, load_metric
from whet.metrics.intervals import Interval, Paired, bootstrap, paired, score_intervals, smallest_visible, wilson
from whet.metrics.majority import Majority, majority
from whet.metrics.scores import (
    MAIN_METRIC,
    METRICS,
    TASK_METRICS,
    accuracy,
    average_precision,
    f1,
    higher_is_better,
    log_loss,
    macro_f1,
    mae,
    matthews_correlation,
    micro_f1,
    mse,
    pearson,
    precision,
    predicted,
    probabilities,
    r2,
    recall,
    roc_auc,
    score,
    spearman,
    weighted_f1,
)

__all__ = [
    "MAIN_METRIC",
    "METRICS",
    "TASK_METRICS",
    "Bin",
    "Combined",
    "Interval",
    "Majority",
    "Metric",
    "Paired",
    "accuracy",
    "average_precision",
    "bootstrap",
    "combine",
    "expected_calibration_error",
    "f1",
    "fit_temperature",
    "higher_is_better",
    "load",
    "load_metric",
    "log_loss",
    "macro_f1",
    "mae",
    "majority",
    "matthews_correlation",
    "micro_f1",
    "mse",
    "negative_log_likelihood",
    "paired",
    "pearson",
    "precision",
    "predicted",
    "probabilities",
    "r2",
    "recall",
    "reliability",
    "roc_auc",
    "score",
    "score_intervals",
    "smallest_visible",
    "spearman",
    "weighted_f1",
    "wilson",
]
