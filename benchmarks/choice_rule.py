"""Which rule ships better models: replays the choice of a step on real curves, with many draws of validation rows.

python benchmarks/choice_rule.py GLUE_FOLDER --rows 128 --sets sst2 mrpc cola rte

Each training is evaluated on a pool of rows that it never saw, step by step. Then validation rows are drawn from the
pool again and again; each rule chooses by them, and what it ships is scored on the rest of the pool. So one training
gives many lotteries, and chance in the test rows is small.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
TEXTS = {"sst2": ("sentence",), "cola": ("sentence",), "mrpc": ("sentence1", "sentence2")}
PAIR = ("sentence1", "sentence2")
AVERAGE = -1
DRAWS = 200


@dataclass(frozen=True)
class Curve:
    """One training: the pool's labels, and its logits after each evaluation; those of the average under -1."""

    name: str
    labels: Array
    logits: dict[int, Array]


def write_split(path: Path, table: Any, texts: Sequence[str], chosen: Array) -> None:
    rows = table.take(chosen).to_pylist()
    lines = []
    for row in rows:
        read = dict(zip(("text", "pair"), [row[text] for text in texts], strict=False))
        lines.append(json.dumps({**read, "label": row["label"]}))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def train_curve(glue: Path, name: str, rows: int, pool: int, seed: int) -> Curve:
    """Train with the recipe's settings; evaluate on the pool."""
    import pyarrow.parquet as pq

    from whet.config import make_config
    from whet.training.evaluation import Evaluator
    from whet.training.loop import train
    from whet.training.recipe import chosen_settings
    from whet.training.setup import make_job, make_tokens, read_examples

    table = pq.read_table(glue / name / "train.parquet")
    order = np.random.default_rng(seed).permutation(len(table))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        write_split(place / "train.jsonl", table, TEXTS.get(name, PAIR), order[:rows])
        write_split(place / "validation.jsonl", table, TEXTS.get(name, PAIR), order[rows : rows + pool])
        base = {"source": str(place), "recipe": "course", "seed": seed, "evaluations": 12, "probe_rows": 0}
        quiet: Callable[[str], None] = lambda line: None  # noqa: E731
        config = make_config({**base, "allow": "leak,conflict"})
        examples, report = read_examples(str(place), config, quiet)
        config = config.replaced(chosen_settings(rows, examples.task, 384))
        job = make_job(make_tokens(config, examples, report, quiet), quiet)
        evaluator, logits = Evaluator(job), {}

        def evaluate(state: Any) -> Any:
            record = evaluator(state)
            logits[state.step] = evaluator.validation_logits(state.step)
            return record

        for _ in train(job.state, job.plan, job.feed, job.stepper, job.rate, evaluate):
            pass
        logits[AVERAGE] = evaluator.averaged(job.state)[1]
        labels = job.prepared.labels("validation")
        assert labels is not None
        return Curve(name, labels, logits)


def lottery(curve: Curve, drawn: Array) -> dict[str, int]:
    """What each rule ships when these rows of the pool are the validation rows."""
    from whet.engine.losses import Loss
    from whet.metrics.intervals import standard_error
    from whet.metrics.scores import score
    from whet.records import AVERAGED, Evaluation
    from whet.task import Task
    from whet.training.choice import Rule, best_of

    loss = Loss(Task("binary", ("0", "1")))

    def evaluation(step: int) -> Evaluation:
        logits, labels = curve.logits[step][drawn], curve.labels[drawn]
        return Evaluation(
            step=step,
            epoch=0,
            split=AVERAGED if step == AVERAGE else "validation",
            loss=loss.mean(logits, labels),
            metrics=score("binary", logits, labels),
            error=standard_error("binary", logits, labels, "accuracy"),
            rows=len(drawn),
        )

    steps = sorted(step for step in curve.logits if step != AVERAGE)
    seen, averaged = [evaluation(step) for step in steps], evaluation(AVERAGE)
    shipped = {"last step": steps[-1], "always the average": AVERAGE}
    for name, rule in (("highest", Rule("accuracy")), ("steady", Rule("accuracy", steady=True))):
        best = best_of(seen, rule)
        assert best is not None
        shipped[f"{name}, steps only"] = best.step
        shipped[name] = AVERAGE if rule.keeps_average(averaged, best) else best.step
    return shipped


def scores(curve: Curve, validation: int, seed: int) -> dict[str, tuple[float, float]]:
    """Mean accuracy and macro-F1 of what each rule ships, on the rows of the pool that it did not see."""
    from whet.metrics.scores import metric_named

    macro, rng = metric_named("macro_f1"), np.random.default_rng(seed)
    found: dict[str, list[tuple[float, float]]] = {}
    for _ in range(DRAWS):
        mixed = rng.permutation(len(curve.labels))
        rest = mixed[validation:]
        for rule, step in lottery(curve, mixed[:validation]).items():
            answers, labels = curve.logits[step][rest].argmax(axis=1), curve.labels[rest]
            found.setdefault(rule, []).append((float((answers == labels).mean()), float(macro(labels, answers))))
    return {rule: tuple(np.mean(values, axis=0)) for rule, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("glue", type=Path)
    parser.add_argument("--sets", nargs="+", default=["sst2", "mrpc", "cola", "rte"])
    parser.add_argument("--rows", type=int, nargs="+", default=[128])
    parser.add_argument("--validation", type=int, nargs="+", default=[13, 50, 200])
    parser.add_argument("--pool", type=int, default=800)
    parser.add_argument("--draws", type=int, default=1, help="trainings a set and number of rows")
    chosen = parser.parse_args()
    print("| rows | validation rows | set | rule | accuracy | macro-F1 |\n|---|---|---|---|---|---|")
    means: dict[tuple[int, int, str], list[tuple[float, float]]] = {}
    for rows in chosen.rows:
        for name in chosen.sets:
            for seed in range(chosen.draws):
                curve = train_curve(chosen.glue, name, rows, chosen.pool, seed)
                for validation in chosen.validation:
                    for rule, (accuracy, macro) in scores(curve, validation, seed).items():
                        means.setdefault((rows, validation, rule), []).append((accuracy, macro))
                        print(f"| {rows} | {validation} | {name} | {rule} | {accuracy:.4f} | {macro:.4f} |", flush=True)
    for (rows, validation, rule), values in sorted(means.items()):
        accuracy, macro = np.mean(values, axis=0)
        print(f"| {rows} | {validation} | mean | {rule} | {accuracy:.4f} | {macro:.4f} |")


if __name__ == "__main__":
    main()
