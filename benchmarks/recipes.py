"""Scores by number of rows: whet's default beside the course's settings, linear models and SetFit.

python benchmarks/recipes.py GLUE_FOLDER --model MODEL --json benchmarks/results/recipes.json

Every contender gets the same draw of training rows and nothing else: validation rows and steps are its own to choose.
The test rows play no part in any of it. The linear models are those that whet trains beside every model, here scored on
all test rows. SetFit (`pip install setfit`) starts from the same model, with its own defaults, and reads a pair as
one text; it is left out above --setfit-rows, since its pairs grow with the square of the rows. Draws are independent of
each other, so --workers of them are trained at once; nothing here is a measurement of time. A second call with the same
--json goes on with what is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

TEXTS = {
    "mrpc": ("sentence1", "sentence2"),
    "cola": ("sentence",),
    "rte": ("sentence1", "sentence2"),
    "sst2": ("sentence",),
}
SIZES = (16, 32, 64, 128, 300, 1_000, 4_000)
CONTENDERS = ("whet", "course", "linear", "setfit")
TEST_ROWS = 1_000
MIN_OF_A_CLASS = 3


@dataclass(frozen=True)
class Draw:
    """One set of training rows, and the test rows that go with it."""

    set: str
    rows: int
    seed: int


@dataclass(frozen=True)
class Score:
    """One contender on one draw."""

    set: str
    rows: int
    seed: int
    contender: str
    accuracy: float
    f1_macro: float


def read_draw(glue: Path, draw: Draw) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Training rows by chance, with a few of every class; the test rows are the same for every draw."""
    import pyarrow.parquet as pq

    table = pq.read_table(glue / draw.set / "train.parquet").to_pylist()
    for attempt in range(1_000):
        rng = np.random.default_rng([draw.seed, attempt])
        chosen = [table[row] for row in rng.permutation(len(table))[: draw.rows]]
        counts = np.bincount([row["label"] for row in chosen], minlength=2)
        if counts.min() >= MIN_OF_A_CLASS:
            break
    names = [name for name in ("validation", "test") if (glue / draw.set / f"{name}.parquet").exists()]
    held = [row for name in names for row in pq.read_table(glue / draw.set / f"{name}.parquet").to_pylist()]
    order = np.random.default_rng(0).permutation(len(held))[:TEST_ROWS]
    columns = TEXTS[draw.set]
    return [
        [
            {**dict(zip(("text", "pair"), [row[c] for c in columns], strict=False)), "label": row["label"]}
            for row in rows
        ]
        for rows in (chosen, [held[row] for row in order])
    ]  # type: ignore[return-value]


def scores_of(labels: list[int], answers: list[int]) -> tuple[float, float]:
    from sklearn.metrics import accuracy_score, f1_score

    return float(accuracy_score(labels, answers)), float(f1_score(labels, answers, average="macro"))


def whet_answers(
    train: list[dict[str, Any]], test: list[dict[str, Any]], model: str, recipe: str, seed: int
) -> list[int]:
    import whet

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in train), encoding="utf-8")
        settings = {"model": model, "recipe": recipe, "seed": seed, "run": str(place / "run")}
        run = whet.fit(place / "train.jsonl", **settings)
        answers = run.predict(*columns_of(test))
    return [int(answer.label) for answer in answers]


def columns_of(rows: list[dict[str, Any]]) -> tuple[list[str], list[str] | None]:
    return [row["text"] for row in rows], [row["pair"] for row in rows] if "pair" in rows[0] else None


def linear_answers(train: list[dict[str, Any]], test: list[dict[str, Any]], model: str) -> Iterator[tuple[str, Any]]:
    """TF-IDF, and the frozen model's mean tokens, each with logistic regression."""
    from whet.config import ModelConfig
    from whet.engine.embeddings import embed_texts
    from whet.metrics.linear_models import frozen_predictions, pair_features, tfidf_predictions
    from whet.models.pretrained import load_model, load_tokenizer
    from whet.task import Task
    from whet.utils.device import choose_hardware

    labels = np.array([row["label"] for row in train])
    texts, held = columns_of(train), columns_of(test)
    yield "TF-IDF", tfidf_predictions("binary", 2, *texts, labels, *held).argmax(1).tolist()
    hardware, settings = choose_hardware(), ModelConfig()
    tokenizer = load_tokenizer(model, settings)
    encoder = load_model(model, Task("binary", ("0", "1")), settings, seed=0).model.to(hardware.device)

    def features(columns: tuple[list[str], list[str] | None]) -> Any:
        made = [embed_texts(encoder, tokenizer, column, hardware, 256) for column in columns if column is not None]
        return made[0] if len(made) == 1 else pair_features(*made)

    yield "frozen", frozen_predictions("binary", 2, features(texts), labels, features(held)).argmax(1).tolist()


def setfit_answers(train: list[dict[str, Any]], test: list[dict[str, Any]], model: str, seed: int) -> list[int]:
    import datasets
    import torch
    from setfit import SetFitModel, Trainer, TrainingArguments

    from whet.models.pretrained import find_model

    def joined(rows: list[dict[str, Any]]) -> list[str]:
        return [f"{row['text']} {row['pair']}" if "pair" in row else row["text"] for row in rows]

    torch.manual_seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        fitted = SetFitModel.from_pretrained(find_model(model))
        fitted.model_body.float()
        arguments = TrainingArguments(output_dir=folder, seed=seed, save_strategy="no", report_to="none")
        rows = datasets.Dataset.from_dict({"text": joined(train), "label": [row["label"] for row in train]})
        Trainer(model=fitted, args=arguments, train_dataset=rows).train()
        return [int(answer) for answer in fitted.predict(joined(test))]


def run_draw(job: tuple[Draw, str, str, int, tuple[str, ...]]) -> list[Score]:
    """Every contender on one draw, in a process of its own."""
    draw, glue, model, setfit_rows, contenders = job
    random.seed(draw.seed)
    train, test = read_draw(Path(glue), draw)
    labels = [row["label"] for row in test]
    found: list[Score] = []

    def add(contender: str, accuracy: float, f1_macro: float) -> None:
        found.append(Score(draw.set, draw.rows, draw.seed, contender, round(accuracy, 5), round(f1_macro, 5)))

    commonest = max({row["label"] for row in train}, key=[row["label"] for row in train].count)
    add("commonest", *scores_of(labels, [commonest] * len(labels)))
    for name, recipe in (("whet", "auto"), ("course", "course")):
        if name in contenders:
            add(name, *scores_of(labels, whet_answers(train, test, model, recipe, draw.seed)))
    if "linear" in contenders:
        for name, answers in linear_answers(train, test, model):
            add(name, *scores_of(labels, answers))
    if "setfit" in contenders and draw.rows <= setfit_rows:
        add("SetFit", *scores_of(labels, setfit_answers(train, test, model, draw.seed)))
    return found


def markdown(scores: list[Score], metric: str) -> Iterator[str]:
    """Means over sets of the means over draws."""
    sizes = sorted({score.rows for score in scores})
    yield "| contender | " + " | ".join(f"{size:,}" for size in sizes) + " |"
    yield "|---|" + "---|" * len(sizes)
    for contender in dict.fromkeys(score.contender for score in scores):
        cells = []
        for size in sizes:
            by_set: dict[str, list[float]] = {}
            for score in scores:
                if score.contender == contender and score.rows == size:
                    by_set.setdefault(score.set, []).append(getattr(score, metric))
            cells.append(f"{np.mean([np.mean(values) for values in by_set.values()]):.3f}" if by_set else "")
        yield f"| {contender} | " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("glue", help="a folder with mrpc, cola, rte and sst2 as Parquet files")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--sets", nargs="+", default=list(TEXTS), choices=list(TEXTS))
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES))
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS), choices=list(CONTENDERS))
    parser.add_argument("--setfit-rows", type=int, default=300)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // given.workers)))
    scores = read_scores(given.json)
    known = {(score.set, score.rows, score.seed) for score in scores}
    draws = [Draw(name, size, seed) for seed in range(given.draws) for size in given.sizes for name in given.sets]
    jobs = [
        (draw, given.glue, given.model, given.setfit_rows, tuple(given.contenders))
        for draw in draws
        if (draw.set, draw.rows, draw.seed) not in known
    ]
    import multiprocessing

    with ProcessPoolExecutor(given.workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        for done, finished in enumerate(as_completed([pool.submit(run_draw, job) for job in jobs]), 1):
            if error := finished.exception():
                print(f"{done} of {len(jobs)}: {error!r}", file=sys.stderr, flush=True)
                continue
            found = finished.result()
            scores.extend(found)
            print(
                f"{done} of {len(jobs)}: {found[0].set}, {found[0].rows} rows: "
                + ", ".join(f"{score.contender} {score.accuracy:.3f}" for score in found),
                file=sys.stderr,
                flush=True,
            )
            if given.json:
                given.json.parent.mkdir(parents=True, exist_ok=True)
                given.json.write_text(json.dumps(describe(scores), indent=1) + "\n")
    for metric in ("accuracy", "f1_macro"):
        print(f"\n{metric}\n")
        print("\n".join(markdown(scores, metric)))


def read_scores(path: Path | None) -> list[Score]:
    """What an interrupted benchmark has measured already."""
    if path is None or not path.exists():
        return []
    return [Score(**score) for score in json.loads(path.read_text())["scores"]]


def describe(scores: list[Score]) -> dict[str, Any]:
    import torch
    import transformers

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    return {"machine": device, "versions": versions, "scores": [asdict(score) for score in scores]}


if __name__ == "__main__":
    main()
