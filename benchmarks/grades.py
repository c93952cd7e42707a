"""Grades learnt as classes, as numbers and by ordered thresholds, on the frozen encoder's features of one CSV.

    python benchmarks/grades.py reviews.csv --text text --label stars [--pair pair]

Labels are whole numbers. Ten times, half of the rows are trained on and half are answered. Classes are logistic
regression, numbers are ridge regression, rounded, and ordered thresholds are the "all thresholds" logistic model
(Rennie and Srebro 2005): one direction and a limit between every two grades, trained on all limits. Each is printed
with its mean accuracy, quadratic kappa, mean absolute error and Spearman correlation.
"""

from __future__ import annotations

import argparse
import csv
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit
from scipy.stats import spearmanr
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import accuracy_score, cohen_kappa_score, mean_absolute_error
from sklearn.preprocessing import StandardScaler

Array = np.ndarray[Any, Any]
INVERSE_PENALTY, RIDGE_PENALTY, REPEATS = 0.01, 300.0, 10


def features_of(texts: list[str], model: str) -> Array:
    from whet.config import ModelConfig
    from whet.engine.embeddings import embed_texts
    from whet.models.pretrained import load_model, load_tokenizer
    from whet.task import Task
    from whet.utils.device import choose_hardware

    settings = ModelConfig()
    encoder = load_model(model, Task("binary", ("0", "1")), settings, seed=0).model
    return embed_texts(encoder, load_tokenizer(model, settings), texts, choose_hardware("cpu", "float32"), 128)


def ordered_thresholds(X: Array, y: Array, others: Array, grades: int) -> Array:
    """Grades of the other rows: how many limits their score lies above."""
    width = X.shape[1]
    above = (y[:, None] > np.arange(grades - 1)).astype(float)

    def limits_of(free: Array) -> Array:
        """Ever larger, whatever the free numbers are."""
        return np.concatenate([free[:1], free[0] + np.cumsum(np.exp(free[1:]))])

    def loss(parameters: Array) -> tuple[float, Array]:
        direction, free = parameters[:width], parameters[width:]
        margins = (X @ direction)[:, None] - limits_of(free)
        value = (np.logaddexp(0, margins) - above * margins).sum() + direction @ direction / (2 * INVERSE_PENALTY)
        slopes = expit(margins) - above
        of_limits = -slopes.sum(axis=0)
        of_gaps = np.cumsum(of_limits[::-1])[::-1][1:] * np.exp(free[1:])
        of_direction = X.T @ slopes.sum(axis=1) + direction / INVERSE_PENALTY
        return float(value), np.concatenate([of_direction, [of_limits.sum()], of_gaps])

    shares = above.mean(axis=0).clip(1e-6, 1 - 1e-6)
    first = np.log(1 / shares - 1)
    start = np.concatenate([np.zeros(width), first[:1], np.log(np.maximum(np.diff(first), 1e-3))])
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 500}).x
    return np.asarray(((others @ found[:width])[:, None] > limits_of(found[width:])).sum(axis=1))


def answers(X: Array, y: Array, others: Array, grades: int) -> dict[str, Array]:
    numbers = Ridge(alpha=RIDGE_PENALTY).fit(X, y).predict(others)
    return {
        "classes": LogisticRegression(C=INVERSE_PENALTY, max_iter=2000).fit(X, y).predict(others),
        "regression": np.rint(numbers).clip(0, grades - 1).astype(int),
        "ordered thresholds": ordered_thresholds(X, y, others, grades),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--text", default="text")
    parser.add_argument("--pair")
    parser.add_argument("--label", default="label")
    parser.add_argument("--model", default="minilm")
    options = parser.parse_args()
    with open(options.file, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    names, y = np.unique([int(row[options.label]) for row in rows], return_inverse=True)
    X = features_of([row[options.text] for row in rows], options.model)
    if options.pair:
        from whet.metrics.linear_models import pair_features

        X = pair_features(X, features_of([row[options.pair] for row in rows], options.model))
    rng, found = np.random.default_rng(0), {}  # type: ignore[var-annotated]
    for _ in range(REPEATS):
        train, test = np.array_split(rng.permutation(len(y)), 2)
        scale = StandardScaler().fit(X[train])
        for name, said in answers(scale.transform(X[train]), y[train], scale.transform(X[test]), len(names)).items():
            kappa, rank = cohen_kappa_score(y[test], said, weights="quadratic"), spearmanr(y[test], said).statistic
            scores = [accuracy_score(y[test], said), kappa, mean_absolute_error(y[test], said), rank]
            found.setdefault(name, []).append(scores)
    print(f"{len(y):,} rows, grades {dict(zip(names.tolist(), np.bincount(y).tolist(), strict=True))}\n")
    print("| learnt as | accuracy | quadratic kappa | mean absolute error | Spearman |")
    print("|---|---|---|---|---|")
    for name, scores in found.items():
        print(f"| {name} | " + " | ".join(f"{value:.3f}" for value in np.mean(scores, axis=0)) + " |")


if __name__ == "__main__":
    main()
