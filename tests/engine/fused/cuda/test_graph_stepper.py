"""Captured steps on CUDA: the training of the library's own layers, and the same bits every time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import random_tokens, small_model
from whet.config import make_config
from whet.data.tokens.batches import BatchOrder
from whet.distributed.group import DistributedContext
from whet.engine.dispatch import ALONE, choose_path
from whet.engine.losses import Loss
from whet.engine.network import TokenBatches
from whet.task import Task
from whet.utils.device import choose_hardware

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
STEPS = 50
FAMILIES = ("bert", "roberta", "distilbert", "electra")


class Training:
    """Steps of a small model on random rows, with the loss of each."""

    def __init__(
        self,
        precision: str,
        *,
        family: str = "bert",
        dropout: float = 0.0,
        rows: int = 8,
        ranks: DistributedContext = ALONE,
        contrastive: float = 0.0,
    ) -> None:
        config = make_config({"batch_size": 8, "device": "cuda", "precision": precision}).train
        tokens, loss = random_tokens(90), Loss(Task("binary", ("no", "yes")), None, 0.0, contrastive)
        model = small_model(family, width=128, layers=3, dropout=dropout)
        hardware = choose_hardware("cuda", precision)
        self.network, self.stepper = choose_path(model, loss, config, hardware, [tokens], ranks)
        self.stepper.micro_rows = rows
        order = BatchOrder(rows=len(tokens), batch_size=8, seed=1, kind="random", lengths=tokens.lengths)
        self.feed = TokenBatches(tokens, order, self.network, loss)

    def losses(self, first: int = 0, last: int = STEPS) -> list[float]:
        found = []
        for step in range(first, last):
            rows = self.feed.order.at(step)
            self.stepper(step, self.feed, rows, rows, 2e-4)
            found.append(float(self.stepper.window.loss))
            self.stepper.window.clear()
        return found

    def state(self) -> dict[str, Any]:
        return {
            f"{group} {name}": tensor.detach().cpu().clone()
            for group, tensors in self.stepper.tensors().items()
            for name, tensor in tensors.items()
        }


def assert_same_bits(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


@pytest.mark.parametrize("family", FAMILIES)
def test_fifty_replayed_steps_have_the_losses_of_eager_ones(family: str) -> None:
    replayed, eager = Training("bf16", family=family), Training("float32", family=family)
    assert (replayed.network.path, eager.network.path) == ("fused", "captured")
    np.testing.assert_allclose(replayed.losses(), eager.losses(), atol=0.03)


def test_flash_attention_takes_over_where_rows_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    from whet.engine.fused.cuda import layers  # needs Triton, which machines without a GPU may lack

    eager = Training("float32").losses()
    monkeypatch.setattr(layers, "fits", lambda *_: False)
    np.testing.assert_allclose(Training("bf16").losses(), eager, atol=0.03)


@pytest.mark.parametrize("rows", [8, 3])
def test_a_contrastive_loss_is_captured_too(rows: int) -> None:
    replayed, eager = (Training(kind, rows=rows, contrastive=0.5) for kind in ("bf16", "float32"))
    assert replayed.network.path == "fused"
    np.testing.assert_allclose(replayed.losses(), eager.losses(), atol=0.05)


def test_micro_batches_add_up_to_the_step() -> None:
    np.testing.assert_allclose(Training("bf16", rows=3).losses(), Training("bf16").losses(), atol=0.03)


@pytest.mark.parametrize("rows", [8, 3])
def test_twice_the_same_training_gives_the_same_bits(rows: int) -> None:
    one, other = (Training("bf16", dropout=0.1, rows=rows) for _ in range(2))
    assert one.losses() == other.losses()
    assert_same_bits(one.state(), other.state())


def test_going_on_from_a_checkpoint_gives_the_same_bits() -> None:
    whole, begun, resumed = (Training("bf16", dropout=0.1) for _ in range(3))
    whole.losses()
    begun.losses(0, 20)
    saved = begun.stepper.tensors()
    resumed.stepper.load({group: {n: t.cpu() for n, t in tensors.items()} for group, tensors in saved.items()})
    resumed.losses(20, STEPS)
    assert_same_bits(whole.state(), resumed.state())


def test_a_rehearsal_leaves_no_trace() -> None:
    rehearsed, plain = (Training("bf16", dropout=0.1) for _ in range(2))
    for rows in (8, 8, 1):
        rehearsed.stepper.forward_backward(rehearsed.feed, rehearsed.feed.order.at(1)[:rows])
    assert rehearsed.losses() == plain.losses()
    assert_same_bits(rehearsed.state(), plain.state())


def test_a_short_batch_is_filled_up_instead_of_captured() -> None:
    filled, plain = Training("bf16"), Training("bf16")
    filled.stepper.min_tokens_per_row = max(tokens for _, tokens, _ in shapes_of(plain)) / 8
    assert len(shapes_of(filled)) < len(shapes_of(plain))
    np.testing.assert_allclose(filled.losses(), plain.losses(), atol=0.03)


def shapes_of(training: Training) -> set[Any]:
    order = training.feed.order
    return {training.stepper._filled(training.feed, order.at(step), 0, 0, 1.0)[0] for step in range(STEPS)}


def test_dropout_differs_from_step_to_step() -> None:
    training = Training("bf16", dropout=0.5)
    rows = training.feed.order.at(0)
    found = set()
    for step in range(4):
        training.stepper(step, training.feed, rows, rows, 0.0)
        found.add(float(training.stepper.window.loss))
        training.stepper.window.clear()
    assert len(found) == 4


# Two processes on one device, which NCCL refuses and gloo does not: the same code with another way to sum.
TOGETHER = """
import json
import sys
import torch.distributed as dist
from tests.engine.fused.cuda.test_graph_stepper import Training
from whet.data.tokens.batches import rank_slice
from whet.distributed.group import DistributedContext

dist.init_process_group("gloo")
ranks = DistributedContext(dist.get_rank(), dist.get_world_size())
training = Training("bf16", rows=2, ranks=ranks)
losses, stepper = [], training.stepper
for step in range(30):
    rows = training.feed.order.at(step)[: 1 + step % 8]  # one row for two processes: one of them computes nothing
    stepper(step, training.feed, rows, rank_slice(rows, ranks.rank, ranks.world), 2e-4)
    losses.append(float(stepper.window.loss))
    stepper.window.clear()
own = [sum(t.double().sum().item() for t in found.values()) for found in stepper.tensors().values()]
sys.stdout.write(json.dumps([ranks.rank, losses, own]) + "\\n")  # in one piece: the other one writes too
"""


def together(folder: Path, processes: int) -> list[list[Any]]:
    script, root = folder / "together.py", Path(__file__).parents[4]
    script.write_text(TOGETHER)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *sys.path])}
    done = subprocess.run(
        [*launcher, str(script)], env=environment, capture_output=True, text=True, timeout=300, cwd=root
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return sorted(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    two, one = together(tmp_path, 2), together(tmp_path, 1)
    assert two[0][1:] == two[1][1:]  # both hold the same weights and moments
    np.testing.assert_allclose(two[0][1], one[0][1], atol=0.03)
