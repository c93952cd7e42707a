"""ModernBERT's fused layers against the library's float32: on a GPU, or in Triton's interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

no_triton = pytest.mark.skipif(find_spec("triton") is None, reason="the package triton is not installed")
no_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
on_each_device = pytest.mark.parametrize(
    "device",
    [pytest.param("cpu", marks=[pytest.mark.slow, no_triton]), pytest.param("cuda", marks=[pytest.mark.gpu, no_gpu])],
)

SCRIPT = """
import json, sys, warnings
warnings.simplefilter("ignore")  # rows without tokens divide by zero, as they may
import numpy as np
import torch
import torch.nn.functional as F
from types import SimpleNamespace
if sys.argv[2] == "cpu":
    import tests.engine.fused.interpreted
from transformers import ModernBertConfig, ModernBertForSequenceClassification
from whet.engine.captured import modernbert
from whet.engine.captured.modernbert_limits import why_not_fast

asked, device = json.loads(sys.argv[1]), sys.argv[2]
if device == "cpu":  # only CUDA has a product of bf16 that is summed up in float32
    modernbert.product_in_float32 = lambda gradient, x, into: torch.mm(gradient.t().float(), x.float(), out=into)
torch.manual_seed(0)
config = ModernBertConfig(
    vocab_size=90, hidden_size=64, num_attention_heads=2, intermediate_size=80, num_hidden_layers=3, pad_token_id=0,
    local_attention=asked["window"], global_attn_every_n_layers=2, classifier_pooling=asked["pooling"], num_labels=3,
    max_position_embeddings=160, initializer_range=0.15, attn_implementation="eager",
)
model = ModernBertForSequenceClassification(config).to(device).train()
assert not why_not_fast(model), why_not_fast(model)
lengths, spare = asked["lengths"], asked["spare"]
rows = [torch.randint(1, 90, (length,)).to(device) for length in lengths]
padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
labels = torch.arange(len(rows), device=device) % 3
wanted = model(input_ids=padded, attention_mask=mask).logits
F.cross_entropy(wanted, labels).backward()
slopes = {name: weight.grad for name, weight in model.named_parameters()}
for weight in model.parameters():
    weight.grad = None
model.model.layers[1].mlp.Wi.weight.requires_grad_(not asked["frozen"])

# Tokens after the last row and rows without tokens, as in a batch of a fixed size.
ids = torch.cat([*rows, torch.full((spare,), 7, device=device)])
offsets = torch.tensor([0, *np.cumsum(lengths), *[sum(lengths)] * asked["empty"]], dtype=torch.int32, device=device)
layout = SimpleNamespace(offsets=offsets, longest=-(-max(lengths) // 32) * 32)
fast = modernbert.FastModernBert(model)


def step():
    logits = fast(ids, layout, training=True)[: len(rows)]
    F.cross_entropy(logits, labels).backward()
    found = {name: weight.grad for name, weight in model.named_parameters()}
    for weight in model.parameters():
        weight.grad = None
    return logits, found


logits, found = step()
_, twice = step() if asked["twice"] else (logits, found)
with torch.no_grad():
    predicted = fast(ids, layout, training=False)[: len(rows)]

try:
    fast.features(ids, SimpleNamespace(offsets=offsets, longest=1025))
except ValueError as error:
    refused = str(error)


def cosine(one, other):
    return float(F.cosine_similarity(one.flatten().double(), other.flatten().double(), 0))


trained = [name for name in slopes if found[name] is not None]
together = [torch.cat([each[name].flatten() for name in trained]) for each in (slopes, found)]
print(json.dumps({
    "logits": float((logits - wanted).abs().max()),
    "largest": float(wanted.abs().max()),
    "missing": [name for name in slopes if found[name] is None],
    "cosine": cosine(*together),
    "length": float(together[1].norm() / together[0].norm()),
    "cosines": {name: cosine(slopes[name], found[name]) for name in trained},
    "refused": refused,
    "same bits": all(torch.equal(twice[name], found[name]) for name in trained),
    "same prediction": torch.equal(predicted, logits),
}))
"""


def compared(
    folder: Path,
    device: str,
    *,
    pooling: str = "mean",
    window: int = 16,
    lengths: tuple[int, ...] = (5, 1, 41, 23),
    spare: int = 0,
    empty: int = 0,
    frozen: bool = False,
    twice: bool = False,
) -> dict[str, Any]:
    script, root = folder / "script.py", Path(__file__).parents[3]
    script.write_text(SCRIPT)
    asked = {"pooling": pooling, "window": window, "lengths": lengths, "spare": spare, "empty": empty}
    asked |= {"frozen": frozen, "twice": twice}
    own = {"PYTHONPATH": os.pathsep.join([str(root), *sys.path]), "OMP_NUM_THREADS": "1"}
    if device == "cpu":
        own["TRITON_INTERPRET"] = "1"
    done = subprocess.run(
        [sys.executable, str(script), json.dumps(asked), device],
        env={**os.environ, **own}, capture_output=True, text=True, timeout=900, cwd=root,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def check(found: dict[str, Any]) -> None:
    """Within what bf16 can hold."""
    assert found["logits"] < 0.04 * found["largest"], found
    assert found["cosine"] > 0.9995, found
    assert abs(found["length"] - 1) < 0.01, found
    assert min(found["cosines"].values()) > 0.998, found
    assert found["same bits"]
    assert found["same prediction"]
    assert found["refused"] == "A row of 1025 tokens is too long for 1024 places; truncate it."


@on_each_device
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_short_rows_have_the_logits_and_gradients_of_the_library(tmp_path: Path, device: str, pooling: str) -> None:
    check(compared(tmp_path, device, pooling=pooling))


@on_each_device
@pytest.mark.parametrize("window", [16, 140])
def test_rows_of_several_blocks_have_the_logits_and_gradients_of_the_library(
    tmp_path: Path, device: str, window: int
) -> None:
    check(compared(tmp_path, device, lengths=(150, 3, 65), window=window, twice=window == 16))


@on_each_device
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_spare_tokens_and_empty_rows_change_nothing(tmp_path: Path, device: str, pooling: str) -> None:
    check(compared(tmp_path, device, pooling=pooling, spare=70, empty=3))


@on_each_device
def test_a_frozen_weight_gets_no_gradient(tmp_path: Path, device: str) -> None:
    assert compared(tmp_path, device, lengths=(4, 9), frozen=True)["missing"] == ["model.layers.1.mlp.Wi.weight"]
