"""Refuses settings that have no effect for a task."""

from __future__ import annotations

from whet.config import SECTIONS, SETTINGS, Config
from whet.errors import UsageError

ONE_LABEL = ("binary", "multiclass")
TASKS_OF: dict[str, tuple[str, ...]] = {
    "class_weights": (*ONE_LABEL, "multilabel"),
    "label_smoothing": ONE_LABEL,
    "contrastive": ONE_LABEL,
    "label_delimiter": ("multilabel",),
    "min_rows": (*ONE_LABEL, "multilabel"),
    "rare": (*ONE_LABEL, "multilabel"),
}
"""The tasks in which a setting has an effect; settings not listed have one in all tasks."""


def refuse_without_effect(config: Config, task: str) -> None:
    """Raise for the first changed setting that has no effect for this task."""
    values = config.flat()
    for name, tasks in TASKS_OF.items():
        if name not in values or values[name] == default_of(name) or task in tasks:
            continue
        raise UsageError(
            f"{name} is {values[name]!r}, and has no effect in a {task} task.",
            f"Leave it out; it is for {', '.join(tasks)} labels. --task sets what the labels are.",
        )


def default_of(name: str) -> object:
    return getattr(SECTIONS[SETTINGS[name]](), name)
