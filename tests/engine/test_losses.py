"""The loss of a row is torch's own, for each task; that of a step is the sum over its rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from whet.engine.losses import Loss
from whet.task import Task

LOGITS = torch.tensor([[2.0, -1.0, 0.5], [0.1, 0.2, 0.3], [-3.0, 4.0, 0.0], [1.0, 1.0, -1.0]])
CLASSES, COLUMNS = torch.tensor([0, 2, 2, 1]), torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]])
WEIGHTS = (0.5, 2.0, 3.0)
THREE = Task("multiclass", ("a", "b", "c"))


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (Loss(THREE), F.cross_entropy(LOGITS, CLASSES, reduction="none")),
        (Loss(THREE, WEIGHTS), F.cross_entropy(LOGITS, CLASSES, torch.tensor(WEIGHTS), reduction="none")),
        (Loss(THREE, None, 0.2), F.cross_entropy(LOGITS, CLASSES, reduction="none", label_smoothing=0.2)),
    ],
)
def test_one_label_a_row_is_cross_entropy(loss: Loss, expected: torch.Tensor) -> None:
    torch.testing.assert_close(loss.rows(LOGITS, CLASSES), expected)
    torch.testing.assert_close(
        loss.total(LOGITS.bfloat16().float(), CLASSES), loss.rows(LOGITS.bfloat16(), CLASSES).sum()
    )


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_several_labels_a_row_are_the_mean_over_the_columns(weights: Any) -> None:
    chances, found = torch.sigmoid(LOGITS), Loss(Task("multilabel", ("x", "y", "z")), weights).rows(LOGITS, COLUMNS)
    positive = torch.tensor(weights or (1.0, 1.0, 1.0))
    each = -(positive * COLUMNS * chances.log() + (1 - COLUMNS) * (1 - chances).log())
    torch.testing.assert_close(found, each.mean(dim=1), rtol=1e-4, atol=1e-5)


def test_a_number_is_the_squared_error() -> None:
    found = Loss(Task("regression", ())).rows(torch.tensor([[1.0], [2.0]]), torch.tensor([3, 2]))
    assert found.tolist() == [4.0, 0.0]


def test_an_evaluation_reports_the_mean_without_class_weights() -> None:
    found = Loss(THREE, WEIGHTS, 0.2).mean(LOGITS.numpy(), CLASSES.numpy())
    assert found == pytest.approx(float(F.cross_entropy(LOGITS, CLASSES)))


def test_a_step_is_divided_by_its_rows_or_their_class_weights() -> None:
    assert Loss(THREE).loss_divisor(CLASSES.numpy()) == 4
    assert Loss(THREE, WEIGHTS).loss_divisor(CLASSES.numpy()) == 0.5 + 3 + 3 + 2
