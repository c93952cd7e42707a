"""`whet selftest`: interrupts a small run on this machine, resumes it, and compares the result to the bit.

Commands run in forks of one process (see `fork_server.py`), so an interruption takes a fraction of a second instead
of the import of every library.
"""

from __future__ import annotations

import copy
import json
import random
import shutil
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from whet.errors import EnvironmentFault
from whet.records import Save
from whet.runs.folder import RunFolder
from whet.tools.selftest.damage import DAMAGES
from whet.tools.selftest.fork_client import Command, ForkServer, warm_process
from whet.tools.selftest.tiny_run import differences, run_contents, steps_repeated, train_arguments, write_rows
from whet.utils.text import Echo

INTERRUPTED = 75
NONE: Mapping[str, Any] = MappingProxyType({})


@dataclass
class Tally:
    """The results of one kind of trial."""

    name: str
    trials: int = 0
    interruptions: int = 0
    stuck: int = 0
    exact: int = 0
    different: int = 0
    wrong_exit: int = 0
    most_repeated: int = 0
    troubles: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return self.exact == self.trials and not self.wrong_exit

    def add(self, other: Tally) -> None:
        """Add results of the same kind."""
        for name in ("trials", "interruptions", "stuck", "exact", "different", "wrong_exit"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.most_repeated = max(self.most_repeated, other.most_repeated)
        self.troubles += other.troubles


@dataclass(frozen=True)
class ReferenceRun:
    """A model that is trained repeatedly, and the result of an undisturbed run."""

    name: str
    model: Path
    expected: dict[str, Any]
    seconds: float
    boundaries: int
    """Number of file operations of the undisturbed run."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Flags of its command in addition to the common ones."""


# One for each way to compute on a CPU: general layers, and fused ones from a width of 64 on. Then runs of several
# parts: kills hit a fold, a moment between folds, a seed, and the choice.
SUBJECTS: dict[str, tuple[int, dict[str, Any]]] = {
    "general": (16, {}),
    "fused": (64, {}),
    "folds": (64, {"folds": 3, "epochs": 1}),
    "seeds": (16, {"seeds": 2, "epochs": 1}),
}


class InterruptionTrials:
    """Reference runs, and interrupted runs that must have the same results."""

    def __init__(self, warm: ForkServer, folder: Path, seed: int) -> None:
        self.warm, self.folder, self.chosen = warm, folder, random.Random(seed)
        self.source = folder / "rows.csv"
        self._pace = 1.0
        write_rows(self.source)
        self.subjects = [self._subject(name, width, changes) for name, (width, changes) in SUBJECTS.items()]

    def _subject(self, name: str, width: int, changes: dict[str, Any]) -> ReferenceRun:
        model, home, count = self.folder / f"model-{name}", self._home(f"reference-{name}"), self.folder / "count"
        self.warm.call("whet.tools.selftest.tiny_run:write_model", str(model), width, folder=self.folder)
        started = time.monotonic()
        status = self.start(home, model, changes, watch=str(home), count_to=str(count)).wait()
        if status != 0:
            raise EnvironmentFault(f"The reference run ended with {status}: {_last_line(home)}")
        return ReferenceRun(
            name, model, run_contents(home / "run"), time.monotonic() - started, int(count.read_text()), changes
        )

    def beside(self, number: int) -> InterruptionTrials:
        """Return another one with the same references, for trials at the same time."""
        other = copy.copy(self)
        other.folder, other.chosen = self.folder / f"beside-{number}", random.Random(self.chosen.randrange(2**32))
        other.folder.mkdir()
        return other

    def _next(self, tally: Tally) -> ReferenceRun:
        return self.subjects[tally.trials % len(self.subjects)]

    def start(self, home: Path, model: Path, changes: Mapping[str, Any] = NONE, **request: Any) -> Command:
        """Start the command of every trial: it starts the run and resumes it."""
        arguments = train_arguments(self.source, model, home / "run", **changes)
        return self.warm.start(arguments, home, environment={"WHET_CACHE": str(home / "cache")}, **request)

    def kill_at_random_moment(self, tally: Tally) -> None:
        """Kill the run one to three times at random moments; then let it finish."""
        subject, home = self._next(tally), self._home(f"kill-{tally.trials}")
        for _ in range(self.chosen.choice((1, 1, 2, 3))):
            tally.interruptions += self._disturb(home, subject, signal.SIGKILL) == -signal.SIGKILL
        self._finish(home, subject, tally)

    def kill_at_boundary(self, tally: Tally, boundary: int | None = None, subject: ReferenceRun | None = None) -> None:
        """Kill the run before its n-th file operation; the resumed run may be killed as well."""
        subject, home = subject or self._next(tally), self._home(f"boundary-{tally.trials}")
        places = [boundary or self.chosen.randint(1, subject.boundaries)]
        if boundary is None and self.chosen.random() < 0.3:
            places.append(self.chosen.randint(1, subject.boundaries // 2))
        for place in places:
            status = self.start(home, subject.model, subject.changes, watch=str(home), kill_at=place).wait()
            tally.interruptions += status == -signal.SIGKILL
        self._finish(home, subject, tally)

    def interrupt(self, tally: Tally) -> None:
        """Send SIGTERM or SIGINT at a random moment: the run must save, exit with 75, and resume."""
        subject, home = self._next(tally), self._home(f"signal-{tally.trials}")
        status = self._disturb(home, subject, self.chosen.choice((signal.SIGTERM, signal.SIGINT)))
        if status not in (0, INTERRUPTED):
            tally.wrong_exit += 1
            tally.troubles.append(f"{home.name}: exit {status} after the signal; {_last_line(home)}")
        tally.interruptions += status == INTERRUPTED
        self._finish(home, subject, tally)

    def _disturb(self, home: Path, subject: ReferenceRun, number: int) -> int | None:
        """Start the command, send a signal at a random moment, and return its exit status."""
        command = self.start(home, subject.model, subject.changes)
        time.sleep(0.01 + self.chosen.random() * subject.seconds * self._pace)
        command.signal(number)
        status = command.wait()
        # The machine's speed may have changed since the reference: the range misses the end about once in ten times.
        self._pace = max(0.1, self._pace * 0.8) if status == 0 else min(3.0, self._pace * 1.02)
        return status

    def corrupt(self, tally: Tally) -> None:
        """Kill a run and damage its newest checkpoint: it must resume from the one before, and report that."""
        # Only runs of one training have checkpoints to fall back on.
        subject, home = self.subjects[tally.trials % 2], self._home(f"corrupt-{tally.trials}")
        checkpoints = self._killed_with_checkpoints(home, subject)
        damage = DAMAGES[tally.trials % len(DAMAGES)]
        damage.inflict(checkpoints[-1], self.chosen)
        # Killed between a checkpoint's completion and its record: without the folder there is no trace of it.
        told = checkpoints[-1].exists() or _is_recorded(home / "run", checkpoints[-1])
        tally.interruptions += 1
        (home / "output.txt").unlink()
        if "Passed over" not in self._finish(home, subject, tally) and told:
            tally.wrong_exit += 1
            tally.troubles.append(f"{home.name}: a {damage.name} was not said")

    def corruptions(self, count: int) -> dict[str, dict[str, int]]:
        """Try thousands of damages to files alone."""
        home = self._home("corruptions")
        checkpoints, result = self._killed_with_checkpoints(home, self.subjects[0]), home / "tally.json"
        arguments = (str(checkpoints[0].parent), str(home), count, self.chosen.randrange(2**32), str(result))
        self.warm.call("whet.tools.selftest.damage:corrupt_and_load", *arguments, folder=home)
        found: dict[str, dict[str, int]] = json.loads(result.read_text())
        shutil.rmtree(home)
        return found

    def _killed_with_checkpoints(self, home: Path, subject: ReferenceRun) -> list[Path]:
        """Return the checkpoints of a run that was killed with more than one, oldest first."""
        for _ in range(100):
            place = self.chosen.randint(subject.boundaries // 2, subject.boundaries)
            self.start(home, subject.model, subject.changes, watch=str(home), kill_at=place).wait()
            found = sorted((home / "run" / "checkpoints").glob("step-*"))
            if RunFolder(home / "run").finished:  # it died after its last record, or finished before the count
                shutil.rmtree(home / "run")
            elif len(found) > 1:
                return found
        raise EnvironmentFault("The self-test could not interrupt a run with two checkpoints.")

    def _finish(self, home: Path, subject: ReferenceRun, tally: Tally) -> str:
        """Finish the run with the same command and compare it with the reference; return its output."""
        tally.trials += 1
        status = self.start(home, subject.model, subject.changes).wait()
        if status != 0:
            tally.stuck += 1
            tally.troubles.append(f"{home.name}: exit {status}; {_last_line(home)}")
            return ""
        output = (home / "output.txt").read_text(errors="replace")
        said = differences(subject.expected, run_contents(home / "run"))
        tally.exact += not said
        tally.different += bool(said)
        tally.troubles += [f"{home.name}: {line[:300]}" for line in said[:2]]
        tally.most_repeated = max(tally.most_repeated, steps_repeated(home / "run"))
        if not said:
            shutil.rmtree(home)
        return output

    def _home(self, name: str) -> Path:
        home = self.folder / name
        home.mkdir()
        return home


def _is_recorded(run: Path, checkpoint: Path) -> bool:
    records = RunFolder(run).all_records()
    return any(isinstance(record, Save) and Path(record.path).name == checkpoint.name for record in records)


def _last_line(home: Path) -> str:
    output = home / "output.txt"
    lines = output.read_text(errors="replace").strip().splitlines() if output.is_file() else []
    return lines[-1][:300] if lines else ""


@dataclass
class Outcome:
    """The results of a self-test."""

    tallies: list[Tally]
    corruptions: dict[str, dict[str, int]]
    seconds: float
    forks: bool

    @property
    def passed(self) -> bool:
        whole = all(row["tried"] == row["noticed"] == row["fell back right"] for row in self.corruptions.values())
        return whole and all(tally.passed for tally in self.tallies)


def selftest(folder: Path, *, kills: int, signals: int, corruptions: int, seed: int, echo: Echo) -> Outcome:
    """Run all trials in a new fork server."""
    echo("Starting: everything is imported once.")
    with warm_process() as warm:
        return examine(
            InterruptionTrials(warm, folder, seed), kills=kills, signals=signals, corruptions=corruptions, echo=echo
        )


def examine(laboratory: InterruptionTrials, *, kills: int, signals: int, corruptions: int, echo: Echo) -> Outcome:
    """Kill half of the runs at random moments, half at file operations; then send signals and damage checkpoints."""
    started = time.monotonic()
    for subject in laboratory.subjects:
        echo(f"Reference, {subject.name}: {subject.seconds:.1f} s, {subject.boundaries} file boundaries.")
    plan = (
        (Tally("kill -9, random moments"), laboratory.kill_at_random_moment, kills - kills // 2),
        (Tally("kill -9, file boundaries"), laboratory.kill_at_boundary, kills // 2),
        (Tally("SIGTERM and SIGINT"), laboratory.interrupt, signals),
        (Tally("newest checkpoint damaged"), laboratory.corrupt, min(9, corruptions)),
    )
    for tally, trial, count in plan:
        for _ in range(count):
            trial(tally)
        echo(f"{tally.name}: {tally.exact} of {tally.trials} bit-exact, {tally.stuck} stuck.")
    damaged = laboratory.corruptions(corruptions) if corruptions else {}
    tallies = [tally for tally, _, _ in plan if tally.trials]
    return Outcome(tallies, damaged, time.monotonic() - started, laboratory.warm.forks)
