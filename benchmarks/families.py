"""Training and predicting with many families of models: the stock library and whet in turns on this machine.

python benchmarks/families.py                               # a GPU: the published shapes, within --minutes
python benchmarks/families.py --steps 5 --minutes 20        # a CPU: 6 layers of width 384
python benchmarks/families.py --families ModernBERT-base MPNet-base --float32

The weights are random, the rows as long as those of MRPC (family_models.py). Training is what `whet bench` measures,
predicting what `whet bench predict` measures. Writes benchmarks/results/families-KIND.json after each family, from
which `make figures` makes the tables. A family that fails or does not fit into the time is in it with the reason.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from family_models import FAMILIES
from family_study import no_echo, parser_of, study, with_reason, wrapped

from whet.config import Config
from whet.tools.bench.benchmark import TRAINERS, WHET_FLOAT32, Worker, bench_prediction, bench_training

PREDICTORS = 2
HEAD = (
    f"{'':<17}{'ms a step':^24}{'':>7}{'rows per second':^18}{'':>7}{'MB':>7}\n"
    f"{'family':<17}{'fp32':>8}{'bf16':>8}{'whet':>8}{'x':>7}{'stock':>9}{'whet':>9}{'x':>7}{'whet':>7}"
)


def main() -> None:
    parser = parser_of(__doc__, list(FAMILIES), minutes=5.5)
    parser.add_argument("--rows", type=int, default=1000, help="rows to predict")
    parser.add_argument("--float32", action="store_true", help="also whet in float32")
    given = parser.parse_args()
    print(HEAD)
    study("families", given, len(TRAINERS) + PREDICTORS + given.float32, measure, lines_of)


def measure(config: Config, given: argparse.Namespace, own: Sequence[Worker]) -> dict[str, Any]:
    """Return what `whet bench` and `whet bench predict` do, with processes that are started already."""
    more = (WHET_FLOAT32,) if given.float32 else ()
    steps, turns = given.steps, given.turns
    train = bench_training(config, steps=steps, turns=turns, echo=no_echo, more=more, idle=own[PREDICTORS:])
    predict = bench_prediction(config, rows=given.rows, turns=turns, echo=no_echo, idle=own[:PREDICTORS])
    return {"train": train, "predict": predict}


def lines_of(found: dict[str, Any]) -> list[str]:
    """Return the lines of the printed table for one family: figures, then path, reason and losses.

    The ratio of training is to the faster one of the stock contenders.
    """
    train, predict = found["train"], found["predict"]
    step = {name: row["ms_a_step"] for name, row in train["contenders"].items()}
    rate = {name: row["rows_a_second"] for name, row in predict["contenders"].items()}
    memory = {name: row["peak_mb"] for name, row in train["contenders"].items()}
    stock = min(step["stock float32"], step["stock bf16"])
    line = (
        f"{found['family']:<17}{step['stock float32']:>8.2f}{step['stock bf16']:>8.2f}{step['whet']:>8.2f}"
        f"{stock / step['whet']:>7.2f}{rate['stock pipeline']:>9.0f}{rate['whet']:>9.0f}"
        f"{rate['whet'] / rate['stock pipeline']:>7.2f}{memory['whet']:>7.0f}"
    )
    facts = [
        with_reason(train["job"]),
        f"predicting {with_reason(predict['job'])}",
        f"losses {100 * train['losses']['whet']['largest_difference']:.2f}% apart",
        f"prepared in {train['preparing_seconds']:.1f} s",
        f"stock {memory['stock float32']:.0f} and {memory['stock bf16']:.0f} MB",
    ]
    if "whet float32" in step:
        facts.append(f"whet in float32 {step['whet float32']:.2f} ms, {memory['whet float32']:.0f} MB")
    return [line, *wrapped("; ".join(facts))]


if __name__ == "__main__":
    main()
