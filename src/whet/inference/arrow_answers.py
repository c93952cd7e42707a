"""Predictions as typed Arrow columns, with the same types for every piece of a large table.

Labelling into parts, Ray and Spark append these columns. Rows without a text stay, with null predictions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from whet.utils.arrays import Array

if TYPE_CHECKING:
    from whet.inference.predictor import Predictor
    from whet.runs.decisions import Decisions
    from whet.task import Task


def answer_types(task: Task, decisions: Decisions) -> dict[str, Any]:
    """Return the names of the prediction columns and their Arrow types."""
    import pyarrow as pa

    label = {"regression": pa.float64(), "multilabel": pa.list_(pa.string())}.get(task.kind, pa.string())
    found: dict[str, Any] = {"label": label}
    if task.kind != "regression":
        found["probability"] = pa.float64()
    if decisions.confidence is not None:
        found["abstain"] = pa.bool_()
    if decisions.limit is not None:
        found["candidates"] = pa.list_(pa.float64() if task.kind == "regression" else pa.string())
    return {**found, **{f"p({name})": pa.float64() for name in task.labels}}


def answer_columns(predictor: Predictor, texts: Sequence[Any], *, raw: bool = False) -> tuple[dict[str, Any], int]:
    """Return the predictions for a column of texts, or for two of pairs, and the number of rows without text."""
    import pyarrow as pa

    columns = [column.cast(pa.large_string()) for column in texts]
    there = _present(columns)
    chosen = [column.filter(pa.array(there)).to_pylist() for column in columns]
    logits = predictor.logits(chosen[0], chosen[1] if len(chosen) > 1 else None) if there.any() else None
    said = iter(()) if logits is None else predictor.decode(logits, raw=raw)
    rows = [_flat(next(said).to_dict()) if full else {} for full in there]
    types = answer_types(predictor.task, predictor.decisions)
    return {name: pa.array([row.get(name) for row in rows], kind) for name, kind in types.items()}, int((~there).sum())


def _present(columns: Sequence[Any]) -> Array:
    """Return where every text of a row has more than white space."""
    import pyarrow.compute as pc

    there = np.ones(len(columns[0]), bool)
    for column in columns:
        full = pc.greater(pc.utf8_length(pc.utf8_trim_whitespace(column)), 0)
        there &= pc.fill_null(full, False).to_numpy(zero_copy_only=False)
    return there


def _flat(answer: dict[str, Any]) -> dict[str, Any]:
    return {**answer, **{f"p({name})": value for name, value in answer["probabilities"].items()}}
