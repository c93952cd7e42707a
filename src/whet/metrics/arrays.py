"""Converts anything that holds numbers to a numpy array, and explains the usual mistakes.

Lists, numpy arrays, torch tensors (on any device, with or without gradients), pandas Series and dataset columns are
accepted. No library is imported for that: an object is recognised by its methods.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whet.errors import UsageError
from whet.utils.arrays import Array


def as_array(values: Any, name: str) -> Array:
    """Return `values` as a numpy array of numbers or strings; errors call it `name`."""
    if values is None:
        raise UsageError(f"{name} is missing.", f"Pass {name}=.")
    if isinstance(values, str | bytes | Mapping | Set):
        raise UsageError(
            f"{name} is a {type(values).__name__}, but one value per row is expected.",
            "Pass a list or an array.",
        )
    array = _converted(values, name)
    if array.dtype == bool:
        return array.astype(np.int64)
    return _without_objects(array, name) if array.dtype == object else array


def as_floats(values: Any, name: str) -> NDArray[np.float64]:
    """Return `values` as float64; raise if they are not numbers."""
    array = as_array(values, name)
    if array.dtype.kind not in "iuf":
        raise UsageError(f"{name} holds {array.flat[0]!r}, but numbers are expected.")
    return array.astype(np.float64)


def flat_column(array: Array) -> Array:
    """Return a single column [n, 1], the output of a regression head, as [n]."""
    return array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array


def check_rows(labels: Array, predictions: Array, names: tuple[str, str] = ("labels", "predictions")) -> None:
    """Raise unless both have at least one row, and the same number of rows."""
    for array, name in zip((labels, predictions), names, strict=True):
        if array.ndim == 0:
            raise UsageError(f"{name} is the single value {array.item()!r}.", "Pass one value per row.")
        if len(array) == 0:
            raise UsageError(f"{name} is empty: there is nothing to score.")
    if len(labels) != len(predictions):
        raise UsageError(f"{names[0]} has {len(labels)} rows, but {names[1]} has {len(predictions)}.")


def check_finite(array: Array, name: str) -> None:
    """Raise if a value is nan or infinite; the error names the first such row."""
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return
    row = int(np.flatnonzero(~np.isfinite(array.reshape(len(array), -1)).all(axis=1))[0])
    raise UsageError(f"{name} holds {array[row].tolist()} in row {row}: not a finite number.")


def _converted(values: Any, name: str) -> Array:
    if hasattr(values, "detach"):
        tensor = values.detach().cpu()
        # numpy has no bfloat16, and torch refuses to convert it.
        return np.asarray((tensor.float() if "bfloat16" in str(tensor.dtype) else tensor).numpy())
    if hasattr(values, "__array__"):
        return np.asarray(values)
    if not isinstance(values, list | tuple):
        # Slicing a dataset's column returns a plain list, much faster than reading row by row.
        values = values[:] if hasattr(values, "__getitem__") else list(values)
    if len(values) and hasattr(values[0], "detach"):
        values = [_converted(value, name) for value in values]
    try:
        return np.asarray(values)
    except ValueError:
        raise UsageError(f"{name} has rows of different lengths.", "Pass one array, not several.") from None


def _without_objects(array: Array, name: str) -> Array:
    for row, value in enumerate(array):
        if value is None or value != value or isinstance(value, list):
            raise UsageError(f"{name} holds {value!r} in row {row}, but a label or a number is expected.")
    plain = np.asarray(array.tolist())
    if plain.dtype == object:
        raise UsageError(f"{name} holds {array.flat[0]!r}, but labels or numbers are expected.")
    return plain
