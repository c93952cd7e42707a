"""The metrics that can be loaded by name: their inputs, functions and result keys.

Names, keyword arguments and result keys are those of the `evaluate` library, so that code for it runs unchanged.
scikit-learn computes them and is imported at the first call. The metrics of GLUE come from `scores`. Each function
takes checked (references, predictions), then options by keyword.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Any, Literal

import numpy as np

from whet.errors import UsageError
from whet.metrics import scores
from whet.utils.arrays import Array

Result = dict[str, Any]


@dataclass(frozen=True)
class MetricSpec:
    """One metric: its function, the kind of its predictions, and its configurations."""

    name: str
    compute: Callable[..., Result]
    takes: Literal["labels", "numbers", "scores"]
    description: str
    configs: tuple[str, ...] = ("default",)

    @property
    def options(self) -> tuple[str, ...]:
        """Keyword arguments of `compute` besides predictions and references."""
        return tuple(signature(self.compute).parameters)[2:]


def _accuracy(references: Array, predictions: Array, normalize: bool = True, sample_weight: Any = None) -> Result:
    from sklearn.metrics import accuracy_score

    value = accuracy_score(references, predictions, normalize=normalize, sample_weight=sample_weight)
    return {"accuracy": float(value)}


def _per_class(name: str) -> Callable[..., Result]:
    """Return precision, recall or f1, which differ only in the function that they call."""

    def compute(
        references: Array,
        predictions: Array,
        labels: Any = None,
        pos_label: Any = 1,
        average: str | None = "binary",
        sample_weight: Any = None,
        zero_division: Any = "warn",
    ) -> Result:
        import sklearn.metrics

        value = getattr(sklearn.metrics, f"{name}_score")(
            references,
            predictions,
            labels=labels,
            pos_label=pos_label,
            average=average,
            sample_weight=sample_weight,
            zero_division=0 if zero_division == "warn" else zero_division,
        )
        return {name: _plain(value)}

    return compute


def _matthews(references: Array, predictions: Array, sample_weight: Any = None, average: str | None = None) -> Result:
    from sklearn.metrics import matthews_corrcoef

    if references.ndim == 1:
        return {"matthews_correlation": float(matthews_corrcoef(references, predictions, sample_weight=sample_weight))}
    if average not in (None, "macro"):
        raise UsageError(f"average={average!r} is unknown.", "Choose 'macro', or None for one value per label.")
    columns = zip(references.T, predictions.T, strict=True)
    each = [float(matthews_corrcoef(*column, sample_weight=sample_weight)) for column in columns]
    return {"matthews_correlation": sum(each) / len(each) if average == "macro" else each}


def _pearsonr(references: Array, predictions: Array, return_pvalue: bool = False) -> Result:
    result: Result = {"pearsonr": scores.pearson(references, predictions)}
    if return_pvalue:
        from scipy.stats import pearsonr

        result["p-value"] = float(pearsonr(references, predictions)[1])
    return result


def _spearmanr(references: Array, predictions: Array, return_pvalue: bool = False) -> Result:
    result: Result = {"spearmanr": scores.spearman(references, predictions)}
    if return_pvalue:
        from scipy.stats import spearmanr

        result["spearmanr_pvalue"] = float(spearmanr(references, predictions)[1])
    return result


def _mse(
    references: Array,
    predictions: Array,
    sample_weight: Any = None,
    multioutput: Any = "uniform_average",
    squared: bool = True,
) -> Result:
    from sklearn.metrics import mean_squared_error, root_mean_squared_error

    measure = mean_squared_error if squared else root_mean_squared_error
    return {"mse": _plain(measure(references, predictions, sample_weight=sample_weight, multioutput=multioutput))}


def _mae(
    references: Array, predictions: Array, sample_weight: Any = None, multioutput: Any = "uniform_average"
) -> Result:
    from sklearn.metrics import mean_absolute_error

    value = mean_absolute_error(references, predictions, sample_weight=sample_weight, multioutput=multioutput)
    return {"mae": _plain(value)}


def _r_squared(references: Array, predictions: Array) -> Result:
    return {"r_squared": scores.r2(references, predictions)}


def _roc_auc(
    references: Array,
    prediction_scores: Array,
    average: str | None = "macro",
    sample_weight: Any = None,
    max_fpr: float | None = None,
    multi_class: str = "raise",
    labels: Any = None,
) -> Result:
    from sklearn.metrics import roc_auc_score

    # Some versions of scikit-learn raise here and others warn.
    if references.ndim == 1 and len(np.unique(references)) == 1:
        return {"roc_auc": math.nan}
    value = roc_auc_score(
        references,
        prediction_scores,
        average=average,
        sample_weight=sample_weight,
        max_fpr=max_fpr,
        multi_class=multi_class,
        labels=labels,
    )
    return {"roc_auc": _plain(value)}


def _average_precision(
    references: Array,
    prediction_scores: Array,
    average: str | None = "macro",
    pos_label: Any = 1,
    sample_weight: Any = None,
) -> Result:
    from sklearn.metrics import average_precision_score

    value = average_precision_score(
        references, prediction_scores, average=average, pos_label=pos_label, sample_weight=sample_weight
    )
    return {"average_precision": _plain(value)}


def _plain(value: Any) -> Any:
    """Return a Python float, or an array with one value per class."""
    return value if np.ndim(value) else float(value)


def _glue_accuracy(references: Array, predictions: Array) -> Result:
    return {"accuracy": scores.accuracy(references, predictions)}


def _glue_accuracy_f1(references: Array, predictions: Array) -> Result:
    return {**_glue_accuracy(references, predictions), "f1": scores.f1(references, predictions)}


def _glue_matthews(references: Array, predictions: Array) -> Result:
    return {"matthews_correlation": scores.matthews_correlation(references, predictions)}


def _glue_correlations(references: Array, predictions: Array) -> Result:
    return {
        "pearson": scores.pearson(references, predictions),
        "spearmanr": scores.spearman(references, predictions),
    }


_ACCURACY_TASKS = ("sst2", "mnli", "mnli_matched", "mnli_mismatched", "qnli", "rte", "wnli", "hans")

_GLUE: dict[str, Callable[..., Result]] = {
    "cola": _glue_matthews,
    # The diagnostic set is missing in `evaluate`; GLUE scores it by Matthews correlation.
    "ax": _glue_matthews,
    "mrpc": _glue_accuracy_f1,
    "qqp": _glue_accuracy_f1,
    "stsb": _glue_correlations,
    **dict.fromkeys(_ACCURACY_TASKS, _glue_accuracy),
}

GLUE = {
    config: MetricSpec(
        "glue",
        compute,
        "numbers" if config == "stsb" else "labels",
        f"The metric of the GLUE benchmark's task {config}.",
        tuple(_GLUE),
    )
    for config, compute in _GLUE.items()
}

_LABELS = ("default", "multilabel")
_NUMBERS = ("default", "multilist")

GENERAL = {
    recipe.name: recipe
    for recipe in (
        MetricSpec("accuracy", _accuracy, "labels", "Share of rows that are right.", _LABELS),
        MetricSpec(
            "precision",
            _per_class("precision"),
            "labels",
            "Share of a class's predictions that are right.",
            _LABELS,
        ),
        MetricSpec("recall", _per_class("recall"), "labels", "Share of a class's rows that are found.", _LABELS),
        MetricSpec("f1", _per_class("f1"), "labels", "Harmonic mean of precision and recall.", _LABELS),
        MetricSpec("matthews_correlation", _matthews, "labels", "Correlation of labels and predictions.", _LABELS),
        MetricSpec("pearsonr", _pearsonr, "numbers", "Linear correlation."),
        MetricSpec("spearmanr", _spearmanr, "numbers", "Correlation of ranks."),
        MetricSpec("mse", _mse, "numbers", "Mean squared error.", _NUMBERS),
        MetricSpec("mae", _mae, "numbers", "Mean absolute error.", _NUMBERS),
        MetricSpec("r_squared", _r_squared, "numbers", "Share of the variance that is explained."),
        MetricSpec(
            "roc_auc",
            _roc_auc,
            "scores",
            "Area under the ROC curve.",
            ("default", "multiclass", "multilabel"),
        ),
        MetricSpec("average_precision", _average_precision, "scores", "Area under precision over recall.", _LABELS),
    )
}
