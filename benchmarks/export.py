"""Runs exported to ONNX, in float32 and with 8-bit weights: size, what the proof finds, and time beside whet.

    python benchmarks/export.py runs/reviews-001 runs/pairs-001

Every validation row of a run goes through whet and through both exports, by turns, on this CPU in float32: all of them
at once, and one by one. The table and `benchmarks/results/export.json` have the medians of the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from results import write_results

from whet.inference.onnx import Proof, _predict_module, export_onnx
from whet.inference.predictor import Predictor
from whet.runs.folder import RunFolder
from whet.runs.report.mistakes import read_answers

ONE_BY_ONE = 200
Contender = tuple[Callable[[list[Any]], Any], Callable[[Any], Any]]
"""Logits of many rows, and the prediction of one."""


def rows_of(run: str, model: Predictor) -> list[Any]:
    answers = read_answers(RunFolder.open(run), "validation", model.task.kind, model.task.labels)
    if answers is None:
        raise SystemExit(f"{run} has no labelled validation rows.")
    return answers.texts if answers.pairs is None else list(zip(answers.texts, answers.pairs, strict=True))


def whet_contender(model: Predictor) -> Contender:
    def many(rows: list[Any]) -> Any:
        if model.pairs:
            return model.logits([row[0] for row in rows], [row[1] for row in rows])
        return model.logits(rows)

    return many, model.predict


def exported_contender(folder: Path) -> Contender:
    model = _predict_module(folder).Model(folder)
    return model.outputs, lambda row: model.predict([row])[0]


def measure(run: str, rounds: int) -> list[dict[str, Any]]:
    model = Predictor(run, device="cpu", precision="float32")
    rows = rows_of(run, model)
    with tempfile.TemporaryDirectory() as place:
        proofs: dict[str, Proof | None] = {"whet": None}
        contenders = {"whet": whet_contender(model)}
        sizes = {"whet": sum(file.stat().st_size for file in (Path(run) / "model").glob("*.safetensors"))}
        for name in ("float32", "int8"):
            folder = Path(place) / name
            proofs[name] = export_onnx(run, folder, int8=name == "int8", accept=True)
            contenders[name] = exported_contender(folder)
            sizes[name] = sum(file.stat().st_size for file in folder.glob("model.onnx*"))
        rates, waits = by_turns(contenders, rows, rounds)
    return [
        {
            "run": Path(run).name,
            "kind": name,
            "megabytes": round(sizes[name] / 1e6, 1),
            "rows": len(rows),
            "rows_per_second": [round(rate, 1) for rate in rates[name]],
            "milliseconds_one_row": [round(wait, 3) for wait in waits[name]],
            "proof": None if (proof := proofs[name]) is None else {**asdict(proof), "worse": proof.worse},
        }
        for name in contenders
    ]


def by_turns(
    contenders: dict[str, Contender], rows: list[Any], rounds: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Rows per second of all rows at once, and the median milliseconds of one row, for each round but the first."""
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    waits: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds + 1):
        for name, (many, one) in contenders.items():
            began = time.perf_counter()
            many(rows)
            rate = len(rows) / (time.perf_counter() - began)
            wait = statistics.median(milliseconds(one, row) for row in rows[:ONE_BY_ONE])
            if turn:  # the first warms up
                rates[name].append(rate)
                waits[name].append(wait)
    return rates, waits


def milliseconds(call: Callable[[Any], Any], row: Any) -> float:
    began = time.perf_counter()
    call(row)
    return 1000 * (time.perf_counter() - began)


def markdown(found: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| run | | MB | largest difference | labels changed | score, difference | p | rows per second | one row |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for each in found:
        proof, said = each["proof"], " | | |"
        if proof is not None:
            test = proof["test"]
            interval = f"{test['difference']:+.4f} ({test['low']:+.4f} to {test['high']:+.4f})"
            said = f"{proof['largest_difference']:.1e} | {proof['changed_labels']} of {proof['rows']} | "
            said += f"{test['metric']} {test['b']:.4f}, {interval} | {test['p_value']:.2g}"
        rate, wait = statistics.median(each["rows_per_second"]), statistics.median(each["milliseconds_one_row"])
        name = each["run"]
        lines.append(f"| {name} | {each['kind']} | {each['megabytes']} | {said} | {rate:.0f} | {wait:.2f} ms |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    found = [each for run in options.runs for each in measure(run, options.rounds)]
    print("\n".join(markdown(found)))
    packages = ("torch", "transformers", "onnx", "onnxruntime", "onnxscript", "tokenizers")
    print(write_results("export", packages, rounds=options.rounds, exports=found))


if __name__ == "__main__":
    main()
