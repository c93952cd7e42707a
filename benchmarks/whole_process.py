"""From the start of a process to a saved model: the course's script with the stock Trainer, and `whet train` twice.

python benchmarks/whole_process.py glue/mrpc --model FOLDER --turns 3

Three epochs in batches of 8 with three evaluations. whet's first use begins with empty caches (tokens, compiled
kernels); its second use finds them. All find their libraries read before and compiled to bytecode, as they are on every
machine that has imported them once. With several turns, all three run in each. Memory is the most that the process had
on the host. The folder holds train, validation and test as parquet with sentence1, sentence2.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

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

LIBRARIES = """
import datasets, sklearn.metrics, torch, whet.training.run
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding
from transformers import BertForSequenceClassification, Trainer, TrainingArguments
if torch.cuda.is_available():
    import whet.engine.fused.cuda.graph_stepper
"""


def measured(command: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Seconds from start to end, and the most memory in MB."""
    os.sync()  # what the one before has left to be written is not this one's to wait for
    with tempfile.TemporaryFile() as said:
        started = time.perf_counter()
        process = subprocess.Popen(command, env=environment, stdout=said, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            sys.exit(said.read()[-2000:].decode(errors="replace"))
    return seconds, usage.ru_maxrss / 1024


def turn(source: str, model: str) -> dict[str, tuple[float, float]]:
    with tempfile.TemporaryDirectory() as scratch:
        caches = {name: f"{scratch}/{name}" for name in ("WHET_CACHE", "TRITON_CACHE_DIR", "HF_DATASETS_CACHE")}
        environment = {**os.environ, **caches}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        subprocess.run([sys.executable, "-c", LIBRARIES], env=environment, check=True)
        script = Path(scratch) / "stock.py"
        script.write_text(STOCK)
        settings = ["--batch-size", "8", "--epochs", "3", "--evaluations", "3"]
        whet = [sys.executable, "-m", "whet", "train", source, "--model", model, *settings, "--run"]
        return {
            "stock": measured([sys.executable, str(script), source, model, scratch + "/out"], environment),
            "whet, first use": measured([*whet, scratch + "/first"], environment),
            "whet, second use": measured([*whet, scratch + "/second"], environment),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("--model", required=True)
    parser.add_argument("--turns", type=int, default=1)
    chosen = parser.parse_args()
    turns = []
    for _ in range(chosen.turns):
        turns.append(turn(chosen.source, chosen.model))
        for name, (seconds, memory) in turns[-1].items():
            print(f"{name:<18}{seconds:7.1f} s   1/{turns[-1]['stock'][0] / seconds:.2f}   {memory:,.0f} MB")
    if chosen.turns > 1:
        medians = {name: median(each[name][0] for each in turns) for name in turns[0]}
        print("medians:", ", ".join(f"{name} {value:.1f} s" for name, value in medians.items()))


if __name__ == "__main__":
    main()
