"""Checks the inputs of metrics: each usual mistake raises with the values that show it."""

from __future__ import annotations

from typing import Any

import numpy as np

from whet.errors import UsageError
from whet.metrics.arrays import as_array, as_floats, check_finite, check_rows, flat_column
from whet.metrics.registry import MetricSpec
from whet.utils.arrays import Array


def checked_batch(spec: MetricSpec, predictions: Any, references: Any) -> tuple[Array, Array]:
    """Return references and predictions of one batch as arrays for `spec`."""
    said_name = "prediction_scores" if spec.takes == "scores" else "predictions"
    names = ("references", said_name)
    truth, predicted = (
        flat_column(as_array(values, name)) for values, name in zip((references, predictions), names, strict=True)
    )
    check_rows(truth, predicted, names)
    if spec.takes == "labels":
        _check_label_shapes(truth, predicted)
        truth, predicted = _labels(truth, "references"), _labels(predicted, "predictions")
        if (truth.dtype.kind in "US") != (predicted.dtype.kind in "US"):
            raise UsageError(
                f"references holds {truth.flat[0]!r} but predictions {predicted.flat[0]!r}: names and numbers.",
                "Pass both as label names, or both as class numbers.",
            )
    elif spec.takes == "numbers":
        truth, predicted = as_floats(truth, "references"), as_floats(predicted, "predictions")
        check_finite(truth, "references")
        check_finite(predicted, "predictions")
        if truth.shape != predicted.shape:
            raise UsageError(f"references has shape {truth.shape}, but predictions {predicted.shape}.")
    else:
        truth, predicted = _labels(truth, "references"), as_floats(predicted, said_name)
        check_finite(predicted, said_name)
    if spec.name == "glue" and (truth == -1).all():
        raise UsageError(
            "references are all -1: this split has no labels, as GLUE's test splits.",
            "Score on the validation split.",
        )
    return truth, predicted


def check_whole(spec: MetricSpec, truth: Array, predicted: Array) -> None:
    """Make the checks that need all batches."""
    if spec.takes == "scores" and truth.ndim == 1 and predicted.ndim == 2 and predicted.shape[1] == 2:
        raise UsageError(
            f"prediction_scores has shape {predicted.shape}, but two classes take one score per row.",
            "Pass the positive class's column: scores[:, 1].",
        )


def _check_label_shapes(truth: Array, predicted: Array) -> None:
    if truth.shape == predicted.shape:
        return
    if predicted.ndim > truth.ndim:
        raise UsageError(
            f"predictions has shape {predicted.shape}: these look like logits; take argmax(axis=-1) first."
        )
    if truth.ndim > predicted.ndim:
        raise UsageError(
            f"references has shape {truth.shape}, but predictions {predicted.shape}.",
            "One-hot labels become class numbers with argmax(axis=-1).",
        )
    raise UsageError(f"references has shape {truth.shape}, but predictions {predicted.shape}.")


def _labels(array: Array, name: str) -> Array:
    if array.dtype.kind != "f":
        return array
    check_finite(array, name)
    broken = array[array != np.floor(array)]
    if broken.size:
        raise UsageError(
            f"{name} holds {broken.flat[0].item()!r}, but labels are expected.",
            "Turn scores into labels first: argmax(axis=-1), or > 0.5 for each of several labels.",
        )
    return array.astype(np.int64)
