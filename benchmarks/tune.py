"""Is what `whet tune` ships ever worse than the default, and sometimes better?

python benchmarks/tune.py GLUE_FOLDER --minutes 20 --rows 3000

A tuning gets some training rows of each set and nothing else: it draws its own validation rows and the rows that it
holds out. The default and what was shipped then answer rows of the set that no part of the tuning saw, and a paired
test tells whether they differ. Where the default itself was shipped there is nothing to tell. Each tuning goes on where
it was cut off, so a second call with the same --work does what is missing.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from recipes import TEXTS
from results import write_results

import whet
from whet.metrics import paired, wilson

PACKAGES = ("whet", "optuna", "torch", "transformers", "scikit-learn")
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Found:
    """One set: what was searched, what the tuning said, and what rows outside of it say."""

    set: str
    rows: int
    minutes: float
    trainings: int
    pruned: int
    shipped: str
    sentence: str
    settings: dict[str, Any]
    importance: dict[str, float]
    test_rows: int
    default: float
    tuned: float
    default_interval: tuple[float, float]
    tuned_interval: tuple[float, float]
    difference: tuple[float, float]
    """The 95% interval of shipped minus default; both ends 0 where the default was shipped."""
    p_value: float

    @property
    def judged(self) -> str:
        if self.p_value >= 0.05:
            return "no difference"
        return "better" if self.tuned > self.default else "worse"


def read_rows(glue: Path, name: str, rows: int, seed: int) -> tuple[Rows, Rows]:
    """Training rows by chance, and all labelled rows of the other splits."""
    import pyarrow.parquet as pq

    def read(split: str) -> Rows:
        path = glue / name / f"{split}.parquet"
        return list(pq.read_table(path).to_pylist()) if path.exists() else []

    kept = [*TEXTS[name], "label"]
    train = read("train")
    chosen = np.random.default_rng(seed).permutation(len(train))[:rows]
    others = [row for row in [*read("validation"), *read("test")] if row["label"] >= 0]
    return [{key: train[row][key] for key in kept} for row in chosen], [
        {key: row[key] for key in kept} for row in others
    ]


def right(run: whet.Run, rows: Rows, columns: tuple[str, ...]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Labels and answers of a run, as text."""
    texts = [[row[column] for row in rows] for column in columns]
    answers = run.predict(*texts)
    return np.array([str(row["label"]) for row in rows]), np.array([str(answer.label) for answer in answers])


def tune_set(glue: Path, name: str, given: argparse.Namespace) -> Found:
    train, test = read_rows(glue, name, given.rows, given.seed)
    test = test[: given.test_rows]
    place = given.work / name
    place.mkdir(parents=True, exist_ok=True)
    source = place / "rows.jsonl"
    if not source.exists():
        source.write_text("".join(json.dumps(row) + "\n" for row in train), encoding="utf-8")
    columns = TEXTS[name]
    asked = {"text": columns[0], "pair": columns[1] if len(columns) > 1 else None, "label": "label"}
    tuning = whet.tune(
        source, minutes=given.minutes, trials=given.trials, model=given.model, run=place / "tuning", **asked
    )
    labels, default = right(whet.Run(tuning.path / "default"), test, columns)
    _, tuned = right(tuning.shipped, test, columns)
    between = paired(labels, default, tuned)
    ends = [wilson(int((labels == answers).sum()), len(labels)) for answers in (default, tuned)]
    lines = tuning.outcome.trials
    return Found(
        set=name,
        rows=len(train),
        minutes=round(tuning.outcome.seconds / 60, 2),
        trainings=len(lines),
        pruned=sum(line.state == "pruned" for line in lines),
        shipped=tuning.outcome.shipped,
        sentence=tuning.sentence,
        settings=tuning.settings,
        importance=tuning.importance,
        test_rows=len(test),
        default=between.a,
        tuned=between.b,
        default_interval=(ends[0].low, ends[0].high),
        tuned_interval=(ends[1].low, ends[1].high),
        difference=(between.low, between.high) if tuning.better else (0.0, 0.0),
        p_value=between.p_value,
    )


def table(found: list[Found]) -> list[str]:
    lines = [
        "| set | rows | trainings | shipped | default | shipped scores | p | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for each in found:
        scores = [
            f"{100 * value:.1f}% ({100 * low:.1f} to {100 * high:.1f})"
            for value, (low, high) in ((each.default, each.default_interval), (each.tuned, each.tuned_interval))
        ]
        pruned = f"{each.trainings} ({each.pruned} pruned)"
        cells = [each.set, f"{each.rows:,}", pruned, each.shipped, *scores, f"{each.p_value:.2g}", each.judged]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("glue", type=Path, help="a folder with cola, mrpc, rte and sst2 as Parquet files")
    parser.add_argument("--sets", nargs="+", default=list(TEXTS), choices=list(TEXTS))
    parser.add_argument("--minutes", type=float, default=20.0, help="for each set")
    parser.add_argument("--trials", type=int, help="stop a set after so many trainings")
    parser.add_argument("--rows", type=int, default=3_000, help="training rows that a tuning gets")
    parser.add_argument("--test-rows", type=int, default=5_000)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--seed", type=int, default=0, help="of the draw of the rows")
    parser.add_argument("--work", type=Path, default=Path("tuning-benchmark"), help="where the tunings are kept")
    given = parser.parse_args()
    found = []
    for name in given.sets:
        found.append(tune_set(given.glue, name, given))
        print(f"{name}: {found[-1].sentence}", file=sys.stderr, flush=True)
        judged = [each.judged for each in found]
        write_results(
            "tune",
            PACKAGES,
            asked={"minutes": given.minutes, "trials": given.trials, "model": given.model, "seed": given.seed},
            never_worse="worse" not in judged,
            better_on=judged.count("better"),
            sets=[{**dataclasses.asdict(each), "judged": each.judged} for each in found],
        )
    print("\n".join(table(found)))


if __name__ == "__main__":
    main()
