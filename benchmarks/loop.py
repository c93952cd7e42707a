"""A step of the course's own loop and of the same loop with `whet.TrainStep`, with many families, in turns.

python benchmarks/loop.py                               # a GPU: the published shapes, within --minutes
python benchmarks/loop.py --steps 5 --minutes 10        # a CPU: 6 layers of width 384

It is what `whet bench loop` measures: torch's AdamW, a linear schedule, and a loader that pads to the longest row of a
batch. The weights are random, the rows as long as those of MRPC (family_models.py). Writes
benchmarks/results/loop-KIND.json after each family, from which `make figures` makes the tables.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from family_study import no_echo, parser_of, study, with_reason, wrapped

from whet.config import Config
from whet.tools.bench.benchmark import LOOPS, Worker, bench_loop

CHOSEN = ("BERT-base", "RoBERTa-base", "ModernBERT-base", "DeBERTa-v3-base")
HEAD = (
    f"{'':<17}{'the loop, ms a step':^21}{'TrainStep':>11}{'x':>7}{'loop MB':>10}{'MB':>7}\n"
    f"{'family':<17}{'fp32':>10}{'bf16':>11}{'ms a step':>11}"
)


def main() -> None:
    given = parser_of(__doc__, CHOSEN, minutes=3.0).parse_args()
    print(HEAD)
    study("loop", given, len(LOOPS), measure, lines_of)


def measure(config: Config, given: argparse.Namespace, own: Sequence[Worker]) -> dict[str, Any]:
    """Return what `whet bench loop` does, with processes that are started already."""
    return {"loop": bench_loop(config, steps=given.steps, turns=given.turns, echo=no_echo, idle=own)}


def lines_of(found: dict[str, Any]) -> list[str]:
    """Return the lines of the printed table for one family; the ratio is to the faster one of the loops."""
    loop = found["loop"]
    step = {name: row["ms_a_step"] for name, row in loop["contenders"].items()}
    memory = {name: row["peak_mb"] for name, row in loop["contenders"].items()}
    plain = min(step["loop float32"], step["loop bf16"])
    line = (
        f"{found['family']:<17}{step['loop float32']:>10.2f}{step['loop bf16']:>11.2f}{step['whet']:>11.2f}"
        f"{plain / step['whet']:>7.2f}{memory['loop float32']:>10.0f}{memory['whet']:>7.0f}"
    )
    apart = f"losses {100 * loop['losses']['whet']['largest_difference']:.2f}% apart"
    return [line, *wrapped(f"{with_reason(loop['job'])}; {apart}")]


if __name__ == "__main__":
    main()
