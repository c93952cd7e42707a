"""Time a token and peak memory of one epoch against the number of rows: both should stay where they are.

python benchmarks/growth.py glue/sst2/train.parquet --text sentence

Each share of the rows is trained on in a process of its own; reading and tokenizing are not in the time, but are in
the memory.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WARM_STEPS = 8


def one_epoch(source: str, text: str, model: str, batch: int) -> dict[str, float]:
    from whet.config import make_config
    from whet.training.setup import make_job, make_tokens, read_examples
    from whet.utils.device import synchronize
    from whet.utils.memory import peak_memory_mb

    config = make_config({"source": source, "text": text, "label": "label", "model": model, "batch_size": batch})
    examples, report = read_examples(source, config, lambda line: None)
    job = make_job(make_tokens(config, examples, report, lambda line: None), lambda line: None)
    order, lengths, device = job.feed.order, job.feed.tokens.lengths, job.hardware.device
    tokens, started = 0, 0.0
    for step in range(WARM_STEPS + order.steps_per_epoch):
        if step == WARM_STEPS:
            synchronize(device)
            started = time.perf_counter()
        rows = order.at(step)
        job.stepper(step, job.feed, rows, rows, 1e-5)
        tokens += int(lengths[rows].sum()) if step >= WARM_STEPS else 0
    synchronize(device)
    spent = time.perf_counter() - started
    return {"rows": order.rows, "tokens": tokens, "seconds": spent, "memory": peak_memory_mb(device)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("--text", default="text")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--share", type=float, help="only this one, in this process")
    chosen = parser.parse_args()
    if chosen.share is not None:
        print(json.dumps(one_epoch(chosen.source, chosen.text, chosen.model, chosen.batch_size)))
        return
    import pyarrow.parquet as pq

    table = pq.read_table(chosen.source)
    print("| share | rows | tokens | µs a token | peak MB |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for share in (0.01, 0.1, 1.0):
            part = Path(folder) / f"{share:g}.parquet"
            pq.write_table(table.slice(0, int(len(table) * share)), part)
            given = [str(part), "--text", chosen.text, "--model", chosen.model, "--batch-size", str(chosen.batch_size)]
            command = [sys.executable, __file__, *given, "--share", str(share)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found = json.loads(done.stdout.splitlines()[-1])
            each = 1e6 * found["seconds"] / found["tokens"]
            print(
                f"| {share:.0%} | {found['rows']} | {found['tokens']} | {each:.1f} | {found['memory']:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
