"""Experiment trackers, fed from a Trainer's logs. None asks for an account, and none can stop a training."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from transformers.trainer_callback import TrainerCallback

from whet.errors import UsageError, missing_extra, nearest
from whet.trainer.notices import notice

if TYPE_CHECKING:
    from whet.trainer.arguments import TrainingArguments

Values = Mapping[str, float]


class Tracker(Protocol):
    """Somewhere outside where numbers by step are shown."""

    def open(self, settings: Mapping[str, Any]) -> None: ...

    def log(self, step: int, values: Values) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files in logging_dir, or in output_dir/runs."""

    def __init__(self, args: TrainingArguments) -> None:
        folder = Path(args.logging_dir or os.environ.get("TENSORBOARD_LOGGING_DIR") or f"{args.output_dir}/runs")
        self.folder = folder / args.run_name if args.run_name else folder

    def open(self, settings: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer: Any = SummaryWriter(str(self.folder))
        lines = "\n".join(f"    {name}: {value}" for name, value in settings.items())
        self.writer.add_text("arguments", lines)

    def log(self, step: int, values: Values) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class Wandb:
    """Weights & Biases; without a stored key it writes its files locally instead of asking for one."""

    def __init__(self, args: TrainingArguments) -> None:
        self.project = os.environ.get("WANDB_PROJECT", args.project)
        self.name = args.run_name

    def open(self, settings: Mapping[str, Any]) -> None:
        import wandb

        mode = os.environ.get("WANDB_MODE") or ("online" if self._has_key() else "offline")
        self.run: Any = wandb.init(
            project=self.project, name=self.name, config=dict(settings), mode=mode, settings=wandb.Settings(silent=True)
        )

    def log(self, step: int, values: Values) -> None:
        self.run.log(dict(values), step=step)

    def close(self) -> None:
        self.run.finish()

    @staticmethod
    def _has_key() -> bool:
        import netrc

        if os.environ.get("WANDB_API_KEY"):
            return True
        try:
            return netrc.netrc().authenticators("api.wandb.ai") is not None
        except (OSError, netrc.NetrcParseError):
            return False


class Mlflow:
    """A run in MLFLOW_TRACKING_URI, or in ./mlruns."""

    def __init__(self, args: TrainingArguments) -> None:
        self.experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", args.project)
        self.name = args.run_name

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

    def __init__(self, args: TrainingArguments) -> None:
        self.project, self.name = args.project, args.run_name

    def open(self, settings: Mapping[str, Any]) -> None:
        import trackio

        self.trackio: Any = trackio
        trackio.init(project=self.project, name=self.name, config=dict(settings))

    def log(self, step: int, values: Values) -> None:
        self.trackio.log(dict(values), step=step)

    def close(self) -> None:
        self.trackio.finish()


TRACKERS: dict[str, Callable[[TrainingArguments], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "mlflow": Mlflow,
    "trackio": Trackio,
}


def make_trackers(args: TrainingArguments) -> dict[str, Tracker]:
    """Those that were asked for; `all` means those that are installed."""
    if args.trackers == ["all"]:
        return {name: make(args) for name, make in TRACKERS.items() if find_spec(name)}
    found = {}
    for name in args.trackers:
        if name not in TRACKERS:
            raise UsageError(f"report_to is {name!r}.", nearest(name, [*TRACKERS, "none", "all"]))
        if find_spec(name) is None:
            raise missing_extra(name, name, f"report_to={name!r}")
        found[name] = TRACKERS[name](args)
    return found


class TrackerCallback(TrainerCallback):  # type: ignore[misc]
    """Hands every log to every tracker. One that fails is left out from then on, and said to be."""

    def __init__(self, trackers: Mapping[str, Tracker]) -> None:
        self.trackers = dict(trackers)

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        settings = args.to_dict()
        self._each(lambda tracker: tracker.open(settings))

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **others: Any) -> None:
        values = grouped({name: value for name, value in (logs or {}).items() if _is_number(value)})
        self._each(lambda tracker: tracker.log(state.global_step, values))

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._each(lambda tracker: tracker.close())

    def _each(self, act: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self.trackers.items()):
            try:
                act(tracker)
            except Exception as error:
                del self.trackers[name]
                reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
                notice(f"The tracker {name} stopped, and training goes on without it: {reason[:200]}")


def grouped(values: Mapping[str, float], groups: Sequence[str] = ("eval", "test")) -> dict[str, float]:
    """Names as trackers show them: eval_loss as eval/loss, loss as train/loss."""
    found = {}
    for name, value in values.items():
        group, _, rest = name.partition("_")
        found[f"{group}/{rest}" if group in groups and rest else f"train/{name}"] = float(value)
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
