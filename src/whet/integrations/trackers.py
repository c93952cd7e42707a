"""Experiment trackers, fed from a run's records.

None is used unless the user names it, none asks for an account, and none can stop a training.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from whet.errors import UsageError, missing_extra, nearest
from whet.records import Evaluation, Record, Step
from whet.utils.text import neutral

Values = Mapping[str, float]


@dataclass(frozen=True)
class Place:
    """Where a tracker stores the run."""

    folder: Path
    project: str
    name: str | None


class Tracker(Protocol):
    """An external tool that shows numbers by step."""

    def open(self, settings: Mapping[str, Any]) -> None: ...

    def log(self, step: int, values: Values) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files in the run's folder."""

    def __init__(self, place: Place) -> None:
        self.folder = place.folder

    def open(self, settings: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer: Any = SummaryWriter(str(self.folder))
        lines = "\n".join(f"    {neutral(name)}: {neutral(str(value))}" for name, value in settings.items())
        self.writer.add_text("arguments", lines)

    def log(self, step: int, values: Values) -> None:
        for name, value in values.items():
            self.writer.add_scalar(neutral(name), value, step)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class Wandb:
    """Weights & Biases; without a stored key it writes its files locally instead of asking for one."""

    def __init__(self, place: Place) -> None:
        self.project = os.environ.get("WANDB_PROJECT", place.project)
        self.name = place.name

    def open(self, settings: Mapping[str, Any]) -> None:
        import wandb

        self.run: Any = wandb.init(
            project=self.project,
            name=self.name,
            config=dict(settings),
            mode=wandb_mode(),
            settings=wandb.Settings(silent=True),
        )

    def log(self, step: int, values: Values) -> None:
        self.run.log(dict(values), step=step)

    def close(self) -> None:
        self.run.finish()


def wandb_mode() -> str:
    """Return WANDB_MODE; otherwise online only with a stored key, because wandb would ask for one."""
    import netrc

    if asked := os.environ.get("WANDB_MODE"):
        return asked
    if os.environ.get("WANDB_API_KEY"):
        return "online"
    try:
        return "offline" if netrc.netrc().authenticators("api.wandb.ai") is None else "online"
    except (OSError, netrc.NetrcParseError):
        return "offline"


class Mlflow:
    """A run in MLFLOW_TRACKING_URI, or in ./mlruns."""

    def __init__(self, place: Place) -> None:
        self.experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", place.project)
        self.name = place.name

    def open(self, settings: Mapping[str, Any]) -> None:
        import mlflow

        mlflow.set_experiment(self.experiment)
        self.mlflow: Any = mlflow
        mlflow.start_run(run_name=self.name, nested=mlflow.active_run() is not None)
        mlflow.log_params({name: str(value)[:250] for name, value in settings.items()})

    def log(self, step: int, values: Values) -> None:
        self.mlflow.log_metrics(dict(values), step=step)

    def close(self) -> None:
        self.mlflow.end_run()


class Trackio:
    """Trackio's local database."""

    def __init__(self, place: Place) -> None:
        self.project, self.name = place.project, place.name

    def open(self, settings: Mapping[str, Any]) -> None:
        import trackio

        self.trackio: Any = trackio
        trackio.init(project=self.project, name=self.name, config=dict(settings))

    def log(self, step: int, values: Values) -> None:
        self.trackio.log(dict(values), step=step)

    def close(self) -> None:
        self.trackio.finish()


TRACKERS: dict[str, Callable[[Place], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "mlflow": Mlflow,
    "trackio": Trackio,
}


def make_trackers(names: Sequence[str], place: Place, notice: Callable[[str], None]) -> Trackers:
    """Return the requested trackers; `all` means the installed ones."""
    return Trackers({name: TRACKERS[name](place) for name in available(names)}, notice)


def available(names: Sequence[str]) -> list[str]:
    """Return the requested trackers; raise for one that is unknown or not installed."""
    if list(names) == ["all"]:
        return [name for name in TRACKERS if find_spec(name)]
    asked = [name for name in names if name != "none"]
    for name in asked:
        if name not in TRACKERS:
            raise UsageError(f"report_to is {name!r}.", nearest(name, [*TRACKERS, "none", "all"]))
        if find_spec(name) is None:
            raise missing_extra(name, name, f"report_to={name!r}")
    return asked


class Trackers:
    """Several trackers. One that fails is dropped with a warning."""

    def __init__(self, trackers: Mapping[str, Tracker], notice: Callable[[str], None]) -> None:
        self.trackers, self._notice = dict(trackers), notice

    def open(self, settings: Mapping[str, Any]) -> None:
        self._each(lambda tracker: tracker.open(settings))

    def log(self, step: int, values: Values) -> None:
        self._each(lambda tracker: tracker.log(step, values))

    def close(self) -> None:
        self._each(lambda tracker: tracker.close())

    def _each(self, act: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self.trackers.items()):
            try:
                act(tracker)
            except Exception as error:
                del self.trackers[name]
                reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
                self._notice(f"The tracker {name} stopped, and training goes on without it: {reason[:200]}")


@contextmanager
def tracked(
    names: Sequence[str], place: Place, settings: Mapping[str, Any], notice: Callable[[str], None]
) -> Iterator[Callable[[Any], None]]:
    """Context in which events are passed on to the trackers."""
    trackers = make_trackers(names, place, notice)
    trackers.open(settings)

    waiting: dict[int, Evaluation] = {}
    """Evaluations of folds, held back until their steps are reached: trackers need steps in order."""

    def track(event: Any) -> None:
        if isinstance(event, Evaluation) and event.out_of_fold:
            waiting[event.step] = event
            return
        if isinstance(event, Record) and (values := values_of(event)):
            for step in sorted(step for step in waiting if step <= event.step):
                trackers.log(step, values_of(waiting.pop(step)))
            trackers.log(event.step, values)

    try:
        yield track
    finally:
        trackers.close()


def values_of(record: Record) -> dict[str, float]:
    """Return the numbers of a record by tracker names, which group them; empty if it has none."""
    if isinstance(record, Step):
        found = {"loss": record.loss, "learning_rate": record.learning_rate, "epoch": record.epoch}
        if record.grad_norm is not None:
            found["grad_norm"] = record.grad_norm
        return {f"train/{name}": float(value) for name, value in found.items()}
    if isinstance(record, Evaluation):
        group = "eval" if record.split == "validation" else record.split
        found = {"loss": record.loss, **record.metrics}
        if record.probe_loss is not None:
            found["train_probe_loss"] = record.probe_loss
        return {f"{group}/{name}": float(value) for name, value in found.items()}
    return {}
