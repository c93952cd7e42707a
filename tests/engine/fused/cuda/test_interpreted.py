"""The CUDA path without a GPU: the same training as the general path, and no kernel leaves its tensors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("triton") is None, reason="the package triton is not installed"),
]

SCRIPT = """
import json, os, sys, warnings
warnings.simplefilter("ignore")  # a hash in a kernel overflows, as it should
from functools import partial
import torch
import torch.distributed as dist
from tests.conftest import in_windows, random_tokens, small_model
from whet.config import make_config
from whet.data.tokens.batches import BatchOrder, rank_slice
from whet.task import Task
from whet.utils.device import choose_hardware
from whet.engine.network import TokenBatches
from whet.training.loop import step_within_memory
from whet.engine.losses import Loss
from whet.distributed.group import DistributedContext

asked = json.loads(sys.argv[1])
ranks = DistributedContext()
if "WORLD_SIZE" in os.environ:
    dist.init_process_group("gloo")
    ranks = DistributedContext(dist.get_rank(), dist.get_world_size())
if asked["path"] == "captured":
    from tests.engine.fused.interpreted import captured_path as path
else:
    from whet.engine.dispatch import choose_path as path
config = make_config({"batch_size": 8, "device": "cpu"}).train
hardware = choose_hardware("cpu", "bf16" if asked["path"] == "captured" else "float32")
tokens, loss = random_tokens(16, longest=20), Loss(Task("binary", ("no", "yes")), None, 0.0)
if asked["windows"]:
    tokens = in_windows(tokens, [1, 3] * 4)
model = small_model(asked["family"], width=64, dropout=asked["dropout"])
network, stepper = path(model, loss, config, hardware, [tokens], ranks)
stepper.micro_rows, stepper.min_tokens_per_row = asked["micro_rows"], asked["least"] / 8
order = BatchOrder(rows=len(tokens), batch_size=8, seed=1, kind="random", lengths=tokens.lengths)
feed, losses = TokenBatches(tokens, order, network, loss), []
if asked["flash"]:
    from whet.engine.fused.cuda import layers
    layers.fits = lambda *_: False
if asked["fails_at"]:
    prepared, calls = stepper._prepared, []

    def short_of_memory_once(*given):
        calls.append(given)
        if len(calls) == asked["fails_at"]:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return prepared(*given)

    stepper._prepared = short_of_memory_once
if asked["rehearsed"]:
    stepper.forward_backward(feed, order.at(1))
    stepper.micro_rows = 1  # as where memory has no room for more: less must be taken, too
    stepper.rehearse(feed, order.at(1)[:1])
    assert min(tokens for _, tokens, _ in stepper.captured) == 64, stepper.captured.keys()
    stepper.micro_rows = asked["micro_rows"]
for step, count in enumerate(asked["rows"]):
    rows = order.at(step)[:count]
    take = partial(stepper, step, feed, rows, rank_slice(rows, ranks.rank, ranks.world), 2e-3)
    for finding in step_within_memory(step, stepper, take):
        print(finding.sentence, file=sys.stderr)
    losses.append(float(stepper.window.loss))
    stepper.window.clear()
sums = [each.double().sum().item() for found in stepper.tensors().values() for each in found.values()]
sys.stdout.write(json.dumps([ranks.rank, losses, sums]) + "\\n")  # in one piece: the other one writes too
"""


def trained(
    folder: Path,
    path: str,
    *,
    processes: int = 1,
    family: str = "bert",
    dropout: float = 0.0,
    micro_rows: int = 8,
    rows: tuple[int, ...] = (8, 5),
    fails_at: int = 0,
    flash: bool = False,
    least: int = 0,
    rehearsed: bool = False,
    windows: bool = False,
) -> list[Any]:
    """[rank, losses, sums of weights and moments] of each process."""
    script, root = folder / "script.py", Path(__file__).parents[4]
    script.write_text(SCRIPT)
    asked = {"path": path, "family": family, "dropout": dropout, "micro_rows": micro_rows, "rows": rows}
    asked |= {"fails_at": fails_at, "flash": flash, "least": least, "rehearsed": rehearsed, "windows": windows}
    several = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)] if processes > 1 else []
    own = {"PYTHONPATH": os.pathsep.join([str(root), *sys.path]), "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *several, str(script), json.dumps(asked)],
        env={**os.environ, **own}, capture_output=True, text=True, timeout=900, cwd=root,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return sorted(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "electra"])
def test_captured_steps_train_as_the_general_ones(tmp_path: Path, family: str) -> None:
    (captured,), (general,) = (trained(tmp_path, path, family=family) for path in ("captured", "general"))
    np.testing.assert_allclose(captured[1], general[1], atol=0.005)


def test_with_flash_attention_it_is_the_same_training(tmp_path: Path) -> None:
    # As for rows of more than 128 tokens; here it stands in only for itself, all around it is real.
    (captured,), (general,) = (trained(tmp_path, path, flash=path == "captured") for path in ("captured", "general"))
    np.testing.assert_allclose(captured[1], general[1], atol=0.005)


def test_a_short_batch_that_is_filled_up_is_the_same_training(tmp_path: Path) -> None:
    (captured,), (general,) = trained(tmp_path, "captured", least=190), trained(tmp_path, "general")
    np.testing.assert_allclose(captured[1], general[1], atol=0.005)


def test_windows_of_texts_are_the_same_training(tmp_path: Path) -> None:
    (captured,), (general,) = (trained(tmp_path, path, windows=True, rows=(8,)) for path in ("captured", "general"))
    np.testing.assert_allclose(captured[1], general[1], atol=0.005)


def test_a_rehearsal_leaves_no_trace(tmp_path: Path) -> None:
    assert trained(tmp_path, "captured", least=190, rehearsed=True) == trained(tmp_path, "captured", least=190)


def test_two_processes_train_as_one_also_where_one_has_no_row(tmp_path: Path) -> None:
    rows = (1, 5)
    first, second = trained(tmp_path, "captured", processes=2, micro_rows=3, rows=rows)
    (general,) = trained(tmp_path, "general", rows=rows)
    assert first[1:] == second[1:]
    np.testing.assert_allclose(first[1], general[1], atol=0.005)


def test_the_same_training_twice_has_the_same_bits(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as both:
        found = both.map(lambda _: trained(tmp_path, "captured", dropout=0.1), range(2))
    one, other = found
    assert one == other


def test_memory_that_runs_out_within_a_step_does_not_update_twice(tmp_path: Path) -> None:
    # The second step's second micro-batch fails, when its first one has done the update of the first step.
    (captured,) = trained(tmp_path, "captured", micro_rows=4, rows=(8, 8, 8), fails_at=4)
    (general,) = trained(tmp_path, "general", rows=(8, 8, 8))
    np.testing.assert_allclose(captured[1], general[1], atol=0.005)
