"""Two ranks that are killed: what a launcher would start, as two forks of the warm process that meet on a port.

A fork costs a fraction of what a launcher costs, so that hundreds of kills fit into an hour. What the launcher adds,
ending the others when one is gone, is done here in its way: SIGTERM, some patience, then kill -9.
"""

from __future__ import annotations

import copy
import signal
import socket
import time
from pathlib import Path
from typing import Any

from whet.errors import EnvironmentFault
from whet.tools.selftest.fork_client import Command
from whet.tools.selftest.tiny_run import differences, run_contents, steps_repeated, train_arguments
from whet.tools.selftest.trials import InterruptionTrials, ReferenceRun, Tally

WORLD = 2
PATIENCE_SECONDS = 20.0


class TwoRanks:
    """Kills of one or both of two ranks; the run that goes on must end as an undisturbed one of two ranks does."""

    def __init__(self, laboratory: InterruptionTrials) -> None:
        self.laboratory, self.chosen = laboratory, laboratory.chosen
        self.expected: list[dict[str, Any]] = []
        self.seconds: list[float] = []
        for subject in laboratory.subjects:
            home, started = self._home(f"two-reference-{subject.name}"), time.monotonic()
            if [command.wait() for command in self._start(home, subject)] != [0] * WORLD:
                raise EnvironmentFault(f"The reference run of two ranks failed: {_said(home)}")
            self.expected.append(run_contents(home / "run"))
            self.seconds.append(time.monotonic() - started)

    def beside(self, laboratory: InterruptionTrials) -> TwoRanks:
        """The same references, and trials in another place."""
        other = copy.copy(self)
        other.laboratory, other.chosen = laboratory, laboratory.chosen
        return other

    def kill(self, tally: Tally) -> None:
        """One of them, or both, at a random moment; then both are started again."""
        index = tally.trials % len(self.expected)
        subject, home = self.laboratory.subjects[index], self._home(f"two-{tally.trials}")
        commands = self._start(home, subject)
        time.sleep(0.01 + self.chosen.random() * self.seconds[index])
        struck = self.chosen.choice(([0], [1], [0, 1]))
        for rank in struck:
            commands[rank].signal(signal.SIGKILL)
        statuses = [commands[rank].wait() for rank in struck]
        tally.interruptions += -signal.SIGKILL in statuses
        for rank in set(range(WORLD)) - set(struck):
            commands[rank].signal(signal.SIGTERM)
            if commands[rank].wait(PATIENCE_SECONDS) is None:
                commands[rank].wait()
        self._finish(home, subject, index, tally)

    def _finish(self, home: Path, subject: ReferenceRun, index: int, tally: Tally) -> None:
        tally.trials += 1
        statuses = [command.wait() for command in self._start(home, subject)]
        if statuses != [0] * WORLD:
            tally.stuck += 1
            tally.troubles.append(f"{home.name}: exits {statuses}; {_said(home)}")
            return
        said = differences(self.expected[index], run_contents(home / "run"))
        tally.exact += not said
        tally.different += bool(said)
        tally.troubles += [f"{home.name}: {line[:300]}" for line in said[:2]]
        tally.most_repeated = max(tally.most_repeated, steps_repeated(home / "run"))

    def _start(self, home: Path, subject: ReferenceRun) -> list[Command]:
        arguments = train_arguments(self.laboratory.source, subject.model, home / "run")
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(WORLD)}
        commands = []
        for rank in range(WORLD):
            place = home / f"rank-{rank}"
            place.mkdir(exist_ok=True)
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WHET_CACHE": str(home / "cache")}
            commands.append(self.laboratory.warm.start(arguments, place, environment={**meeting, **own}))
        return commands

    def _home(self, name: str) -> Path:
        home = self.laboratory.folder / name
        home.mkdir()
        return home


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _said(home: Path) -> str:
    lines = [
        line for file in sorted(home.glob("rank-*/output.txt")) for line in file.read_text().strip().splitlines()[-1:]
    ]
    return "; ".join(line[:200] for line in lines)
