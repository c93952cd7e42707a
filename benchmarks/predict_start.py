"""One `whet predict --text`, from start to exit: an older revision and this one by turns, on this machine.

    python benchmarks/predict_start.py RUN --old REVISION [--turns 10]

RUN is a finished run or a model folder. The older revision is checked out beside this one with `git worktree`. The
figures are kept in `benchmarks/results/predict-start.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from results import write_results

ROOT = Path(__file__).resolve().parent.parent
COMMAND = "from whet.cli import entry; entry()"


def texts_of(run: str, text: str) -> list[str]:
    """The flags that give the text, and beside it the same one to a model of pairs."""
    about = Path(run) / "data.json"
    pairs = about.is_file() and json.loads(about.read_text(encoding="utf-8")).get("columns", {}).get("pair")
    return ["--text", text, *(["--pair", text] if pairs else [])]


def seconds(source: Path, run: str, text: str) -> tuple[float, str]:
    """The time of one command with the package of this folder, and what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(source / "src")}
    command = [sys.executable, "-c", COMMAND, "predict", run, *texts_of(run, text)]
    started = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return time.perf_counter() - started, done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--old", required=True, help="revision to compare with")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--text", default="A text to label.")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        old = Path(scratch) / "old"
        subprocess.run(["git", "-C", ROOT, "worktree", "add", "--detach", old, chosen.old], check=True)
        try:
            compare({"old": old, "new": ROOT}, str(Path(chosen.run).resolve()), chosen.text, chosen.turns)
        finally:
            subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", old], check=True)


def compare(places: dict[str, Path], run: str, text: str, turns: int) -> None:
    taken: dict[str, list[float]] = {name: [] for name in places}
    said = {name: seconds(place, run, text)[1] for name, place in places.items()}  # fills the disk's cache
    print("same answer" if len(set(said.values())) == 1 else f"other answers: {said}")
    for turn in range(turns):
        for name in sorted(places, reverse=bool(turn % 2)):
            taken[name].append(seconds(places[name], run, text)[0])
    middle = {name: statistics.median(times) for name, times in taken.items()}
    for name, times in taken.items():
        print(f"{name}: median {middle[name]:.2f} s, {min(times):.2f} to {max(times):.2f} over {turns} turns")
    print(f"new / old: {middle['new'] / middle['old']:.2f}")
    revisions = {name: revision(place) for name, place in places.items()}
    about = {"run": Path(run).name, "revisions": revisions, "same_answer": len(set(said.values())) == 1}
    print(write_results("predict-start", ("torch", "transformers"), **about, seconds=taken))


def revision(place: Path) -> str:
    command = ["git", "-C", str(place), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
