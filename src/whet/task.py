"""The task that the labels make: classes, several labels per row, or a number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from whet.errors import ArtifactError


@dataclass(frozen=True)
class Task:
    """What the model is asked to do."""

    kind: str
    """`binary`, `multiclass`, `multilabel` or `regression`; `unlabelled` where nobody asked for labels."""
    labels: tuple[str, ...]
    """Names in label order; empty for regression."""

    @property
    def outputs(self) -> int:
        """Logits a row."""
        return len(self.labels) or 1


PROBLEM_TYPES = {
    "binary": "single_label_classification",
    "multiclass": "single_label_classification",
    "multilabel": "multi_label_classification",
    "regression": "regression",
}


def saved_task(config: Any) -> Task:
    """The task that a saved model's configuration describes."""
    if config.problem_type == "regression" or config.num_labels == 1:
        return Task("regression", ())
    try:
        labels = tuple(str(config.id2label[index]) for index in range(config.num_labels))
    except (KeyError, TypeError):
        labels = ()
    if len(set(labels)) != config.num_labels:
        raise ArtifactError(f"The model's configuration does not name its {config.num_labels} labels: id2label.")
    if config.problem_type == "multi_label_classification":
        return Task("multilabel", labels)
    return Task("binary" if len(labels) == 2 else "multiclass", labels)
