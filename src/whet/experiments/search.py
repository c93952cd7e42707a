"""The trials of a tuning, stored in a journal, so that a killed tuning resumes with its current trial.

The next point depends only on the earlier trials: the sampler is seeded again for each trial.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.errors import missing_extra
from whet.experiments.space import Space

RANDOM_TRIALS = 6
"""Random trials before the sampler learns from them, including the default."""
NEVER_PRUNED = 3
"""This many trials are never pruned."""
PLACES_WITHOUT_PRUNING = 4
"""Scores from the first third of a training are too uncertain for pruning."""
FINISHED, PRUNED, STOPPED, FAILED = "finished", "pruned", "out of time", "diverged"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One training of a tuning, as far as it came."""

    number: int
    state: str
    """`finished`, `pruned`, `out of time`, `diverged`, or empty while it runs."""
    score: float | None
    seconds: float


class Search:
    """The earlier trials, and the next one."""

    def __init__(self, journal: Path, space: Space, *, higher_is_better: bool, seed: int) -> None:
        optuna = _optuna()
        _drop_torn_line(journal)
        backend = optuna.storages.journal.JournalFileBackend(str(journal), lock_obj=_HeldAlready())
        self._optuna, self._space, self._seed = optuna, space, seed
        self._study = optuna.create_study(
            storage=optuna.storages.JournalStorage(backend),
            study_name="tuning",
            load_if_exists=True,
            direction="maximize" if higher_is_better else "minimize",
            pruner=optuna.pruners.MedianPruner(
                n_startup_trials=NEVER_PRUNED, n_warmup_steps=PLACES_WITHOUT_PRUNING, n_min_trials=NEVER_PRUNED
            ),
        )
        if not self._study.trials:
            self._study.enqueue_trial(space.start())

    def next(self) -> Any:
        """Return the interrupted trial, or a new one."""
        states = self._optuna.trial.TrialState
        begun = [each for each in self._study.get_trials(deepcopy=False) if each.state != states.WAITING]
        going_on = begun[-1] if begun and begun[-1].state == states.RUNNING else None
        number = going_on.number if going_on else len(begun)
        self._study.sampler = self._optuna.samplers.TPESampler(seed=self._seed + number, n_startup_trials=RANDOM_TRIALS)
        return self._optuna.trial.Trial(self._study, going_on._trial_id) if going_on else self._study.ask()

    def tell(self, trial: Any, state: str, score: float | None, seconds: float) -> None:
        """Record the end of a trial."""
        states = self._optuna.trial.TrialState
        trial.set_user_attr("state", state)
        trial.set_user_attr("score", score)
        trial.set_user_attr("seconds", round(seconds, 3))
        kind = {FINISHED: states.COMPLETE, PRUNED: states.PRUNED}.get(state, states.FAIL)
        self._study.tell(trial, score if state == FINISHED else None, state=kind)

    def trials(self) -> list[Trial]:
        """Return the finished trials in order."""
        return [
            Trial(
                number=frozen.number,
                state=frozen.user_attrs.get("state", ""),
                score=frozen.user_attrs.get("score"),
                seconds=frozen.user_attrs.get("seconds", 0.0),
            )
            for frozen in self._study.get_trials(deepcopy=False)
            if frozen.state.is_finished()
        ]

    def importance(self) -> dict[str, float]:
        """Return the share of the differences in score explained by each setting, largest first; empty for too few
        trials."""
        finished = [trial for trial in self.trials() if trial.state == FINISHED]
        if len(finished) < 4 or len({trial.score for trial in finished}) < 2:
            return {}
        evaluator = self._optuna.importance.FanovaImportanceEvaluator(seed=self._seed)
        found = self._optuna.importance.get_param_importances(self._study, evaluator=evaluator)
        return {name: float(share) for name, share in found.items()}


class _HeldAlready:
    """Replaces the journal's lock file, which would outlive a kill: the folder already has one writer."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        """Nothing to release."""


def _drop_torn_line(journal: Path) -> None:
    """Remove a half-written line of a killed process."""
    if journal.is_file():
        content = journal.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole != len(content):
            with open(journal, "r+b") as file:
                file.truncate(whole)


def _optuna() -> Any:
    try:
        with _quietly():
            import optuna
            import optuna.storages.journal
    except ImportError:
        raise missing_extra("optuna", "tune", "`whet tune`") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


@contextmanager
def _quietly() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
