"""A Trainer's logs, handed to the trackers that report_to names."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers.trainer_callback import TrainerCallback

from whet.integrations.trackers import Place, Trackers, make_trackers
from whet.trainer.notices import notice

if TYPE_CHECKING:
    from whet.trainer.arguments import TrainingArguments


def trackers_of(args: TrainingArguments) -> Trackers:
    """TensorBoard writes into logging_dir, or into output_dir/runs."""
    folder = Path(args.logging_dir or os.environ.get("TENSORBOARD_LOGGING_DIR") or f"{args.output_dir}/runs")
    place = Place(folder / args.run_name if args.run_name else folder, args.project, args.run_name)
    return make_trackers(args.trackers, place, notice)


class TrackerCallback(TrainerCallback):  # type: ignore[misc]
    """Hands every log to every tracker."""

    def __init__(self, trackers: Trackers) -> None:
        self.trackers = trackers

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self.trackers.open(args.to_dict())

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **others: Any) -> None:
        values = {name: value for name, value in (logs or {}).items() if _is_number(value)}
        self.trackers.log(state.global_step, grouped(values))

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self.trackers.close()


def grouped(values: Mapping[str, float], groups: Sequence[str] = ("eval", "test")) -> dict[str, float]:
    """Names as trackers show them: eval_loss as eval/loss, loss as train/loss."""
    found = {}
    for name, value in values.items():
        group, _, rest = name.partition("_")
        found[f"{group}/{rest}" if group in groups and rest else f"train/{name}"] = float(value)
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
