"""Every kernel of ModernBERT's layers compiles to machine code for a Hopper GPU, on a machine without one."""

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
import json, sys
import torch
from types import SimpleNamespace
from triton.backends.compiler import GPUTarget
from triton.runtime import driver, jit


class Absent:
    def get_current_device(self): return 0
    def get_current_stream(self, device=None): return 0
    def get_current_target(self): return GPUTarget("cuda", 90, 32)


driver.set_active(Absent())
launch, made = jit.JITFunction.run, {}


def compile_only(self, *given, grid, warmup, **named):
    compiled = launch(self, *given, grid=grid, warmup=True, **named)
    made.setdefault(self.fn.__name__, {})[compiled.hash] = len(compiled.asm["cubin"])
    return compiled


jit.JITFunction.run = compile_only
import tests.engine.fused.interpreted
from transformers import ModernBertConfig, ModernBertForSequenceClassification
from whet.engine.captured import modernbert
from whet.engine.captured.modernbert_limits import why_not_fast

modernbert.product_in_float32 = lambda gradient, x, into: None
hidden, heads, inner, longest = json.loads(sys.argv[1])
config = ModernBertConfig(
    vocab_size=90, hidden_size=hidden, num_attention_heads=heads, intermediate_size=inner, num_hidden_layers=3,
    pad_token_id=0, global_attn_every_n_layers=2, classifier_pooling="mean",
)
model = ModernBertForSequenceClassification(config)
assert not why_not_fast(model)
fast = modernbert.FastModernBert(model)
for tokens in (64, 77):
    offsets = torch.tensor([0, tokens // 2, tokens], dtype=torch.int32)
    layout = SimpleNamespace(offsets=offsets, longest=longest)
    fast(torch.ones(tokens, dtype=torch.int64), layout, training=True).sum().backward()
print(json.dumps({name: list(found.values()) for name, found in made.items()}))
"""
ONE_OF_EACH = {"attend_turned": 1, "attend_turned_backward": 1, "gated": 1, "gated_backward": 1, "pool": 1}
ONE_OF_EACH |= {"pool_backward": 1, "residual_norm": 3, "residual_norm_backward": 3}


@pytest.mark.parametrize("sizes", [(768, 12, 1152, 64), (384, 6, 576, 512), (1792, 28, 3840, 128)])
def test_every_kernel_compiles_once_for_a_gpu_that_is_not_there(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    # The embeddings, the layers and the last norm have variants of their own; other numbers of tokens have none.
    script, root = tmp_path / "script.py", Path(__file__).parents[3]
    script.write_text(SCRIPT)
    own = {"PYTHONPATH": os.pathsep.join([str(root), *sys.path]), "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, str(script), json.dumps(sizes)],
        env={**os.environ, **own}, capture_output=True, text=True, timeout=600, cwd=root,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    local_and_global = {"attend_turned": 2, "attend_turned_backward": 2} if sizes[-1] > 65 else {}
    assert {name: len(compiled) for name, compiled in found.items()} == {**ONE_OF_EACH, **local_and_global}
    assert all(size > 0 for compiled in found.values() for size in compiled)
