"""Trains small models with planted causes and scores the verdict on them: the second table in docs/curves.md.

python benchmarks/verdict_real_runs.py DATA OUT --half 1     # shape the rules on these
python benchmarks/verdict_real_runs.py DATA OUT --half 2     # then score once, on data sets not seen before
python benchmarks/verdict_real_runs.py DATA OUT --plan       # say what would be run

DATA is a folder with one folder a data set, each with train.parquet and validation.parquet: sst2, mrpc, cola, stsb as
GLUE has them; snli, amazon, tweets as `unseen_data.py` writes them. Runs are kept under OUT and not made again; their
weights are deleted.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from verdict_synthetic import f1_by_kind

from whet.errors import Diverged
from whet.runs.folder import RunFolder
from whet.runs.verdict.judge import PROBLEM_VERDICTS, verdict_of

TEXTS = {
    "sst2": ("sentence",),
    "mrpc": ("sentence1", "sentence2"),
    "cola": ("sentence",),
    "stsb": ("sentence1", "sentence2"),
    "snli": ("sentence1", "sentence2"),
    "amazon": ("sentence",),
    "tweets": ("sentence",),
}
# The second half is other data, not other seeds of the same: thresholds cannot have seen it.
HALVES = {1: ("sst2", "mrpc", "cola", "stsb"), 2: ("snli", "amazon", "tweets")}
EVALUATION_ROWS = 400

Columns = dict[str, list[Any]]
Change = Callable[[Columns, Columns, np.random.Generator], tuple[Columns, Columns]]


def untouched(train: Columns, validation: Columns, rng: np.random.Generator) -> tuple[Columns, Columns]:
    return train, validation


def shuffled(train: Columns, validation: Columns, rng: np.random.Generator) -> tuple[Columns, Columns]:
    """Labels that have nothing to do with the text, in both splits."""
    return tuple(  # type: ignore[return-value]
        {**split, "label": rng.permutation(split["label"]).tolist()} for split in (train, validation)
    )


def a_third_wrong(train: Columns, validation: Columns, rng: np.random.Generator) -> tuple[Columns, Columns]:
    """30% of the training labels become another one; validation is clean."""
    labels = np.asarray(train["label"])
    wrong, classes = rng.random(len(labels)) < 0.3, int(labels.max()) + 1
    other = (labels + rng.integers(1, classes, len(labels))) % classes
    return {**train, "label": np.where(wrong, other, labels).tolist()}, validation


def leaked(train: Columns, validation: Columns, rng: np.random.Generator) -> tuple[Columns, Columns]:
    """Every validation row is also trained on."""
    return {name: [*validation[name], *train[name]] for name in train}, validation


@dataclass(frozen=True)
class Cause:
    """What is planted, and the verdicts that name it; the first is the one it is counted as."""

    name: str
    verdicts: tuple[str, ...]
    rows: int = 3000
    change: Change = untouched
    settings: dict[str, Any] = field(default_factory=dict)


FINE = ("healthy", "plateau", "underfitting")
# Where more than one verdict is right, the cause shows in either way, and the advice is the same or nearly so.
CAUSES = (
    # Nothing is wrong with these two; whether so few epochs are enough depends on the data.
    Cause("usual settings, one epoch", FINE, settings={"epochs": 1}),
    Cause("a lower rate, two epochs", FINE, settings={"epochs": 2, "learning_rate": 2e-5}),
    Cause("rate × 100", ("rate-too-high", "diverging"), 1500, settings={"learning_rate": 5e-3, "epochs": 2}),
    Cause(
        "rate × 100, no clipping",
        ("diverging", "rate-too-high"),
        1500,
        settings={"learning_rate": 5e-3, "epochs": 2, "clip": 0.0, "schedule": "constant"},
    ),
    Cause("rate ÷ 1000", ("rate-too-low",), 1500, settings={"learning_rate": 5e-8}),
    Cause("rate ÷ 100", ("rate-too-low", "underfitting"), 1500, settings={"learning_rate": 5e-7}),
    Cause("5% of the rows, 30 epochs", ("overfitting",), 150, settings={"epochs": 30}),
    Cause("twenty epochs", ("overfitting",), 400, settings={"epochs": 20}),
    Cause("shuffled labels, fifteen epochs", ("label-noise-suspected",), 400, shuffled, {"epochs": 15}),
    Cause("shuffled labels, one epoch", ("not-learning",), 2000, shuffled, {"epochs": 1}),
    Cause("leaked validation", ("leak-suspected",), 400, leaked, {"epochs": 8, "allow": ("leak",)}),
    Cause(
        "30% of the labels wrong, ten epochs",
        ("overfitting", "label-noise-suspected"),
        800,
        a_third_wrong,
        {"epochs": 10},
    ),
    Cause(
        "tiny batch, high rate",
        ("erratic", "rate-too-high", "diverging"),
        600,
        settings={"batch_size": 2, "learning_rate": 3e-4, "schedule": "constant", "epochs": 2},
    ),
    Cause(
        "a third of an epoch",
        ("underfitting", "rate-too-low"),
        1500,
        settings={"epochs": 0.3, "learning_rate": 2e-5},
    ),
)


def read_split(folder: Path, name: str, split: str, rows: int, rng: np.random.Generator) -> Columns:
    """So many rows at random, with columns text, pair and label; STS-B's rating becomes similar or not."""
    import pyarrow.parquet as pq

    found = pq.read_table(folder / name / f"{split}.parquet").to_pydict()
    chosen = rng.permutation(len(found["label"]))[:rows]
    columns = {
        target: [found[source][i] for i in chosen]
        for target, source in zip(("text", "pair"), TEXTS[name], strict=False)
    }
    labels = [found["label"][i] for i in chosen]
    columns["label"] = [int(label >= 2.5) for label in labels] if name == "stsb" else [int(x) for x in labels]
    return columns


def prepare(data: Path, target: Path, name: str, cause: Cause) -> Path:
    """train.parquet and validation.parquet with the cause planted."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng([CAUSES.index(cause), *name.encode()])
    train = read_split(data, name, "train", cause.rows, rng)
    validation = read_split(data, name, "validation", EVALUATION_ROWS, rng)
    target.mkdir(parents=True, exist_ok=True)
    for split, columns in zip(("train", "validation"), cause.change(train, validation, rng), strict=True):
        pq.write_table(pa.table(columns), target / f"{split}.parquet")
    return target


def train(data: Path, out: Path, name: str, cause: Cause, model: str) -> RunFolder:
    """The run of this cause on this data set; made once."""
    import whet

    slug = "".join(letter if letter.isalnum() else "-" for letter in cause.name.replace("×", "x").replace("÷", "by"))
    path = out / f"{name}-{slug}"
    done = path / "verdict-input-complete"
    if not done.is_file():
        shutil.rmtree(path, ignore_errors=True)
        source = prepare(data, out / "data" / path.name, name, cause)
        with suppress(Diverged):  # the records say so, and that is what is judged
            whet.fit(str(source), model=model, run=str(path), evaluations=12, probe_rows=300, **cause.settings)
        for heavy in ("checkpoints", "model"):
            shutil.rmtree(path / heavy, ignore_errors=True)
        done.touch()
    return RunFolder.open(path)


def report(results: list[dict[str, Any]]) -> None:
    """Markdown: every run, then the scores."""
    print("\n| data | cause | verdict | right | confidence |\n|---|---|---|---|---|")
    for found in results:
        right = "yes" if found["right"] else f"no: {' or '.join(found['expected'])}"
        print(f"| {found['data']} | {found['cause']} | {found['verdict']} | {right} | {found['confidence']:.2f} |")
    # A verdict that is right for the cause counts as the cause's own.
    pairs = [(r["expected"][0], r["expected"][0] if r["right"] else r["verdict"]) for r in results]
    kinds = sorted({truth for truth, _ in pairs})
    scores = f1_by_kind(pairs, kinds)
    healthy = [r for r in results if r["expected"][0] == "healthy"]
    sick = sum(r["verdict"] in PROBLEM_VERDICTS - set(FINE) for r in healthy)
    print(
        f"\n{sum(r['right'] for r in results)} of {len(results)} right, macro-F1 {np.mean(list(scores.values())):.3f}"
    )
    print(f"healthy called sick: {sick} of {len(healthy)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--half", type=int, choices=(1, 2), help="only the data sets of this half [all]")
    parser.add_argument("--sets", nargs="+", choices=TEXTS, help="only these data sets")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--only", default="", help="only causes whose name has this in it")
    parser.add_argument("--plan", action="store_true", help="say what would be run, and stop")
    chosen = parser.parse_args()
    names = chosen.sets or (HALVES[chosen.half] if chosen.half else sum(HALVES.values(), ()))
    planned = [(name, cause) for name in names for cause in CAUSES if chosen.only in cause.name]
    results = []
    for name, cause in planned:
        if chosen.plan:
            print(f"{name}: {cause.name} ({cause.rows} rows, {cause.settings}) → {' or '.join(cause.verdicts)}")
            continue
        found = verdict_of(train(chosen.data, chosen.out, name, cause, chosen.model).records())
        right = found.verdict in cause.verdicts
        results.append(
            {"data": name, "cause": cause.name, "expected": cause.verdicts, "right": right, **found.as_dict()}
        )
        print(f"{'ok   ' if right else 'WRONG'} {name}: {cause.name}: {found.sentence}", flush=True)
    if results:
        (chosen.out / f"results-{chosen.half or 'all'}.json").write_text(json.dumps(results, indent=1))
        report(results)


if __name__ == "__main__":
    main()
