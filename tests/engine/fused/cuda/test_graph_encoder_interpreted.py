"""Replayed forward passes without a GPU, in Triton's interpreter: filling changes no bit of what the rows get."""

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
import json, sys, warnings
warnings.simplefilter("ignore")  # a hash in a kernel overflows, as it should
import numpy as np, torch
import tests.engine.fused.interpreted
from tests.conftest import random_tokens, small_model
from whet.utils.device import Hardware
from whet.engine.fused.cuda import graph_encoder, layers
from whet.engine.fused.encoder import Encoder
from whet.engine.fused.architectures import shape_of
from whet.engine.fused.network import FusedNetwork

graph_encoder.MIN_TOKENS, graph_encoder.MAX_ROWS = json.loads(sys.argv[1])
torch.Tensor.record_stream = lambda *_: None
model = small_model("bert", width=64, layers=2).eval()
with torch.no_grad():
    for name, weight in model.named_parameters():
        if weight.dim() == 2 and "embeddings" not in name:
            weight *= 6  # else attention hardly moves the logits
network = FusedNetwork(model, Hardware(torch.device("cpu"), "bf16", ""))
network.pieces = layers.CudaLayerOps(network.flat.small, 0)
tokens = random_tokens(6, longest=8)
found = []
for kind in (Encoder, graph_encoder.ReplayedEncoder):
    network.encoder = kind(network.flat, shape_of(model), network.pieces)
    with torch.no_grad():
        for rows in ([0, 1, 2, 3, 4, 5], [2, 4], [5], [0, 1, 2, 3, 4, 5]):
            found.append(network.logits(network.collate(tokens, np.array(rows))).tolist())
    found.append(len(getattr(network.encoder, "_forwards", ())))
print(json.dumps(found))
"""


@pytest.mark.parametrize("places", [64, 5])
def test_rows_get_the_same_logits_in_a_filled_batch(tmp_path: Path, places: int) -> None:
    # As many places as tokens: one query a row must not be taken for one a token. And fewer places than rows.
    script, root = tmp_path / "script.py", Path(__file__).parents[4]
    script.write_text(SCRIPT)
    own = {"PYTHONPATH": os.pathsep.join([str(root), *sys.path]), "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script), json.dumps([64, places])],
        env={**os.environ, **own}, capture_output=True, text=True, timeout=600, cwd=root,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found[:4] == found[5:9]
    assert (found[4], found[9]) == (0, 1)
