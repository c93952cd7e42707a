"""Tells a hard task from labels that the text does not explain: what the baselines find in real and in shuffled labels.

python benchmarks/association.py glue

Each line is a draw of rows: how much of the way to a perfect score so many rows leave open, what the commonest answer
scores, and of each baseline its score out of five folds, its association and the p-value of beating the commonest.
The folder holds one folder a data set (cola, rte, mrpc, sst2), each with train.parquet.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from whet.config import ModelConfig
from whet.data.folds import assign_folds
from whet.engine.embeddings import embed_texts
from whet.metrics.baselines import COMMONEST, compare_baselines
from whet.metrics.linear_models import frozen_predictions, out_of_fold, pair_features, tfidf_predictions
from whet.models.pretrained import load_model, load_tokenizer
from whet.task import Task
from whet.utils.device import choose_hardware

SETS = {
    "cola": ("sentence",),
    "rte": ("sentence1", "sentence2"),
    "mrpc": ("sentence1", "sentence2"),
    "sst2": ("sentence",),
}
SIZES = (64, 128, 300, 600)
FOLDS = 5
Texts = list[list[str]]


def read(folder: Path, name: str, rows: int) -> tuple[Texts, Any]:
    """So many rows, drawn once: the texts by column, and the labels."""
    import pyarrow.parquet as pq

    table = pq.read_table(folder / name / "train.parquet")
    chosen = np.random.default_rng(0).permutation(len(table))[:rows]
    drawn = table.take(chosen)
    return [drawn.column(column).to_pylist() for column in SETS[name]], drawn.column("label").to_numpy()


def measured(texts: Texts, features: Any, labels: Any) -> Iterator[str]:
    """Cells of one line."""
    folds = assign_folds(np.arange(len(labels)), labels, FOLDS, seed=1)

    def frozen(train: Any, held: Any) -> Any:
        return frozen_predictions("binary", 2, features[train], labels[train], features[held])

    def words(train: Any, held: Any) -> Any:
        own, other = ([[column[row] for row in rows] for column in texts] for rows in (train, held))
        return tfidf_predictions("binary", 2, own[0], (own[1:] or [None])[0], labels[train], other[0], *other[1:])

    found = {"frozen": out_of_fold(frozen, folds), "TF-IDF": out_of_fold(words, folds)}
    standing = compare_baselines("binary", found["frozen"], labels, found, train_labels=labels)
    by_name = {each.name: each for each in standing.baselines}
    share = by_name[COMMONEST].value
    yield f"{2 * np.sqrt(share * (1 - share) / len(labels)) / (1 - share):.2f}"
    yield f"{share:.3f}"
    for name in found:
        each = by_name[name]
        yield f"{each.value:.3f}, {each.association:.1f}, {each.above_commonest:.2g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--model", default="minilm")
    chosen = parser.parse_args()
    config, hardware = ModelConfig(model=chosen.model), choose_hardware("auto", "auto")
    model = load_model(chosen.model, Task("binary", ("0", "1")), config, seed=0).model
    tokenizer = load_tokenizer(chosen.model, config)
    print("| set | labels | rows | left open | commonest | frozen | TF-IDF |\n|---|---|---|---|---|---|---|")
    for name in chosen.sets:
        texts, labels = read(chosen.folder, name, max(SIZES))
        embedded = [embed_texts(model, tokenizer, column, hardware, 128) for column in texts]
        features = embedded[0] if len(embedded) == 1 else pair_features(*embedded)
        for kind in ("real", "shuffled"):
            given = labels if kind == "real" else np.random.default_rng(1).permutation(labels)
            for rows in SIZES:
                cells = measured([column[:rows] for column in texts], features[:rows], given[:rows])
                print(f"| {name} | {kind} | {rows} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
