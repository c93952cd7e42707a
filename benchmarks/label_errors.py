"""How many flipped labels `whet labels` finds, beside cleanlab on the same out-of-fold probabilities.

    python benchmarks/label_errors.py GLUE_FOLDER

A share of the labels of some rows of SST-2 and MRPC is flipped. The probabilities come from five folds, by two ways:
`trained` is the fine-tuning that `whet labels` does for a run without folds, `frozen` a logistic regression on what the
pretrained model makes of the texts. GLUE has label errors of its own, which count as wrongly found here. Cases are
independent of each other; a second call goes on with what is missing in benchmarks/results/label_errors.json. Nothing
here is a measurement of time. `make figures` puts the table into docs/labels.md.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from results import FOLDER, write_results

TEXTS = {"sst2": ("sentence",), "mrpc": ("sentence1", "sentence2")}
SHARES = (0.05, 0.1, 0.2)
FOLDS = 5
FIRST = 100
NAMES = ("no", "yes")
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """Rows of one set with a share of their labels flipped, and how they are judged."""

    set: str
    rows: int
    share: float
    seed: int
    judge: str


@dataclass(frozen=True)
class Found:
    """One contender on one case."""

    case: Case
    contender: str
    precision_first: float
    """Flipped rows among the first 100."""
    recall_at_share: float
    """Of the flipped rows those that are ranked within as many rows as were flipped."""
    listed: int
    """Rows that are called wrong."""
    listed_precision: float
    listed_recall: float


@dataclass(frozen=True)
class Rows:
    """Texts with the labels that are given, and which of these were flipped."""

    columns: list[list[str]]
    given: Array
    flipped: Array


def read_rows(glue: str, case: Case) -> Rows:
    """Some rows of the training split; the same for every judge."""
    import pyarrow.parquet as pq

    table = pq.read_table(Path(glue) / case.set / "train.parquet").to_pylist()
    rng = np.random.default_rng([case.seed, round(1000 * case.share)])
    chosen = [table[row] for row in rng.permutation(len(table))[: case.rows]]
    labels = np.array([row["label"] for row in chosen])
    flipped = np.zeros(len(labels), bool)
    flipped[rng.permutation(len(labels))[: round(case.share * len(labels))]] = True
    columns = [[row[name] for row in chosen] for name in TEXTS[case.set]]
    return Rows(columns, np.where(flipped, 1 - labels, labels), flipped)


def trained_logits(rows: Rows, model: str) -> Array:
    """Out-of-fold logits of the fine-tuning that `whet labels` does."""
    import pandas as pd

    from whet.config import make_config
    from whet.runs.report.mistakes import read_answers
    from whet.training.out_of_fold import MAX_EPOCHS
    from whet.training.run import train_run

    table = pd.DataFrame(dict(zip(("text", "pair"), rows.columns, strict=False)))
    table["label"] = [NAMES[label] for label in rows.given]
    with tempfile.TemporaryDirectory() as folder:
        settings = {"model": model, "recipe": "auto", "run": f"{folder}/run", "allow": ("conflict",)}
        settings |= {"folds": FOLDS, "epochs": MAX_EPOCHS, "evaluations": 1, "probe_rows": 0}
        run = train_run(table, make_config(settings), measure_only=True)
        answers = read_answers(run, "validation", "binary", NAMES)
    assert answers is not None
    assert np.array_equal(answers.rows, np.arange(1, len(rows.given) + 1))
    return answers.logits


@cache
def encoder(model: str) -> tuple[Any, Any, Any]:
    """The pretrained model, its tokenizer and where it computes."""
    from whet.config import ModelConfig
    from whet.models.pretrained import load_model, load_tokenizer
    from whet.task import Task
    from whet.utils.device import choose_hardware

    hardware = choose_hardware()
    loaded = load_model(model, Task("binary", NAMES), ModelConfig(), seed=0).model.to(hardware.device)
    return loaded, load_tokenizer(model, ModelConfig()), hardware


def frozen_logits(rows: Rows, model: str) -> Array:
    """Out-of-fold logits of a logistic regression on the pretrained model's features."""
    from whet.engine.embeddings import embed_texts
    from whet.metrics.linear_models import frozen_predictions, out_of_fold, pair_features

    loaded, tokenizer, hardware = encoder(model)
    made = [embed_texts(loaded, tokenizer, column, hardware, 256) for column in rows.columns]
    features = made[0] if len(made) == 1 else pair_features(*made)

    def fit_predict(train: Array, held: Array) -> Array:
        return frozen_predictions("binary", 2, features[train], rows.given[train], features[held])

    return out_of_fold(fit_predict, np.random.default_rng(0).permutation(len(rows.given)) % FOLDS)


JUDGES: dict[str, Callable[[Rows, str], Array]] = {"frozen": frozen_logits, "trained": trained_logits}


def contenders(given: Array, logits: Array) -> Iterator[tuple[str, Array, Array]]:
    """Name, all rows from the most suspicious on, and the rows that are called wrong."""
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_label_quality_scores

    from whet.metrics.calibration import fit_temperature
    from whet.metrics.label_errors import find_label_errors
    from whet.metrics.scores import probabilities

    chances = probabilities("binary", logits)
    calibrated = probabilities("binary", logits / fit_temperature("binary", logits, given))
    for name, read in (("whet", chances), ("whet, calibrated", calibrated)):
        errors = find_label_errors(given, read)
        yield name, errors.order, errors.ranked
    quality = get_label_quality_scores(given, chances)
    every = np.argsort(quality, kind="stable")
    issues = find_label_issues(given, chances, return_indices_ranked_by="normalized_margin", n_jobs=1)
    yield "cleanlab", np.concatenate([issues, every[~np.isin(every, issues)]]), issues
    adjusted = get_label_quality_scores(given, chances, method="normalized_margin", adjust_pred_probs=True)
    yield "cleanlab, adjusted", np.argsort(adjusted, kind="stable"), issues


def measure(case: Case, glue: str, model: str) -> list[Found]:
    rows = read_rows(glue, case)
    count = int(rows.flipped.sum())
    found = []
    for name, order, listed in contenders(rows.given, JUDGES[case.judge](rows, model)):
        right = rows.flipped[listed]
        numbers = (
            rows.flipped[order[:FIRST]].mean(),
            rows.flipped[order[:count]].mean(),
            right.mean() if len(right) else 0.0,
            right.sum() / count,
        )
        first, recall, listed_precision, listed_recall = (round(float(number), 4) for number in numbers)
        found.append(Found(case, name, first, recall, len(listed), listed_precision, listed_recall))
    return found


def keep(found: list[Found], model: str) -> Path:
    packages = ("torch", "transformers", "scikit-learn", "cleanlab", "numpy")
    return write_results("label_errors", packages, model=model, found=[asdict(each) for each in found])


def read_found() -> list[Found]:
    """What an interrupted benchmark has measured already."""
    path = FOLDER / "label_errors.json"
    if not path.exists():
        return []
    return [Found(**{**each, "case": Case(**each["case"])}) for each in json.loads(path.read_text())["found"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("glue", help="a folder with sst2 and mrpc as Parquet files")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--sets", nargs="+", default=list(TEXTS), choices=list(TEXTS))
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--shares", nargs="+", type=float, default=list(SHARES))
    parser.add_argument("--draws", type=int, default=1)
    parser.add_argument("--judges", nargs="+", default=list(JUDGES), choices=list(JUDGES))
    options = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    found = read_found()
    known = {each.case for each in found}
    cases = [
        Case(name, options.rows, share, seed, judge)
        for judge in options.judges
        for seed in range(options.draws)
        for name in options.sets
        for share in options.shares
    ]
    for case in cases:
        if case in known:
            continue
        found.extend(measure(case, options.glue, options.model))
        print(case, file=sys.stderr, flush=True)
        print(keep(found, options.model), file=sys.stderr)


if __name__ == "__main__":
    main()
