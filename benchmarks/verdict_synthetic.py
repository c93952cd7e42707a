"""Scores the verdict on synthetic curves of known truth: the figures in docs/curves.md.

python benchmarks/verdict_synthetic.py --per-kind 400 --seed 2026
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from whet.runs.verdict.features import CurveData, CurveFeatures
from whet.runs.verdict.judge import PROBLEM_VERDICTS, entropy
from whet.runs.verdict.rules import first_call

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.synthetic_curves import TRUTHS, Sample, sample


def called(curve: Sample) -> str:
    seen = CurveData(
        steps=curve.steps,
        evaluation=curve.eval_loss,
        training=curve.train_loss,
        score=curve.metric,
        chance=entropy(curve.prior),
        majority=max(curve.prior),
        rows=curve.rows,
    )
    return first_call(CurveFeatures(seen)).verdict


def f1_by_kind(pairs: Iterable[tuple[str, str]], kinds: Iterable[str]) -> dict[str, float]:
    """F1 of each kind from (truth, found) pairs."""
    counts = Counter(pairs)
    scores = {}
    for kind in kinds:
        hits = counts[kind, kind]
        misses = sum(n for (truth, found), n in counts.items() if (truth == kind) != (found == kind))
        scores[kind] = 2 * hits / (2 * hits + misses) if hits + misses else 0.0
    return scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--per-kind", type=int, default=400)
    parser.add_argument("--seed", type=int, default=2026)
    chosen = parser.parse_args()
    columns: dict[str, dict[str, float]] = {}
    for noise in (1.0, 2.0):
        curves = sample(chosen.per_kind, noise=noise, seed=chosen.seed)
        pairs = [(curve.truth, called(curve)) for curve in curves]
        scores = f1_by_kind(pairs, TRUTHS)
        healthy = [found for truth, found in pairs if truth == "healthy"]
        columns[f"noise × {noise:g}"] = {
            **scores,
            "macro-F1": sum(scores.values()) / len(scores),
            "healthy called sick": sum(found in PROBLEM_VERDICTS for found in healthy) / len(healthy),
        }
        wrong = Counter((truth, found) for truth, found in pairs if truth != found)
        print(
            f"noise × {noise:g}, commonest mistakes:",
            ", ".join(f"{t} → {f}: {n}" for (t, f), n in wrong.most_common(5)),
        )
    print(f"\n{chosen.per_kind} curves a kind, seed {chosen.seed}\n")
    print("| kind | " + " | ".join(columns) + " |")
    print("|---|" + "---|" * len(columns))
    for row in (*TRUTHS, "macro-F1", "healthy called sick"):
        print(f"| {row} | " + " | ".join(f"{column[row]:.3f}" for column in columns.values()) + " |")


if __name__ == "__main__":
    main()
