"""Every kernel of a captured step compiles to machine code for a Hopper GPU, on a machine without one, and ahead."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("triton") is None, reason="the package triton is not installed"),
]

SCRIPT = """
import json
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver, jit


class Absent:
    def get_current_device(self): return 0
    def get_current_stream(self, device=None): return 0
    def get_current_target(self): return GPUTarget("cuda", 90, 32)


driver.set_active(Absent())
launch, sizes, ahead, late = jit.JITFunction.run, {}, [], []


def compile_only(self, *given, grid, warmup, **named):
    made = launch(self, *given, grid=grid, warmup=True, **named)
    sizes[self.fn.__name__] = len(made.asm["cubin"])
    if warmup:
        ahead.append(made)
    elif not any(made is other for other in ahead):
        late.append(self.fn.__name__)
    return made


jit.JITFunction.run = compile_only
from tests.conftest import random_tokens, small_model
from tests.engine.fused.interpreted import captured_path
from whet.config import make_config
from whet.data.tokens.batches import BatchOrder
from whet.task import Task
from whet.utils.device import choose_hardware
from whet.engine.network import TokenBatches
from whet.engine.losses import Loss
from whet.distributed.group import DistributedContext

config = make_config({"batch_size": 8, "device": "cpu"}).train
tokens, loss = random_tokens(16, longest=20), Loss(Task("binary", ("no", "yes")), None, 0.0)
model = small_model("bert", width=128, dropout=0.1)
network, stepper = captured_path(model, loss, config, choose_hardware("cpu", "bf16"), [tokens], DistributedContext())
order = BatchOrder(rows=16, batch_size=8, seed=1, kind="random", lengths=tokens.lengths)
feed = TokenBatches(tokens, order, network, loss)
stepper(0, feed, order.at(0), order.at(0), 1e-5)
network.model.eval()
with torch.no_grad():
    network.logits(network.collate(tokens, order.at(1)))
late_in_a_step = list(late)
stepper.micro_rows = 3
stepper(0, feed, order.at(0), order.at(0), 1e-5)
print(json.dumps({"sizes": sizes, "late": late_in_a_step}))
"""


def test_every_kernel_compiles_for_a_gpu_that_is_not_there(tmp_path: Path) -> None:
    script, root = tmp_path / "script.py", Path(__file__).parents[4]
    script.write_text(SCRIPT)
    own = {"PYTHONPATH": os.pathsep.join([str(root), *sys.path]), "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, **own}, capture_output=True, text=True, timeout=600, cwd=root,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert "FP fusion" not in done.stderr  # whoever leaves it to the default is warned that it changes
    found = json.loads(done.stdout.splitlines()[-1])
    sizes = found["sizes"]
    sources = (root / "src/whet/engine/fused/cuda").glob("*kernels.py")
    defined = {
        line.removeprefix("def ").partition("(")[0]
        for source in sources
        for line in source.read_text().splitlines()
        if line.startswith("def ")
    }
    helpers = {"kept", "through_norm", "erf_gelu", "erf_gelu_slope"}  # compiled into the others
    for_long_rows = {"join_columns"}
    assert set(sizes) == {name for name in defined if not name.startswith("_")} - helpers - for_long_rows
    assert all(size > 0 for size in sizes.values())
    assert found["late"] == []  # what a step and an evaluation launch was compiled before, on several threads
