"""`model.predict("…")` in a loop beside its forward pass alone, a plain forward pass of transformers, and its pipeline.

    python benchmarks/one_text.py runs/reviews-001

By turns on this CPU in float32, so many texts a turn, one at a time. The forward passes get rows that are tokenized
already. The figures are kept in `benchmarks/results/one-text.json`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from results import write_results
from serve import TEXTS
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

from whet.data.tokens.table import TextTokenizer
from whet.inference.predictor import Predictor
from whet.utils.device import precision


def contenders(run: str, texts: list[str]) -> dict[str, Callable[[int], Any]]:
    """What each computes of the text of this number."""
    model = Predictor(run, device="cpu", precision="float32")
    folder = Path(run) / "model"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    plain = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    given = [(text, text) if model.pairs else (text,) for text in texts]
    tokenize = TextTokenizer(model.tokenizer, model.max_length)
    rows = [tokenize([row[0]], [row[1]] if model.pairs else None) for row in given]
    collated = [model.network.collate(row, np.zeros(1, np.int64)) for row in rows]
    batches = [tokenizer(*row, return_tensors="pt", truncation=True) for row in given]
    asked = pipeline("text-classification", model=str(folder), device="cpu", top_k=None, truncation=True)

    def forward(number: int) -> Any:
        with torch.no_grad(), precision(model.hardware):
            return model.network.logits(collated[number])

    def plain_forward(number: int) -> Any:
        with torch.inference_mode():
            return plain(**batches[number]).logits

    def ask_pipeline(number: int) -> Any:
        row = given[number]
        return asked({"text": row[0], "text_pair": row[1]} if model.pairs else row[0])

    return {
        "whet predict": lambda number: model.predict(*given[number]),
        "whet forward pass": forward,
        "transformers forward pass": plain_forward,
        "transformers pipeline": ask_pipeline,
    }


def turn(compute: Callable[[int], Any], texts: int) -> float:
    """Milliseconds per text."""
    began = time.perf_counter()
    for number in range(texts):
        compute(number)
    return 1000 * (time.perf_counter() - began) / texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--texts", type=int, default=200)
    parser.add_argument("--turns", type=int, default=7)
    options = parser.parse_args()
    texts = TEXTS[: options.texts]
    ways = contenders(options.run, texts)
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(options.turns + 1):
        for name, compute in ways.items():
            milliseconds = turn(compute, len(texts))
            if number:  # the first warms up
                found[name].append(round(milliseconds, 3))
    medians = {name: statistics.median(times) for name, times in found.items()}
    ratio = medians["whet predict"] / medians["whet forward pass"]
    print("| | ms per text, median of the turns | fastest to slowest turn |")
    print("|---|---|---|")
    for name, times in found.items():
        print(f"| {name} | {medians[name]:.2f} | {min(times):.2f} to {max(times):.2f} |")
    print(f"predict takes {ratio:.2f} times its forward pass")
    packages = ("torch", "transformers", "tokenizers")
    about = {"run": Path(options.run).name, "texts": len(texts), "ratio": round(ratio, 3)}
    print(write_results("one-text", packages, **about, milliseconds_per_text=found))


if __name__ == "__main__":
    main()
