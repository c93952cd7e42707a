"""A step of training, of a loop of one's own, and prediction: the stock library and whet in turns on this machine.

python benchmarks/speed.py glue/mrpc --kind cpu-avx512 --steps 20 --turns 15
python benchmarks/speed.py mrpc --kind h200 --model BERT_BASE_FOLDER --steps 150 --turns 3

Writes benchmarks/results/speed-KIND.json, from which `make figures` makes tables and charts. KIND names the kind of
machine. It is what `whet bench`, `whet bench loop` and `whet bench predict` measure.
"""

from __future__ import annotations

import argparse
import sys

from results import write_results

from whet.config import make_config
from whet.tools.bench.benchmark import bench_loop, bench_prediction, bench_training

KINDS = {"h200": "H200", "cpu-avx512": "two cores with AVX-512", "cpu-avx2": "two cores with AVX2 only"}
PACKAGES = ("torch", "transformers", "accelerate", "tokenizers", "whet")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("--kind", required=True, choices=list(KINDS))
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--name", default="MiniLM", help="what tables call the model")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--only", nargs="+", default=["train", "loop", "predict"])
    given = parser.parse_args()
    config = make_config(
        {"source": given.source, "model": given.model, "batch_size": given.batch_size, "recipe": "course"}
    )

    def echo(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    found = {}
    if "train" in given.only:
        found["train"] = bench_training(config, steps=given.steps, turns=given.turns, echo=echo)
    if "loop" in given.only:
        found["loop"] = bench_loop(config, steps=given.steps, turns=max(1, given.turns // 2), echo=echo)
    if "predict" in given.only:
        found["predict"] = bench_prediction(config, rows=given.rows, turns=3, echo=echo)
    about = {"kind": KINDS[given.kind], "model": given.name, "batch_size": given.batch_size}
    print(write_results(f"speed-{given.kind}", PACKAGES, **about, **found))


if __name__ == "__main__":
    main()
