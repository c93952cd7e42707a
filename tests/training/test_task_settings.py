"""What has no effect in a task is refused, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.test_layers import loaded_by
from whet.config import SETTINGS, make_config
from whet.engine.losses import Loss, balanced_weights
from whet.errors import UsageError
from whet.task import Task
from whet.training.task_settings import TASKS_OF, refuse_without_effect

TASKS = {"binary": ("a", "b"), "multiclass": ("a", "b", "c"), "multilabel": ("a", "b", "c"), "regression": ()}
CHANGED = {"class_weights": "balanced", "label_smoothing": 0.1, "contrastive": 0.5, "label_delimiter": "|"}
CHANGED |= {"min_rows": 3, "rare": "other"}


@pytest.mark.parametrize("name", sorted(set(TASKS_OF) & set(SETTINGS)))
@pytest.mark.parametrize("task", TASKS)
def test_every_setting_of_the_table_in_every_task(name: str, task: str) -> None:
    config = make_config({name: CHANGED[name]})
    refuse_without_effect(make_config(), task)
    if task in TASKS_OF[name]:
        refuse_without_effect(config, task)
        return
    with pytest.raises(UsageError, match=f"{name} is .* no effect in a {task} task"):
        refuse_without_effect(config, task)


@pytest.mark.parametrize("kind", TASKS)
def test_the_table_says_what_the_loss_does(kind: str) -> None:
    task, outputs = Task(kind, TASKS[kind]), max(1, len(TASKS[kind]))
    logits = torch.linspace(-1, 2, 6 * outputs).reshape(6, outputs)
    labels = {
        "multilabel": np.eye(3, dtype=np.float32)[[0, 0, 0, 0, 1, 2]],
        "regression": np.arange(6, dtype=np.float32),
    }
    found = labels.get(kind, np.array([0, 0, 0, 0, 1, outputs - 1]))
    plain = Loss(task).rows(logits, torch.tensor(found))
    weights = balanced_weights(task, found)
    changed = {"class_weights": Loss(task, class_weights=weights), "label_smoothing": Loss(task, label_smoothing=0.1)}
    for name, loss in changed.items():
        differs = not torch.equal(loss.rows(logits, torch.tensor(found)), plain)
        assert differs == (kind in TASKS_OF[name]), name


def test_class_weights_for_regression_are_refused_before_torch_loads(tmp_path: Path) -> None:
    rows = "".join(f"word {i},{i / 7:.3f}\n" for i in range(60))
    (tmp_path / "rows.csv").write_text("text,label\n" + rows)
    arguments = ["train", str(tmp_path / "rows.csv"), "--class-weights", "balanced", "--run", str(tmp_path / "run")]
    loaded = loaded_by(f"from whet.cli import main; assert main({arguments!r}) == 2")
    assert not loaded & {"torch", "transformers"}
