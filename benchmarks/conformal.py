"""How often conformal sets hold the right label: a finished run's rows, split again and again.

    python benchmarks/conformal.py runs/reviews-001 runs/pairs-001 --coverage 0.9 --splits 200

The labelled validation and test rows in predictions.parquet are dealt into two halves: temperature and limit are fitted
on one, coverage is measured on the other.
"""

from __future__ import annotations

import argparse

import numpy as np

from whet.errors import WhetError
from whet.metrics.calibration import usable_temperature
from whet.metrics.conformal import covered, in_set, nonconformity, quantile_for
from whet.metrics.scores import probabilities
from whet.runs.folder import RunFolder
from whet.runs.report.mistakes import read_answers


def measure(run: str, coverage: float, splits: int) -> str:
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
    labels_a_set = f"{np.mean(sizes):.2f} | {100 * np.mean(empty):.1f}%" if sizes else "an interval | "
    spread = f"{100 * np.mean(shares):.1f}% | {100 * low:.1f} to {100 * high:.1f}%"
    return f"| {run} | {len(truth)} | {spread} | {labels_a_set} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--coverage", type=float, default=0.9)
    parser.add_argument("--splits", type=int, default=200)
    options = parser.parse_args()
    print(f"| run | rows | coverage, mean of {options.splits} splits | 5% to 95% of splits | labels a set | empty |")
    print("|---|---|---|---|---|---|")
    for run in options.runs:
        try:
            print(measure(run, options.coverage, options.splits))
        except WhetError as error:
            print(f"{run}: {error}")


if __name__ == "__main__":
    main()
