"""The kernels for short rows against attention written out in torch: on a GPU, or in Triton's interpreter."""

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

SCRIPT = """
import json, sys, warnings
warnings.simplefilter("ignore")  # a hash in a kernel overflows, as it should
import numpy as np
import torch
from types import SimpleNamespace
device = sys.argv[1]
if device == "cpu":
    from tests.engine.fused import interpreted
from whet.engine.fused.cuda.attention import short_attention, short_attention_backward, sums_of_short_attention

torch.manual_seed(0)
heads, width, seed = 2, 64, torch.tensor(2**40 + 12345, device=device)
hidden, shape = heads * width, SimpleNamespace(heads=heads, width=width)


def rows_of(tensor, a, b):
    return tensor[a:b].view(b - a, heads, width).transpose(0, 1)


def compared(lengths, first, rate):
    offsets = np.concatenate([[0], np.cumsum(lengths)]).tolist()
    asked = list(range(len(lengths) + 1)) if first else offsets
    on_device = torch.tensor(offsets, dtype=torch.int32, device=device)
    longest = -(-max(lengths) // 64) * 64
    q, k, v = (torch.randn(n, hidden, device=device).bfloat16() for n in (asked[-1], offsets[-1], offsets[-1]))

    def attend(values):
        return short_attention((q, k, values), on_device, longest, shape, (seed, 4, rate), first=first)

    # Which shares were dropped: the answer to values that are the columns of a unit matrix, 64 at a time, is they.
    masks = [torch.zeros(heads, asked[r + 1] - asked[r], n, device=device) for r, n in enumerate(lengths)]
    for start in range(0, longest, 64):
        units = torch.zeros(offsets[-1], heads, width, device=device)
        for r, n in enumerate(lengths):
            many = max(0, min(64, n - start))
            units[offsets[r] + start : offsets[r] + start + many, :, :many] = torch.eye(many, device=device)[:, None]
        answer, _ = attend(units.reshape(-1, hidden).bfloat16())
        for r, n in enumerate(lengths):
            many = max(0, min(64, n - start))
            part = rows_of(answer, asked[r], asked[r + 1])[:, :, :many]
            masks[r][:, :, start : start + many] = (part != 0).float()
    inputs = [each.float().requires_grad_() for each in (q, k, v)]
    parts = []
    for r in range(len(lengths)):
        own = [rows_of(inputs[0], asked[r], asked[r + 1])]
        own += [rows_of(each, offsets[r], offsets[r + 1]) for each in inputs[1:]]
        shares = torch.softmax(own[0] @ own[1].transpose(1, 2) * width**-0.5, -1) * masks[r] / (1 - rate)
        parts.append((shares @ own[2]).transpose(0, 1).reshape(-1, hidden))
    wanted, gradient = torch.cat(parts), torch.randn(asked[-1], hidden, device=device).bfloat16()
    slopes = torch.autograd.grad(wanted, inputs, gradient.float())
    context, saved = attend(v)
    empty = [torch.full_like(each, float("nan")) for each in (q, k, v)]
    sums = sums_of_short_attention(saved)
    partial = torch.full((sums, (2 if first else 3) * hidden), float("nan"), device=device)
    short_attention_backward(gradient, saved, tuple(empty), partial)
    added = torch.cat([each.sum(0) for each in slopes[1 if first else 0 :]])
    return {
        "forward": float((context.float() - wanted).abs().max()),
        "backward": max(float((own - slope).abs().max()) for own, slope in zip(empty, slopes)),
        "sums": float((partial.sum(0) - added).abs().max() / added.abs().max()),
        "kept": float(sum(mask.sum() for mask in masks) / sum(mask.numel() for mask in masks)),
    }


for lengths in ([5, 20, 1, 60], [70, 3, 128, 64, 65]):
    for first in (False, True):
        for rate in (0.0, 0.25):
            print(json.dumps({"rate": rate, "first": first, **compared(lengths, first, rate)}), flush=True)
"""


def compared(folder: Path, device: str) -> list[dict[str, Any]]:
    script, root = folder / "script.py", Path(__file__).parents[4]
    script.write_text(SCRIPT)
    own = {"PYTHONPATH": os.pathsep.join([str(root), *sys.path]), "OMP_NUM_THREADS": "1"}
    if device == "cpu":
        own["TRITON_INTERPRET"] = "1"
    done = subprocess.run(
        [sys.executable, str(script), device],
        env={**os.environ, **own}, capture_output=True, text=True, timeout=900, cwd=root,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def check(found: list[dict[str, Any]]) -> None:
    """Within what bf16 can hold, and the share that is kept within six of its standard deviations."""
    assert len(found) == 8
    for each in found:
        assert each["forward"] < 0.04, each
        assert each["backward"] < 0.06, each
        assert each["sums"] < 0.02, each
        assert abs(each["kept"] - (1 - each["rate"])) < (0.2 if each["first"] else 0.03) * (each["rate"] > 0) + 1e-6


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="the package triton is not installed")
def test_in_the_interpreter_it_is_attention_with_dropout(tmp_path: Path) -> None:
    check(compared(tmp_path, "cpu"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_on_a_gpu_it_is_attention_with_dropout(tmp_path: Path) -> None:
    check(compared(tmp_path, "cuda"))
