"""`--shard`: each of two processes holds half, and together they train what one would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json, sys
import numpy as np, torch
from tests.conftest import random_tokens, small_model
from whet.config import make_config
from whet.data.tokens.batches import BatchOrder, rank_slice
from whet.task import Task
from whet.utils.device import choose_hardware
from whet.distributed.rendezvous import join_processes
from whet.engine.network import TokenBatches
from whet.engine.losses import Loss
from whet.engine.dispatch import choose_path

shard = sys.argv[1] == "shard"
ranks = join_processes("cpu")
config = make_config({"batch_size": 3, "device": "cpu", "precision": "float32", "shard": shard, "average": 0.8}).train
hardware = choose_hardware("cpu", "float32")
tokens, loss = random_tokens(7), Loss(Task("binary", ("no", "yes")), None, 0.0)
model = small_model("modernbert", width=32)
network, stepper = choose_path(model, loss, config, hardware, [tokens], ranks)
order = BatchOrder(rows=7, batch_size=3, seed=1, kind="sequential", lengths=tokens.lengths)
feed = TokenBatches(tokens, order, network, loss)
losses, norms = [], []

def steps(first, last):
    for step in range(first, last):
        rows = feed.order.at(step)
        stepper(step, feed, rows, rank_slice(rows, ranks.rank, ranks.world), 1e-3)
        norms.append(float(stepper.window.grad_norm))
        losses.append(float(stepper.window.loss))

steps(0, 3)  # the third has one row for two processes
saved = {group: {name: t.clone() for name, t in found.items()} for group, found in stepper.tensors().items()}
saved = ranks.broadcast_object(saved)
steps(3, 5)
stepper.load(saved)
steps(3, 5)
means = stepper.tensors()["average"]
means = {name: mean.double().sum().item() for name, mean in means.items()}
before = stepper.tensors()["model"]
with stepper.averaged():
    inside = stepper.tensors()["model"]
after = stepper.tensors()["model"]
own = sum(getattr(p, "_local_tensor", p).numel() for p in model.parameters())
whole = stepper.finished_model()
if ranks.is_main:
    weights = {name: value.double().sum().item() for name, value in whole.state_dict().items()}
    kind = type(whole).__name__
    swapped = {name: inside[name].double().sum().item() for name in means}
    back = all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    print(json.dumps({"losses": losses, "norms": norms, "weights": weights, "own": own, "kind": kind,
                      "means": means, "swapped": swapped, "back": back}))
"""


def trained(folder: Path, how: str, processes: int) -> dict[str, object]:
    script = folder / "script.py"
    script.write_text(SCRIPT)
    root = Path(__file__).parents[2]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(root), *sys.path])}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    done = subprocess.run(
        [*launcher, str(script), how], env=environment, capture_output=True, text=True, timeout=240, cwd=root
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_a_split_model_trains_as_a_whole_one(tmp_path: Path) -> None:
    split, whole = trained(tmp_path, "shard", 2), trained(tmp_path, "whole", 1)
    assert split["losses"] == pytest.approx(whole["losses"], rel=1e-5)
    assert split["norms"] == pytest.approx(whole["norms"], rel=1e-4)
    assert split["weights"] == pytest.approx(whole["weights"], rel=1e-4, abs=1e-4)
    assert split["kind"] == whole["kind"]
    assert split["means"] == pytest.approx(whole["means"], rel=1e-4, abs=1e-4)
    assert split["swapped"] == pytest.approx(split["means"], rel=1e-6)
    assert split["back"]
    assert split["means"] != pytest.approx({name: split["weights"][name] for name in split["means"]}, rel=1e-5)  # type: ignore[index, attr-defined]
    # The same steps again, after the state was gathered and taken back.
    assert split["norms"][3:5] == pytest.approx(split["norms"][5:7], rel=1e-6)  # type: ignore[index]
    # Half of the parameters, and what an uneven division rounds up.
    assert float(split["own"]) < 0.55 * float(whole["own"])  # type: ignore[arg-type]
