"""Which modules are broken, which tests may notice, and which mutants must die or cannot."""

from __future__ import annotations

import tomllib
from pathlib import Path

MODULES = (
    "training/loop.py",
    "training/plan.py",
    "training/choice.py",
    "training/checkpoints.py",
    "engine/stepper.py",
    "engine/train_step.py",
    "engine/optimizer.py",
    "engine/average.py",
    "engine/losses.py",
    "engine/fused/cpu/adamw.py",
    "engine/fused/cpu/encoder.py",
    "engine/fused/cpu/inference_layers.py",
    "engine/fused/cpu/layers.py",
    "data/tokens/batches.py",
    "data/tokens/encoders.py",
    "data/tokens/table.py",
    "data/tokens/words.py",
    "data/splits.py",
    "data/folds.py",
    "data/columns.py",
    "metrics/arrays.py",
    "metrics/baselines.py",
    "metrics/calibration.py",
    "metrics/conformal.py",
    "metrics/counts.py",
    "metrics/evaluate_api.py",
    "metrics/inputs.py",
    "metrics/intervals.py",
    "metrics/linear_models.py",
    "metrics/majority.py",
    "metrics/rankings.py",
    "metrics/registry.py",
    "metrics/scores.py",
    "metrics/thresholds.py",
    "runs/verdict/features.py",
    "runs/verdict/judge.py",
    "runs/verdict/rules.py",
)

TESTS = (
    "tests/engine/**/test_*.py",
    "tests/data/tokens/test_*.py",
    "tests/metrics/test_*.py",
    "tests/runs/verdict/test_*.py",
    *(f"tests/data/test_{name}.py" for name in ("columns", "examples", "folds", "splits")),
    *(f"tests/training/test_{name}.py" for name in ("checkpoints", "choice", "evaluation", "loop", "plan", "resume")),
)
LEFT_OUT = ("/cuda/", "test_sharded", "test_live_step")
"""Other hardware, or several processes. Whole runs of other folders take long: a mutant is better noticed nearby."""

LAYERS = "engine/fused/cpu/layers.py"
MUST_DIE = (
    (LAYERS, "d_x = d_total if mask is None else d_total * mask", "d_x = d_total"),
    (LAYERS, "d_y = gradient.float() if mask is None else gradient.float() * mask", "d_y = gradient.float()"),
    (LAYERS, "d_shares *= mask", "pass"),
    (LAYERS, "return self.shares if self.mask is None else self.shares * self.mask", "return self.shares"),
    (LAYERS, "torch.bmm(saved.kept().transpose(1, 2), gradient)", "torch.bmm(saved.shares.transpose(1, 2), gradient)"),
    ("engine/fused/cpu/adamw.py", "beta2=rule.beta2,", "beta2=0.999,"),
    ("engine/fused/cpu/adamw.py", "cls(config.beta1, config.beta2,", "cls(config.beta1, 0.999,"),
    ("engine/optimizer.py", "betas=(config.beta1, config.beta2),", "betas=(config.beta1, 0.999),"),
    ("training/loop.py", 'window.loss.fill_(values["window"]["loss"])', "pass"),
    ("training/loop.py", "state.stale >= plan.patience", "state.stale > plan.patience"),
    ("training/loop.py", "state.stale += 1", "state.stale += 2"),
    ("training/choice.py", "return gain is not None and gain > margin", "return gain is not None and gain >= margin"),
    ("training/choice.py", "new.loss <= best.loss", "new.loss < best.loss"),
    ("metrics/intervals.py", "outside = (1 - confidence) / 2", "outside = 1 - confidence"),
    ("metrics/intervals.py", "inv_cdf(0.5 + confidence / 2)", "inv_cdf(confidence)"),
    ("metrics/intervals.py", "z * z / (4 * n * n))", "z * z / (2 * n * n))"),
    ("metrics/intervals.py", "beyond = 1 + min(", "beyond = min("),
)
"""Module, what stands there once, and what must not be taken for it: whatever the seed draws."""

EQUIVALENT = {
    (each["module"], each["line"], each["change"]): each["why"]
    for each in tomllib.loads(Path(__file__).with_name("mutants_equivalent.toml").read_text(encoding="utf-8"))["mutant"]
}
"""By module, line and change: why no test can tell the mutant from the module."""
