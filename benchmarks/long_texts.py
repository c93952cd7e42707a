"""What reading all of long documents is worth: head, head and tail, and windows on one split of one file.

    python benchmarks/long_texts.py reviews.csv --text text --label label --min-words 400 --train 600 --test 600

    python benchmarks/long_texts.py sentences.csv --join 12 --min-words 0 --max-length 32

    python benchmarks/long_texts.py rated.csv --by document --label rating --min-words 60 --max-length 64

Any CSV of documents with a label will do. Documents with fewer words than --min-words are left out, and the rows are
drawn by chance with --seed. With --join N a document is made of N rows of one label, each used once: a construction
for where no long documents are at hand, in which every part of a document has its label. With --by COLUMN the rows with
the same value there are one document, in their order; their labels are numbers, and its label is the sign of their
mean. Each way of reading trains the same model with the same settings on the same rows and answers the same test rows.
A difference to `head` is told with a paired bootstrap interval. What a way costs is told in tokens, for they are what
takes time: seconds are those of this machine.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

WAYS = ("head", "head-tail", "windows")


def read_documents(path: str, text: str, label: str, min_words: int, by: str = "") -> list[dict[str, str]]:
    csv.field_size_limit(sys.maxsize)
    with open(path, newline="", encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    rows = put_together(table, text, label, by) if by else [{"text": row[text], "label": row[label]} for row in table]
    return [row for row in rows if len(row["text"].split()) >= min_words]


def put_together(table: list[dict[str, str]], text: str, label: str, by: str) -> list[dict[str, str]]:
    """Documents of all rows with the same value, whose label is the sign of the mean of theirs."""
    parts: dict[str, list[dict[str, str]]] = {}
    for row in table:
        parts.setdefault(row[by], []).append(row)
    return [
        {
            "text": " ".join(row[text].strip() for row in rows),
            "label": "positive" if np.mean([float(row[label]) for row in rows]) > 0 else "negative",
        }
        for rows in parts.values()
    ]


def joined(rows: list[dict[str, str]], size: int, seed: int) -> list[dict[str, str]]:
    """Documents of so many rows of one label, in an order of chance."""
    mixed = [rows[row] for row in np.random.default_rng(seed).permutation(len(rows))]
    found = []
    for label in sorted({row["label"] for row in mixed}):
        texts = [row["text"].strip() for row in mixed if row["label"] == label]
        whole = range(0, len(texts) - size + 1, size)
        found += [{"text": " ".join(texts[start : start + size]), "label": label} for start in whole]
    return found


def drawn(rows: list[dict[str, str]], train: int, test: int, seed: int) -> tuple[list[Any], list[Any]]:
    order = np.random.default_rng(seed).permutation(len(rows))
    if len(rows) < train + test:
        raise SystemExit(f"{len(rows)} documents are long enough, and {train + test} are asked for.")
    return [rows[row] for row in order[:train]], [rows[row] for row in order[train : train + test]]


def write_rows(path: Path, rows: list[dict[str, str]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def trained(long: str, train: str, test: list[dict[str, str]], options: argparse.Namespace, folder: Path) -> Any:
    """Right or wrong for each test row, the tokens of a training row, and the seconds of the run."""
    import whet
    from whet.runs.folder import RunFolder

    run, began = folder / long, time.monotonic()
    whet.fit(
        train,
        model=options.model,
        long=long,
        max_length=options.max_length,
        epochs=options.epochs,
        learning_rate=options.lr,
        recipe="course",
        evaluations=2,
        seed=options.seed,
        test_share=0.0,
        run=str(run),
        allow=["leak"],
    )
    seconds = time.monotonic() - began
    answers = whet.load(run).predict([row["text"] for row in test])
    right = np.array([answer.label == row["label"] for answer, row in zip(answers, test, strict=True)])
    facts = RunFolder.open(run).data["audit"]["tokens"]["splits"]["train"]
    return right, facts["tokens"] / facts["rows"], facts["unread"], seconds


def interval(differences: Any, resamples: int = 10_000) -> tuple[float, float]:
    chosen = np.random.default_rng(0).integers(0, len(differences), (resamples, len(differences)))
    low, high = np.quantile(differences[chosen].mean(axis=1), [0.025, 0.975])
    return float(low), float(high)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--text", default="text")
    parser.add_argument("--label", default="label")
    parser.add_argument("--min-words", type=int, default=400)
    parser.add_argument("--join", type=int, default=1, help="rows of one label that make a document")
    parser.add_argument("--by", default="", help="rows with the same value in this column are one document")
    parser.add_argument("--train", type=int, default=600)
    parser.add_argument("--test", type=int, default=600)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--max-length", type=int, default=256)
    parser.add_argument("--epochs", type=float, default=3)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    options = parser.parse_args()
    rows = read_documents(options.file, options.text, options.label, options.min_words, options.by)
    if options.join > 1:
        rows = joined(rows, options.join, options.seed)
    train, test = drawn(rows, options.train, options.test, options.seed)
    words = np.mean([len(row["text"].split()) for row in train])
    settings = f"{options.model}, {options.max_length} tokens, {options.epochs:g} epochs"
    print(f"{len(train)} documents to train on, {words:.0f} words on average; {len(test)} to test; {settings}\n")
    print("| --long | not read | tokens a document | accuracy | against head | seconds |")
    print("|---|---|---|---|---|---|")
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        source = write_rows(Path(scratch) / "train.jsonl", train)
        for way in options.ways:
            right, tokens, unread, seconds = trained(way, source, test, options, Path(scratch))
            found[way] = right.astype(float)
            against = ""
            if way != "head" and "head" in found:
                low, high = interval(found[way] - found["head"])
                against = f"{found[way].mean() - found['head'].mean():+.3f} ({low:+.3f} to {high:+.3f})"
            score = f"{found[way].mean():.3f}"
            print(f"| {way} | {unread:.0%} | {tokens:.0f} | {score} | {against} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
