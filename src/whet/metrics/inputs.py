"""What people pass to a metric, checked: each usual mistake is refused with the values that show it."""

from __future__ import annotations

from typing import Any

import numpy as np

from whet.errors import UsageError
from whet.metrics.arrays import Array, as_array, as_floats, check_finite, check_rows, flat_column
from whet.metrics.registry import MetricSpec


def checked_batch(spec: MetricSpec, predictions: Any, references: Any) -> tuple[Array, Array]:
    """References and predictions of one batch as arrays that `spec` can compute with."""
    said_name = "prediction_scores" if spec.takes == "scores" else "predictions"
    names = ("references", said_name)
    truth, said = (
        flat_column(as_array(values, name)) for values, name in zip((references, predictions), names, strict=True)
    )
    check_rows(truth, said, names)
    if spec.takes == "labels":
        _check_label_shapes(truth, said)
        truth, said = _labels(truth, "references"), _labels(said, "predictions")
        if (truth.dtype.kind in "US") != (said.dtype.kind in "US"):
            raise UsageError(
                f"references holds {truth.flat[0]!r} but predictions {said.flat[0]!r}: names and numbers.",
                "Pass both as label names, or both as class numbers.",
            )
    elif spec.takes == "numbers":
        truth, said = as_floats(truth, "references"), as_floats(said, "predictions")
        check_finite(truth, "references")
        check_finite(said, "predictions")
        if truth.shape != said.shape:
            raise UsageError(f"references has shape {truth.shape}, but predictions {said.shape}.")
    else:
        truth, said = _labels(truth, "references"), as_floats(said, said_name)
        check_finite(said, said_name)
    if spec.name == "glue" and (truth == -1).all():
        raise UsageError(
            "references are all -1: this split has no labels, as GLUE's test splits.",
            "Score on the validation split.",
        )
    return truth, said


def check_together(spec: MetricSpec, truth: Array, said: Array) -> None:
    """What can only be seen once all batches are there."""
    if spec.takes == "scores" and truth.ndim == 1 and said.ndim == 2 and said.shape[1] == 2:
        raise UsageError(
            f"prediction_scores has shape {said.shape}, but two classes take one score a row.",
            "Pass the positive class's column: scores[:, 1].",
        )


def _check_label_shapes(truth: Array, said: Array) -> None:
    if truth.shape == said.shape:
        return
    if said.ndim > truth.ndim:
        raise UsageError(f"predictions has shape {said.shape}: these look like logits; take argmax(axis=-1) first.")
    if truth.ndim > said.ndim:
        raise UsageError(
            f"references has shape {truth.shape}, but predictions {said.shape}.",
            "One-hot labels become class numbers with argmax(axis=-1).",
        )
    raise UsageError(f"references has shape {truth.shape}, but predictions {said.shape}.")


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
