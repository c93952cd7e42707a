"""Evaluates a saved model on labelled data: scores with intervals, next to a constant answer's."""

from __future__ import annotations

from typing import Any

import numpy as np

from whet.config import DataConfig
from whet.data.dropping import summary_lines
from whet.data.examples import load_examples
from whet.errors import DataError
from whet.inference.predictor import Predictor
from whet.metrics.intervals import absent_classes, score_intervals
from whet.metrics.majority import majority
from whet.utils.text import Echo


def evaluate_model(
    predictor: Predictor, source: Any, config: DataConfig, echo: Echo = lambda line: None
) -> dict[str, Any]:
    """Return the scores for each labelled split of the source."""
    task = predictor.task
    examples = load_examples(source, config, labelled=False, task=task, echo=echo)
    for line in summary_lines(examples.origin):
        echo(line)
    results: dict[str, Any] = {}
    for name, split in examples.rows.items():
        labels = split.column("label")
        known = [index for index, label in enumerate(labels) if label is not None]
        unknown = examples.origin["unseen_rows"].get(name, 0)
        if not known:
            continue
        texts, pairs = split.column("text"), split.column("pair")
        logits = predictor.logits(
            [texts[index] for index in known], [pairs[index] for index in known] if pairs else None
        )
        truth = np.asarray([labels[index] for index in known])
        answer = majority(task.kind, truth, truth)
        results[name] = {
            "rows": len(known),
            "unlabelled": len(labels) - len(known) - unknown,
            "unknown_labels": unknown,
            "absent_labels": [task.labels[index] for index in absent_classes(task.kind, truth, len(task.labels))],
            "metrics": {
                metric: {"value": found.value, "low": found.low, "high": found.high}
                for metric, found in score_intervals(task.kind, logits, truth).items()
            },
            "majority": {
                "metric": answer.metric,
                "value": answer.value,
                "label": answer.named(task.labels),
                **answer.scores,
            },
        }
    if line := predictor.unread_line():
        echo(line)
    strange = [label for counts in examples.origin.get("unseen_labels", {}).values() for label in counts]
    if not results and strange:
        raise DataError(
            f"The labels of {config.source!r} are {', '.join(map(repr, strange[:5]))}, and the model's are "
            f"{', '.join(map(repr, task.labels))}."
        )
    if not results:
        raise DataError(
            f"{config.source!r} has no labelled rows to score.", "`whet predict` labels rows without a label."
        )
    return results
