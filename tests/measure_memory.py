"""How much memory it takes to read, audit and tokenize a CSV of any size.

    python tests/measure_memory.py --gigabytes 2
    python tests/measure_memory.py --gigabytes 2 --words 12      shorter rows, so more of them

Writes the file, works on it in a process of its own with a cache of its own, and prints one JSON object: rows,
seconds and the peak of the resident memory after each stage.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GB = 1_000_000_000
LINES_A_BLOCK = 20_000


def write_csv(path: Path, size: int, words: int) -> int:
    """Random sentences under three labels, no two alike; returns the number of rows."""
    rng = random.Random(1)
    letters = "abcdefghijklmnopqrstuvwxyz"
    vocabulary = ["".join(rng.choices(letters, k=rng.randint(2, 10))) for _ in range(20_000)]
    written = rows = 0
    with path.open("w", encoding="utf-8") as file:
        file.write("text,label\n")
        while written < size:
            block = [
                f'"{" ".join(rng.choices(vocabulary, k=words))}, {rows + n}",{n % 3}\n' for n in range(LINES_A_BLOCK)
            ]
            written += file.write("".join(block))
            rows += LINES_A_BLOCK
    return rows


def work(path: str) -> None:
    """All stages in this process; one line of JSON on standard output."""
    from whet.config import ModelConfig
    from whet.data.audit.audit import audit
    from whet.data.cache import cache_root
    from whet.data.examples import load_examples

    report: dict[str, dict[str, float]] = {}

    def stage(name: str, started: float) -> None:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
        report[name] = {"seconds": round(time.monotonic() - started, 1), "peak_rss_mb": round(peak)}

    started = time.monotonic()
    examples = load_examples(path)
    stage("read", started)
    started = time.monotonic()
    audit(examples)
    stage("audit", started)
    from whet.data.tokens.table import tokenize
    from whet.models.pretrained import load_tokenizer

    tokenizer = load_tokenizer("minilm", ModelConfig())
    started = time.monotonic()
    for split in examples.rows.values():
        tokenize(split, tokenizer, max_length=512, task=examples.task, cache=cache_root())
    stage("tokenize", started)
    print(json.dumps(report))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--words", type=int, default=25, help="words a row")
    parser.add_argument("--work", metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work)
        return 0
    with tempfile.TemporaryDirectory(prefix="whet-memory-") as folder:
        path = Path(folder) / "large.csv"
        rows = write_csv(path, int(options.gigabytes * GB), options.words)
        environment = os.environ | {"WHET_CACHE": str(Path(folder) / "cache")}
        command = [sys.executable, __file__, "--work", str(path)]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            return done.returncode
        facts = {"bytes": path.stat().st_size, "rows": rows, **json.loads(done.stdout.splitlines()[-1])}
        print(json.dumps(facts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
