"""How often conformal sets hold the right label: a finished run's rows, split again and again.

    python benchmarks/conformal.py runs/reviews-001 runs/pairs-001 --coverage 0.9 --splits 200

The labelled validation and test rows in predictions.parquet are dealt into two halves: temperature and limit are fitted
on one, coverage is measured on the other. The figures are kept in `benchmarks/results/conformal.json`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from results import write_results

from whet.errors import WhetError
from whet.metrics.calibration import usable_temperature
from whet.metrics.conformal import covered, in_set, nonconformity, quantile_for
from whet.metrics.scores import probabilities
from whet.runs.folder import RunFolder
from whet.runs.report.mistakes import read_answers


def measure(run: str, coverage: float, splits: int) -> dict[str, Any]:
    data = RunFolder.open(run).data
    task, labels = data["task"], data["labels"]
    found = [read_answers(RunFolder.open(run), split, task, labels) for split in ("test", "validation")]
    there = [answers for answers in found if answers is not None]
    logits = np.concatenate([answers.logits for answers in there])
    truth = np.concatenate([answers.labels for answers in there])
    rng, shares, sizes, empty = np.random.default_rng(0), [], [], []
    for _ in range(splits):
        order = rng.permutation(len(truth))
        one, other = order[: len(order) // 2], order[len(order) // 2 :]
        temperature = 1.0 if task == "regression" else usable_temperature(task, logits[one], truth[one])[0]
        chances = probabilities(task, logits if task == "regression" else logits / temperature)
        limit = quantile_for(coverage, nonconformity(task, chances[one], truth[one]))
        shares.append(covered(task, chances[other], truth[other], limit).mean())
        if task != "regression":
            held = in_set(chances[other], limit).sum(axis=1)
            sizes.append(held.mean())
            empty.append((held == 0).mean())
    low, high = np.quantile(shares, [0.05, 0.95])
    return {
        "run": Path(run).name,
        "rows": len(truth),
        "coverage": round(float(np.mean(shares)), 4),
        "from_5%": round(float(low), 4),
        "to_95%": round(float(high), 4),
        "labels_a_set": round(float(np.mean(sizes)), 3) if sizes else None,
        "empty": round(float(np.mean(empty)), 4) if empty else None,
    }


def markdown(found: dict[str, Any]) -> str:
    sets = "an interval | " if found["labels_a_set"] is None else f"{found['labels_a_set']:.2f} | {found['empty']:.1%}"
    spread = f"{found['coverage']:.1%} | {100 * found['from_5%']:.1f} to {found['to_95%']:.1%}"
    return f"| {found['run']} | {found['rows']} | {spread} | {sets} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--coverage", type=float, default=0.9)
    parser.add_argument("--splits", type=int, default=200)
    options = parser.parse_args()
    print(f"| run | rows | coverage, mean of {options.splits} splits | 5% to 95% of splits | labels a set | empty |")
    print("|---|---|---|---|---|---|")
    measured = []
    for run in options.runs:
        try:
            measured.append(measure(run, options.coverage, options.splits))
        except WhetError as error:
            print(f"{run}: {error}")
        else:
            print(markdown(measured[-1]))
    packages = ("numpy", "scipy")
    print(write_results("conformal", packages, goal=options.coverage, splits=options.splits, runs=measured))


if __name__ == "__main__":
    main()
