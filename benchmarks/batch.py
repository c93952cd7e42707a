"""`whet predict BIG.parquet -o OUT/`: rows per second, memory and disk, and the same after a kill.

    python benchmarks/batch.py runs/reviews-001 --rows 1000000 --device cpu

Writes a Parquet file of so many short texts (or texts drawn from --texts FILE, one a line), labels it in a process of
its own, and looks at that process every second. It is killed once a third of the parts is there and started again; the
parts at the end are compared with those of an undisturbed command on the first tenth. Then the plan for --plan rows,
from these figures alone: how far the plan for all rows, made from the first tenth, was off, stands beside it.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from results import write_results
from serve import WORDS

CHUNK = 65_536


@dataclass
class Labelled:
    """One command that was left to end, or that was killed."""

    rows: int
    """Rows in parts when it ended."""
    seconds: float
    first_part_seconds: float
    """From the start until the first part was there: Python, the model and the source's first look are in it."""
    peak_mb: float
    peak_mb_first_half: float
    killed: bool


def write_source(path: Path, rows: int, texts: list[str], pairs: bool) -> None:
    chosen = random.Random(0)

    def text() -> str:
        return chosen.choice(texts) if texts else " ".join(chosen.choices(WORDS, k=chosen.randint(5, 15)))

    names = ["text", "pair"] if pairs else ["text"]
    schema = pa.schema([("id", pa.int64()), *((name, pa.string()) for name in names)])
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, rows, CHUNK):
            count = min(CHUNK, rows - start)
            drawn = [{"id": start + index, **{name: text() for name in names}} for index in range(count)]
            writer.write_table(pa.Table.from_pylist(drawn, schema=schema))


def label(run: str, source: Path, output: Path, options: argparse.Namespace, *, kill_at: int | None = None) -> Labelled:
    """Run the command, and look at it every second."""
    command = [sys.executable, "-m", "whet", "predict", run, str(source), "-o", f"{output}/"]
    command += ["--device", options.device, "--part-rows", str(options.part_rows), "--text-column", "text"]
    if "pair" in pq.read_schema(source).names:
        command += ["--pair-column", "pair"]
    parts, memory, first = [], [], 0.0
    before = len(list(output.glob("part-*.parquet")))
    began = time.perf_counter()
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while process.poll() is None:
        time.sleep(min(1.0, options.look))
        parts = list(output.glob("part-*.parquet"))
        memory.append((len(parts), resident_mb(process.pid)))
        first = first or (time.perf_counter() - began if len(parts) > before else 0.0)
        if kill_at is not None and len(parts) >= kill_at:
            process.send_signal(signal.SIGKILL)
            process.wait()
    seconds = time.perf_counter() - began
    killed = process.returncode == -signal.SIGKILL
    if process.returncode and not killed:
        raise SystemExit(f"The command ended with {process.returncode}: {' '.join(command)}")
    parts = list(output.glob("part-*.parquet"))
    half = [use for done, use in memory if done <= (before + len(parts)) / 2]
    rows = sum(pq.read_metadata(part).num_rows for part in parts)
    peaks = max(use for _, use in memory), max(half, default=0.0)
    return Labelled(rows, round(seconds, 1), round(first, 1), round(peaks[0]), round(peaks[1]), killed)


def resident_mb(process: int) -> float:
    try:
        found = re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{process}/status").read_text())
    except OSError:
        return 0.0
    return int(found[1]) / 1024 if found else 0.0


def same_answers(one: Path, other: Path) -> bool:
    """Whether the whole parts of the smaller folder say what the larger one's say."""
    for part in sorted(one.glob("part-*.parquet"))[:-1]:
        a, b = (pq.read_table(folder / part.name, columns=["id", "label"]) for folder in (one, other))
        if not a.equals(b):
            return False
    return True


def plan(rows: int, found: Labelled, source_bytes: float, output_bytes: float, part_rows: int) -> dict[str, Any]:
    """What so many rows would take, by the figures of fewer: start once, then rows per second."""
    start, rate = start_and_rate(found, part_rows)
    return {
        "rows": rows,
        "hours": round((start + rows / rate) / 3600, 2),
        "peak_mb": found.peak_mb,
        "source_gb": round(rows * source_bytes / found.rows / 1e9, 2),
        "output_gb": round(rows * output_bytes / found.rows / 1e9, 2),
        "parts": -(-rows // part_rows),
        "lost_by_a_kill_seconds": round(start + part_rows / rate, 1),
    }


def start_and_rate(found: Labelled, part_rows: int) -> tuple[float, float]:
    """Seconds before the first row, and rows per second from the first part on."""
    later = found.rows - part_rows
    rate = later / (found.seconds - found.first_part_seconds) if later > 0 else found.rows / found.seconds
    return max(0.0, found.first_part_seconds - part_rows / rate), rate


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("part-*.parquet"))


def measure(options: argparse.Namespace, place: Path) -> dict[str, Any]:
    pairs = bool(json.loads((Path(options.run) / "data.json").read_text())["columns"].get("pair"))
    texts = options.texts.read_text(encoding="utf-8").splitlines() if options.texts else []
    tenth, whole = place / "tenth.parquet", place / "whole.parquet"
    write_source(tenth, options.rows // 10, texts, pairs)
    write_source(whole, options.rows, texts, pairs)
    small = label(options.run, tenth, place / "small", options)
    expected = plan(options.rows, small, tenth.stat().st_size, size_of(place / "small"), options.part_rows)
    parts = -(-options.rows // options.part_rows)
    killed = label(options.run, whole, place / "killed", options, kill_at=max(1, parts // 3))
    resumed = label(options.run, whole, place / "killed", options)
    undisturbed = label(options.run, whole, place / "large", options)
    rate = start_and_rate(undisturbed, options.part_rows)[1]
    return {
        "run": Path(options.run).name,
        "device": options.device,
        "part_rows": options.part_rows,
        "tenth": asdict(small),
        "whole": asdict(undisturbed),
        "killed": asdict(killed),
        "resumed": asdict(resumed),
        "same_answers": same_answers(place / "large", place / "killed")
        and same_answers(place / "small", place / "large"),
        "rows_per_second": round(rate, 1),
        "planned_from_the_tenth": expected,
        "plan": plan(options.plan, undisturbed, whole.stat().st_size, size_of(place / "large"), options.part_rows),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--plan", type=int, default=10_000_000)
    parser.add_argument("--part-rows", type=int, default=CHUNK)
    parser.add_argument("--texts", type=Path, help="draw texts from this file, one a line")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--look", type=float, default=1.0, help="seconds between two looks at memory and parts")
    parser.add_argument("--name", default="batch", help="of the file in benchmarks/results")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        found = measure(options, Path(place))
    print("| rows | seconds | until the first part | memory, first half | memory, all | |")
    print("|---|---|---|---|---|---|")
    for name in ("tenth", "whole", "killed", "resumed"):
        each = found[name]
        memory = f"{each['peak_mb_first_half']:.0f} MB | {each['peak_mb']:.0f} MB"
        print(f"| {each['rows']:,} | {each['seconds']} | {each['first_part_seconds']} s | {memory} | {name} |")
    print(f"rows per second: {found['rows_per_second']}; the same answers after the kill: {found['same_answers']}")
    print(f"planned from the tenth: {found['planned_from_the_tenth']}")
    print(f"plan: {found['plan']}")
    print(write_results(options.name, ("torch", "transformers", "pyarrow", "tokenizers"), **found))


if __name__ == "__main__":
    main()
