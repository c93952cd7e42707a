"""Tokens a second of 1 and 2 processes, and the share of a step that goes into summing gradients.

    python benchmarks/processes.py [--model minilm] [--source sample/pairs] [--steps 40] [--processes 1 2]

Each measurement is a fresh start through torchrun. The work is the same for any number of processes: the same global
batches. Where the processes share the cores of one machine, each gets its part of them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from typing import Any

WARMUP = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--source", default="sample/pairs")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    chosen = parser.parse_args()
    if "LOCAL_RANK" in os.environ:
        measure(chosen)
        return
    print("| processes | tokens/s each | tokens/s together | ms per step | of that summing gradients | gradients, MB |")
    print("|---|---|---|---|---|---|")
    for count in chosen.processes:
        found = started(count)
        together = found["tokens"] / found["seconds"]
        rank_slice = 100 * found["summing"] / found["seconds"]
        print(
            f"| {count} | {together / count:.0f} | {together:.0f} | {1000 * found['seconds'] / found['steps']:.1f} "
            f"| {rank_slice:.1f} % | {found['megabytes']:.1f} |",
            flush=True,
        )


def started(count: int) -> dict[str, Any]:
    """This script again in so many processes; what the main one measured."""
    threads = str(max(1, (os.cpu_count() or 1) // count))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(count), *sys.argv]
    environment = {**os.environ, "OMP_NUM_THREADS": threads}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def measure(chosen: argparse.Namespace) -> None:
    from whet.config import make_config
    from whet.data.tokens.batches import rank_slice
    from whet.distributed.rendezvous import join_processes
    from whet.training.setup import make_job, make_tokens, read_examples
    from whet.utils.device import synchronize

    config = make_config(
        {"source": chosen.source, "model": chosen.model, "batch_size": chosen.batch_size, "recipe": "course"}
    )
    ranks = join_processes()
    examples, report = read_examples(chosen.source, config, lambda line: None)
    job = make_job(make_tokens(config, examples, report, lambda line: None), lambda line: None, ranks)
    spent, moved = [0.0], [0]

    def summed(tensors: Any) -> None:
        synchronize(job.hardware.device)
        before = time.perf_counter()
        ranks.sum_in_place(tensors)
        synchronize(job.hardware.device)
        spent[0] += time.perf_counter() - before
        moved[0] += sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    if ranks.world > 1:
        job.stepper.synchronized = summed
    tokens, begun = 0, 0.0
    for step in range(WARMUP + chosen.steps):
        if step == WARMUP:
            synchronize(job.hardware.device)
            ranks.monitored_barrier()
            spent[0], moved[0], tokens, begun = 0.0, 0, 0, time.perf_counter()
        rows = job.feed.order.at(step)
        job.stepper(step, job.feed, rows, rank_slice(rows, ranks.rank, ranks.world), 1e-5)
        tokens += int(job.feed.tokens.lengths[rows].sum())
    synchronize(job.hardware.device)
    if ranks.is_main:
        seconds = time.perf_counter() - begun
        megabytes = moved[0] / chosen.steps / 1e6
        found = {"tokens": tokens, "seconds": seconds, "summing": spent[0], "megabytes": megabytes}
        print(json.dumps({**found, "steps": chosen.steps}))


if __name__ == "__main__":
    main()
