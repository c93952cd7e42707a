"""The Trainer of the Hugging Face course, killed at random moments on both of its paths."""

from __future__ import annotations

import copy
import json
import shutil
import signal
import time
from pathlib import Path
from typing import Any

from soak_calls import TRAINER_WIDTHS

from whet.errors import EnvironmentFault
from whet.tools.selftest.fork_client import Command
from whet.tools.selftest.trials import InterruptionTrials, Tally

PATHS = tuple(TRAINER_WIDTHS)


class KilledTrainer:
    """`trainer.train(resume_from_checkpoint=…)` again and again must end as a training that was left alone."""

    def __init__(self, laboratory: InterruptionTrials) -> None:
        self.laboratory, self.chosen = laboratory, laboratory.chosen
        self.expected: dict[str, Any] = {}
        self.seconds: dict[str, float] = {}
        for path in PATHS:
            home, started = self._home(f"trainer-reference-{path}"), time.monotonic()
            if self._start(home, path).wait() != 0:
                raise EnvironmentFault(f"The Trainer's reference failed: {(home / 'output.txt').read_text()[-400:]}")
            self.expected[path], self.seconds[path] = _ended(home), time.monotonic() - started
            if self.expected[path]["fast"] != (path == "fast"):
                raise EnvironmentFault(f"The Trainer did not take the {path} path.")

    def beside(self, laboratory: InterruptionTrials) -> KilledTrainer:
        """The same references, and trials in another place."""
        other = copy.copy(self)
        other.laboratory, other.chosen = laboratory, laboratory.chosen
        return other

    def kill(self, tally: Tally) -> None:
        """One to three kills, then the training may end."""
        path, home = PATHS[tally.trials % len(PATHS)], self._home(f"trainer-{tally.trials}")
        for _ in range(self.chosen.choice((1, 1, 2, 3))):
            command = self._start(home, path)
            time.sleep(self.chosen.random() * self.seconds[path])
            command.signal(signal.SIGKILL)
            tally.interruptions += command.wait() == -signal.SIGKILL
        status = self._start(home, path).wait()
        tally.trials += 1
        if status != 0:
            tally.stuck += 1
            tally.troubles.append(f"{home.name}: exit {status}; {(home / 'output.txt').read_text()[-300:]}")
            return
        same = _ended(home) == self.expected[path]
        tally.exact += same
        tally.different += not same
        if same:
            shutil.rmtree(home)
        else:
            tally.troubles.append(f"{home.name}: the {path} path ended otherwise")

    def _start(self, home: Path, path: str) -> Command:
        return self.laboratory.warm.start([str(home), path], home, call="soak_calls:train_with_trainer")

    def _home(self, name: str) -> Path:
        home = self.laboratory.folder / name
        home.mkdir()
        return home


def _ended(home: Path) -> Any:
    return json.loads((home / "ended.json").read_text())
