"""Scores of the stock Trainer in float32 and of whet's fast path, several seeds each, with the same settings.

python benchmarks/quality_seeds.py glue/mrpc --model minilm --seeds 5

Both train three epochs at 5e-5 with batches of 16 and are measured once, at the end, on the validation rows.
"""

from __future__ import annotations

import argparse
import tempfile
from math import hypot, nan
from pathlib import Path
from statistics import mean, stdev
from typing import Any

BATCH, EPOCHS, RATE = 16, 3, 5e-5


def trained_by_whet(source: str, model: str, seed: int, folder: Path) -> dict[str, float]:
    import whet

    run = whet.fit(
        source, model=model, seed=seed, batch_size=BATCH, epochs=EPOCHS, learning_rate=RATE, evaluations=1,
        run=str(folder / f"whet-{seed}"),
    )  # fmt: skip
    return {name: run.metrics[name] for name in ("accuracy", "f1")}


def trained_by_stock(job: Any, seed: int, folder: Path) -> dict[str, float]:
    import numpy as np
    from sklearn.metrics import accuracy_score, f1_score
    from transformers import DataCollatorWithPadding, Trainer, TrainingArguments, set_seed

    set_seed(seed)
    arguments = TrainingArguments(
        str(folder / f"stock-{seed}"), num_train_epochs=EPOCHS, per_device_train_batch_size=BATCH, learning_rate=RATE,
        seed=seed, save_strategy="no", report_to=[], disable_tqdm=True, logging_steps=10**6,
    )  # fmt: skip
    trainer = Trainer(
        job["model"](), arguments, train_dataset=job["train"], data_collator=DataCollatorWithPadding(job["tokenizer"])
    )
    trainer.train()
    found = trainer.predict(job["validation"])
    answers = np.argmax(found.predictions, axis=1)
    return {"accuracy": accuracy_score(found.label_ids, answers), "f1": f1_score(found.label_ids, answers)}


def stock_job(source: str, model: str) -> dict[str, Any]:
    """The rows as the course tokenizes them, and the model in float32 with a new head each time."""
    import torch
    from transformers import AutoModelForSequenceClassification

    from whet.config import make_config
    from whet.models.pretrained import find_model, load_tokenizer
    from whet.training.setup import read_examples

    config = make_config({"source": source, "model": model, "recipe": "course"})
    examples, _ = read_examples(source, config, lambda line: None)
    tokenizer = load_tokenizer(model, config.model)

    def tokenized(split: str) -> Any:
        def encode(batch: Any) -> Any:
            return {**tokenizer(batch["text"], batch.get("pair"), truncation=True), "labels": batch["label"]}

        rows = examples.splits[split]
        return rows.map(lambda batch: encode(dict(batch)), batched=True, remove_columns=rows.column_names)

    def fresh() -> Any:
        return AutoModelForSequenceClassification.from_pretrained(
            find_model(model), num_labels=examples.task.outputs, dtype=torch.float32
        )

    return {
        "train": tokenized("train"), "validation": tokenized("validation"), "tokenizer": tokenizer, "model": fresh
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=42)
    parser.add_argument("--only", choices=("stock", "whet"), help="if the other has been measured before")
    chosen = parser.parse_args()
    names = [name for name in ("stock", "whet") if chosen.only in (name, None)]
    job = stock_job(chosen.source, chosen.model) if "stock" in names else {}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    print("| seed |" + "".join(f" {name} accuracy | {name} F1 |" for name in names), flush=True)
    print("|---|" + "---|---|" * len(names), flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        for seed in range(chosen.first_seed, chosen.first_seed + chosen.seeds):
            if "stock" in names:
                found["stock"].append(trained_by_stock(job, seed, Path(scratch)))
            if "whet" in names:
                found["whet"].append(trained_by_whet(chosen.source, chosen.model, seed, Path(scratch)))
            row = [value for name in names for value in found[name][-1].values()]
            print(f"| {seed} | " + " | ".join(f"{value:.4f}" for value in row) + " |", flush=True)
    for metric in ("accuracy", "f1"):
        print(metric + ": " + in_words({name: [each[metric] for each in found[name]] for name in names}))


def in_words(values: dict[str, list[float]]) -> str:
    """Means and their standard errors, and how far they are apart where there are two."""
    means = {name: mean(each) for name, each in values.items()}
    errors = {name: stdev(each) / len(each) ** 0.5 if len(each) > 1 else nan for name, each in values.items()}
    said = [f"{name} {means[name]:.4f} (standard error {errors[name]:.4f})" for name in values]
    if len(values) > 1:
        apart, error = means["whet"] - means["stock"], hypot(*errors.values())
        said.append(f"difference {apart:+.4f} (standard error {error:.4f})")
    return ", ".join(said)


if __name__ == "__main__":
    main()
