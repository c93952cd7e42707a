"""The task defined by the labels: classes, several labels per row, or a number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from whet.errors import ArtifactError


@dataclass(frozen=True)
class Task:
    """The task of a model."""

    kind: str
    """`binary`, `multiclass`, `multilabel` or `regression`; `unlabelled` if no labels are needed."""
    labels: tuple[str, ...]
    """Names in label order; empty for regression."""

    @property
    def outputs(self) -> int:
        """Number of logits per row."""
        return len(self.labels) or 1


SOFT_LABELS = ("deberta", "deberta-v2")
"""Models whose own forward takes several numbers a row as the shares of classes, unless it is told the problem type."""
PROBLEM_TYPES = {
    "binary": "single_label_classification",
    "multiclass": "single_label_classification",
    "multilabel": "multi_label_classification",
    "regression": "regression",
}


def saved_task(config: Any) -> Task:
    """Return the task in a saved model's configuration."""
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


def notes_problem_type(config: Any) -> bool:
    """Return whether the model's own forward notes the kind of the labels in its configuration."""
    return getattr(config, "model_type", "") not in SOFT_LABELS


def task_of(config: Any, labels: Any) -> Task | None:
    """Return the task as the library's models choose it: by problem_type, else by the labels; None for others."""
    outputs = getattr(config, "num_labels", None)
    if outputs is None:
        return None
    problem = getattr(config, "problem_type", None)
    if problem is None:
        whole = labels is None or (labels.ndim == 1 and labels.dtype.kind in "iu")
        if outputs > 1 and not whole and not notes_problem_type(config):
            return None
        problem = "regression" if outputs == 1 else f"{'single' if whole else 'multi'}_label_classification"
    if problem == "regression":
        return Task("regression", ()) if outputs == 1 else None
    names = tuple(str(config.id2label.get(index, index)) for index in range(outputs))
    if problem == "multi_label_classification":
        return Task("multilabel", names)
    return Task("binary" if outputs == 2 else "multiclass", names)


def labels_fit(labels: Any, task: Task) -> bool:
    """Return whether an array of labels fits the task's loss and scores."""
    if not len(labels):
        return False
    if task.kind == "regression":
        return labels.ndim == 1  # type: ignore[no-any-return]
    if task.kind == "multilabel":
        return labels.ndim == 2 and labels.shape[1] == task.outputs  # type: ignore[no-any-return]
    return labels.ndim == 1 and labels.dtype.kind == "i" and bool(0 <= labels.min() <= labels.max() < task.outputs)
