"""From the start of a process to a saved model: the course's script with the stock Trainer, and `whet train` twice.

python benchmarks/whole_process.py glue/mrpc --model FOLDER

Three epochs in batches of 8 with three evaluations. whet's first use begins with empty caches (tokens, compiled
kernels); its second use finds them. The folder holds train, validation and test as parquet with sentence1, sentence2.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STOCK = """
import sys
import numpy as np
from datasets import load_dataset
from sklearn.metrics import accuracy_score, f1_score
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding
from transformers import Trainer, TrainingArguments

source, model, folder = sys.argv[1:]
files = {split: f"{source}/{split}.parquet" for split in ("train", "validation", "test")}
raw = load_dataset("parquet", data_files=files)
tokenizer = AutoTokenizer.from_pretrained(model)


def tokenize(example):
    return tokenizer(example["sentence1"], example["sentence2"], truncation=True)


def compute_metrics(given):
    answers = np.argmax(given[0], axis=-1)
    return {"accuracy": accuracy_score(given[1], answers), "f1": f1_score(given[1], answers)}


tokenized = raw.map(tokenize, batched=True)
trainer = Trainer(
    AutoModelForSequenceClassification.from_pretrained(model, num_labels=2),
    TrainingArguments(folder, eval_strategy="epoch", num_train_epochs=3, report_to=[], disable_tqdm=True),
    train_dataset=tokenized["train"],
    eval_dataset=tokenized["validation"],
    data_collator=DataCollatorWithPadding(tokenizer=tokenizer),
    processing_class=tokenizer,
    compute_metrics=compute_metrics,
)
trainer.train()
trainer.save_model(folder + "/model")
"""


def seconds(command: list[str], environment: dict[str, str]) -> float:
    started = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("--model", required=True)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        caches = {name: f"{scratch}/{name}" for name in ("WHET_CACHE", "TRITON_CACHE_DIR", "HF_DATASETS_CACHE")}
        environment = {**os.environ, **caches}
        script = Path(scratch) / "stock.py"
        script.write_text(STOCK)
        settings = ["--batch-size", "8", "--epochs", "3", "--evaluations", "3"]
        whet = [sys.executable, "-m", "whet", "train", chosen.source, "--model", chosen.model, *settings, "--run"]
        found = {
            "stock": seconds([sys.executable, str(script), chosen.source, chosen.model, scratch + "/out"], environment),
            "whet, first use": seconds([*whet, scratch + "/first"], environment),
            "whet, second use": seconds([*whet, scratch + "/second"], environment),
        }
    for name, value in found.items():
        print(f"{name:<18}{value:7.1f} s   1/{found['stock'] / value:.2f}")


if __name__ == "__main__":
    main()
