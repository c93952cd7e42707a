"""The whole bar: kills, signals and damages by the thousand, and docs/reliability.md with what was found.

    python tests/soak.py --kills 1000 --signals 200 --corruptions 10000

Random kills come on top of one kill at every file boundary of every path; leave those out with --no-boundaries.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from soak_ranks import TwoRanks
from soak_server import examine_server
from soak_trainer import KilledTrainer

from whet.tools.selftest.fork_client import warm_process
from whet.tools.selftest.tiny_run import SAVE_EVERY
from whet.tools.selftest.trials import InterruptionTrials, Outcome, Tally

Trial = Callable[[InterruptionTrials, Tally, int], None]
ROOT = Path(__file__).parent.parent
REPORT = ROOT / "docs" / "reliability.md"
KINDS = {"general": "general layers", "fused": "fused layers", "folds": "three folds", "seeds": "two seeds"}
"""The runs that are interrupted, in words."""
SAY_EVERY_SECONDS = 30.0


def main() -> int:
    asked = arguments()
    started = time.monotonic()
    # What runs in forks is in this folder too.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    with TemporaryDirectory(prefix="whet-soak-") as folder, warm_process() as warm:
        laboratory = InterruptionTrials(warm, Path(folder), asked.seed)
        damages = laboratory.corruptions(asked.corruptions) if asked.corruptions else {}
        tallies = [tally for tally in trials(laboratory, asked) if tally.trials]
        cached = damaged_cache(laboratory, asked.cache_damages) if asked.cache_damages else {}
        inputs = broken_inputs(asked.inputs, asked.seed) if asked.inputs else {}
        outcome = Outcome(tallies, damages, time.monotonic() - started, warm.forks)
        text = report(outcome, asked, laboratory, cached, inputs)
    asked.out.write_text(text, encoding="utf-8")
    print(text)
    whole = all(row["tried"] == row["told"] == row["same"] for row in cached.values())
    return 0 if outcome.passed and whole and not inputs.get("problems") else 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000, help="trials with kill -9 at random moments")
    parser.add_argument("--signals", type=int, default=200, help="trials with SIGTERM or SIGINT")
    parser.add_argument("--corruptions", type=int, default=10_000, help="damages to checkpoints")
    parser.add_argument("--damaged-runs", type=int, default=90, help="damages inside a run that then goes on")
    parser.add_argument("--rank-kills", type=int, default=100, help="trials with kill -9 of one or both of two ranks")
    parser.add_argument("--trainer-kills", type=int, default=100, help="trials with kill -9 of the Trainer")
    parser.add_argument("--requests", type=int, default=10_000, help="requests to a server, sound and broken")
    parser.add_argument("--cache-damages", type=int, default=1000, help="damages to entries of the cache")
    parser.add_argument("--inputs", type=int, default=10_000, help="broken files through `whet check`: make fuzz")
    parser.add_argument("--at-once", type=int, default=4, help="trials at the same time")
    parser.add_argument("--boundaries", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=REPORT)
    return parser.parse_args()


def trials(laboratory: InterruptionTrials, asked: argparse.Namespace) -> Iterator[Tally]:
    places = [laboratory.beside(number) for number in range(asked.at_once)]

    def each(name: str, trial: Trial, count: int) -> Tally:
        return repeat(name, places, trial, count)

    yield each("kill -9 at a random moment", lambda lab, tally, at: lab.kill_at_random_moment(tally), asked.kills)
    if asked.boundaries:
        for subject in laboratory.subjects:
            yield each(
                f"kill -9 at every file boundary, {KINDS[subject.name]}",
                lambda lab, tally, at, subject=subject: lab.kill_at_boundary(tally, at, subject),
                subject.boundaries,
            )
    yield each("SIGTERM or SIGINT at a random moment", lambda lab, tally, at: lab.interrupt(tally), asked.signals)
    damaged = "newest checkpoint damaged, run goes on"
    yield each(damaged, lambda lab, tally, at: lab.corrupt(tally), asked.damaged_runs)
    if asked.rank_kills:
        ranks = TwoRanks(laboratory)
        name = "two ranks, one or both killed at a random moment"
        yield each(name, lambda lab, tally, at: ranks.beside(lab).kill(tally), asked.rank_kills)
    if asked.trainer_kills:
        trainer = KilledTrainer(laboratory)
        name = "the Trainer, kill -9 at a random moment"
        yield each(name, lambda lab, tally, at: trainer.beside(lab).kill(tally), asked.trainer_kills)
    if asked.requests:
        home = laboratory.folder / "server"
        home.mkdir()
        run = laboratory.folder / "reference-general" / "run"
        yield examine_server(laboratory.warm, run, home, asked.requests, asked.seed)


def damaged_cache(laboratory: InterruptionTrials, count: int) -> dict[str, dict[str, int]]:
    """By damage: how many were tried, told of as they must be, and followed by the same rows and tokens."""
    home = laboratory.folder / "cache-damages"
    home.mkdir()
    arguments = (str(home), count, laboratory.chosen.randrange(2**32), str(home / "tally.json"))
    laboratory.warm.call("soak_calls:damage_cache", *arguments, folder=home)
    found: dict[str, dict[str, int]] = json.loads((home / "tally.json").read_text())
    return found


def broken_inputs(count: int, seed: int) -> dict[str, Any]:
    """The last line of `make fuzz`."""
    command = [sys.executable, str(ROOT / "tests" / "fuzz_inputs.py"), "--cases", str(count), "--seed", str(seed)]
    found: dict[str, Any] = json.loads(subprocess.run(command, stdout=subprocess.PIPE).stdout.splitlines()[-1])
    return found


def repeat(name: str, places: list[InterruptionTrials], trial: Trial, count: int) -> Tally:
    """So many trials, one at a time in each of the places."""
    numbers, tallies = iter(range(1, count + 1)), [Tally(name) for _ in places]

    def work(place: InterruptionTrials, tally: Tally) -> None:
        for number in numbers:  # shared: each number is taken once
            trial(place, tally, number)

    with ThreadPoolExecutor(len(places)) as pool:
        working = [pool.submit(work, place, tally) for place, tally in zip(places, tallies, strict=True)]
        while wait(working, timeout=SAY_EVERY_SECONDS).not_done:
            _progress(name, tallies, count)
    for work_done in working:
        work_done.result()
    _progress(name, tallies, count)
    for tally in tallies[1:]:
        tallies[0].add(tally)
    return tallies[0]


def _progress(name: str, tallies: list[Tally], count: int) -> None:
    done, exact, stuck = (sum(getattr(tally, what) for tally in tallies) for what in ("trials", "exact", "stuck"))
    print(f"{name}: {done} of {count}, {exact} bit-exact, {stuck} stuck", file=sys.stderr)


def report(
    outcome: Outcome,
    asked: argparse.Namespace,
    laboratory: InterruptionTrials,
    cached: dict[str, dict[str, int]],
    inputs: dict[str, Any],
) -> str:
    parts = [
        "# What interruptions and damaged files do to a run",
        _how(outcome, asked),
        _interruptions(outcome),
        _boundaries(laboratory),
        _damages(outcome),
        _cache(cached),
        _inputs(inputs),
        _troubles(outcome),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _how(outcome: Outcome, asked: argparse.Namespace) -> str:
    command = (
        f"python tests/soak.py --kills {asked.kills} --signals {asked.signals} --corruptions {asked.corruptions} "
        f"--damaged-runs {asked.damaged_runs} --rank-kills {asked.rank_kills} --trainer-kills {asked.trainer_kills} "
        f"--requests {asked.requests} --cache-damages {asked.cache_damages} "
        f"--inputs {asked.inputs} --seed {asked.seed}"
        f"{'' if asked.boundaries else ' --no-boundaries'}"
    )
    return f"""Written by `{command}`;
`make soak` runs the whole bar. {datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores ({platform.machine()}),
Python {platform.python_version()}, torch {version("torch")}, transformers {version("transformers")}, on the
CPU; {outcome.seconds / 60:.0f} minutes.

A trial trains a tiny BERT for 24 steps (dropout on, rows shuffled, a checkpoint every {SAVE_EVERY} steps and at each
best evaluation), interrupts it, runs the same command again, and compares the finished run with one that was left
alone: `model/`, `predictions.parquet`, and every record without its timings. Trials alternate between the engine's
general and its fused layers, a run of three folds and one of two seeds, {asked.at_once} at the same time. A killed
trial is killed one to three times, anywhere from reading the data to writing the report. The Trainer's trials
alternate between its fast path and the library's loop; weights and logged history are compared."""


def _interruptions(outcome: Outcome) -> str:
    lines = [
        "| fault | trials | interruptions | stuck | bit-exact | different | wrong exit | most steps repeated |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {tally.name} | {tally.trials} | {tally.interruptions} | {tally.stuck} | {tally.exact} | {tally.different} "
        f"| {tally.wrong_exit} | {tally.most_repeated} |"
        for tally in outcome.tallies
    ]
    return "\n".join(lines)


def _boundaries(laboratory: InterruptionTrials) -> str:
    counts = ", ".join(f"{subject.boundaries} ({KINDS[subject.name]})" for subject in laboratory.subjects)
    return f"""File boundaries of one run (before each open for writing, mkdir, rename, remove and fsync): {counts}.
A signal that comes after the run has ended finds nothing to interrupt: such a trial is no interruption. Steps repeated
are those between the checkpoint that a run went on from and the last step it had recorded: at most the {SAVE_EVERY}
since the save before and those taken while a save was being written; more where the newest checkpoint was damaged."""


def _damages(outcome: Outcome) -> str:
    rows = outcome.corruptions
    if not rows:
        return ""
    columns = ("tried", "noticed", "fell back right")
    lines = ["| damage to checkpoints | tried | noticed | fell back to the newest whole |", "|---|---|---|---|"]
    lines += [f"| {name} | {' | '.join(str(row[column]) for column in columns)} |" for name, row in rows.items()]
    totals = (str(sum(row[column] for row in rows.values())) for column in columns)
    return "\n".join([*lines, f"| all | {' | '.join(totals)} |"])


def _cache(rows: dict[str, dict[str, int]]) -> str:
    if not rows:
        return ""
    lines = [
        "A damaged entry of the cache is named in one line and built again, with the same rows and tokens.",
        "",
        "| damage to the cache | tried | told as it must be | same rows and tokens |",
        "|---|---|---|---|",
    ]
    lines += [f"| {name} | {row['tried']} | {row['told']} | {row['same']} |" for name, row in rows.items()]
    totals = (str(sum(row[column] for row in rows.values())) for column in ("tried", "told", "same"))
    return "\n".join([*lines, f"| all | {' | '.join(totals)} |"])


def _inputs(found: dict[str, Any]) -> str:
    if not found:
        return ""
    codes = ", ".join(f"{count:,} with exit code {code}" for code, count in found["exit_codes"].items())
    return f"""`make fuzz`: {found["cases"]:,} files of {found["kinds"]} kinds, most of them broken, were given to
`whet check`. They ended so: {codes}.
Tracebacks: {found["tracebacks"]}; hangs: {found["hangs"]}; read otherwise than they were written, in silence:
{found["silent"]}."""


def _troubles(outcome: Outcome) -> str:
    troubles = [f"- {trouble}" for tally in outcome.tallies for trouble in tally.troubles]
    return "\n".join(["What went wrong:", "", *troubles]) if troubles else "Nothing went wrong."


if __name__ == "__main__":
    sys.exit(main())
