"""The whole bar: kills, signals and damages by the thousand, and docs/reliability.md with what was found.

    python tests/soak.py --kills 1000 --signals 200 --corruptions 10000

Random kills come on top of one kill at every file boundary of every path; leave those out with --no-boundaries.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from whet.playground import SAVE_EVERY
from whet.selftest import Laboratory, Outcome, Tally, warm_process

ROOT = Path(__file__).parent.parent
REPORT = ROOT / "docs" / "reliability.md"
SAY_EVERY_SECONDS = 30.0


def main() -> int:
    asked = arguments()
    started = time.monotonic()
    with TemporaryDirectory(prefix="whet-soak-") as folder, warm_process() as warm:
        laboratory = Laboratory(warm, Path(folder), asked.seed)
        tallies = [tally for tally in trials(laboratory, asked) if tally.trials]
        damages = laboratory.corruptions(asked.corruptions) if asked.corruptions else {}
        outcome = Outcome(tallies, damages, time.monotonic() - started, warm.forks)
        text = report(outcome, asked, laboratory)
    asked.out.write_text(text, encoding="utf-8")
    print(text)
    return 0 if outcome.passed else 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000, help="trials with kill -9 at random moments")
    parser.add_argument("--signals", type=int, default=200, help="trials with SIGTERM or SIGINT")
    parser.add_argument("--corruptions", type=int, default=10_000, help="damages to checkpoints")
    parser.add_argument("--damaged-runs", type=int, default=90, help="damages inside a run that then goes on")
    parser.add_argument("--boundaries", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=REPORT)
    return parser.parse_args()


def trials(laboratory: Laboratory, asked: argparse.Namespace) -> Iterator[Tally]:
    yield repeat(Tally("kill -9 at a random moment"), laboratory.kill_at_random_moment, asked.kills)
    if asked.boundaries:
        for subject in laboratory.subjects:
            tally = Tally(f"kill -9 at every file boundary, {subject.name} layers")
            places = iter(range(1, subject.boundaries + 1))
            yield repeat(
                tally,
                lambda tally, subject=subject, places=places: laboratory.kill_at_boundary(tally, next(places), subject),
                subject.boundaries,
            )
    yield repeat(Tally("SIGTERM or SIGINT at a random moment"), laboratory.interrupt, asked.signals)
    yield repeat(Tally("newest checkpoint damaged, run goes on"), laboratory.corrupt, asked.damaged_runs)


def repeat(tally: Tally, trial: Callable[[Any], None], count: int) -> Tally:
    said = time.monotonic()
    for done in range(1, count + 1):
        trial(tally)
        if time.monotonic() - said > SAY_EVERY_SECONDS or done == count:
            said = time.monotonic()
            print(f"{tally.name}: {done} of {count}, {tally.exact} bit-exact, {tally.stuck} stuck", file=sys.stderr)
    return tally


def report(outcome: Outcome, asked: argparse.Namespace, laboratory: Laboratory) -> str:
    boundaries = "" if asked.boundaries else " --no-boundaries"
    command = (
        f"python tests/soak.py --kills {asked.kills} --signals {asked.signals} --corruptions {asked.corruptions} "
        f"--damaged-runs {asked.damaged_runs} --seed {asked.seed}{boundaries}"
    )
    lines = [
        "# What interruptions and damaged files do to a run",
        "",
        f"Written by `{command}`; `make soak` runs the whole bar. "
        f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}, "
        f"torch {version('torch')}, transformers {version('transformers')}, one process, on the CPU; "
        f"{outcome.seconds / 60:.0f} minutes.",
        "",
        "A trial trains a tiny BERT (24 steps, dropout on, a checkpoint every "
        f"{SAVE_EVERY} steps and at each best evaluation, dropout and order of rows random), interrupts it, runs the same "
        "command again and compares the finished run with one that was left alone: `model/`, `predictions.parquet`, and "
        "every record without its timings. Trials alternate between the engine's general and its fused layers. A killed "
        "trial is killed one to three times, anywhere from reading the data to writing the model.",
        "",
        "| fault | trials | interruptions | stuck | bit-exact | different | wrong exit | most steps repeated |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {tally.name} | {tally.trials} | {tally.interruptions} | {tally.stuck} | {tally.exact} | {tally.different} "
        f"| {tally.wrong_exit} | {tally.most_repeated} |"
        for tally in outcome.tallies
    ]
    lines += ["", *_about_boundaries(laboratory), ""]
    if outcome.corruptions:
        lines += [
            "| damage to checkpoints | tried | noticed | fell back to the newest whole one |",
            "|---|---|---|---|",
        ]
        lines += [
            f"| {name} | {row['tried']} | {row['noticed']} | {row['fell back right']} |"
            for name, row in outcome.corruptions.items()
        ]
        total = {
            key: sum(row[key] for row in outcome.corruptions.values())
            for key in ("tried", "noticed", "fell back right")
        }
        lines += [f"| all | {total['tried']} | {total['noticed']} | {total['fell back right']} |", ""]
    troubles = [trouble for tally in outcome.tallies for trouble in tally.troubles]
    lines += ["Troubles:", "", *(f"- {trouble}" for trouble in troubles)] if troubles else ["No trial went wrong."]
    return "\n".join(lines) + "\n"


def _about_boundaries(laboratory: Laboratory) -> list[str]:
    counts = ", ".join(f"{subject.boundaries} with {subject.name} layers" for subject in laboratory.subjects)
    return [
        f"File boundaries of one run (before each open for writing, mkdir, rename, remove and fsync): {counts}. "
        "A signal that comes after the run has ended finds nothing to interrupt: such trials count as trials and not as "
        "interruptions. Steps repeated are those between the checkpoint a run went on from and the last step it had "
        f"recorded: at most the {SAVE_EVERY} steps to the save before, and the steps taken while a save was being written.",
    ]


if __name__ == "__main__":
    sys.exit(main())
