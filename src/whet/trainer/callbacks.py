"""Callbacks are the stock ones; here are the handler's helpers and the lines that a Trainer prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from transformers.trainer_callback import ExportableState, TrainerCallback, TrainerControl, TrainerState

from whet.distributed.group import Ranks
from whet.utils.text import neutral_lines

SILENT = ("error", "critical")
_ASKED = ("should_training_stop", "should_epoch_stop", "should_save", "should_evaluate", "should_log")
_NOT_SHOWN = ("epoch", "eval_runtime", "eval_samples_per_second", "eval_steps_per_second", "total_flos")


def overrides(callbacks: Iterable[Any], *events: str) -> bool:
    """Whether any callback does something at one of these events."""
    return any(
        getattr(type(callback), event, None) not in (None, getattr(TrainerCallback, event))
        for callback in callbacks
        for event in events
    )


def agree(control: TrainerControl, ranks: Ranks) -> None:
    """What a callback of one process asks for, all do: a process that went its own way would wait for the others."""
    for name, asked in zip(_ASKED, ranks.any_of([bool(getattr(control, name)) for name in _ASKED]), strict=True):
        setattr(control, name, asked)


class PrintLines(TrainerCallback):  # type: ignore[misc]
    """One tidy line for a log and one for an evaluation; no bar, and nothing where log_level is "error"."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **others: Any) -> None:
        if args.log_level in SILENT or not state.is_world_process_zero or not logs:
            return
        width = len(str(state.max_steps))
        where = f"step {state.global_step:>{width}}/{state.max_steps}" if state.max_steps else "evaluated"
        shown = "  ".join(f"{name} {_short(value)}" for name, value in logs.items() if name not in _NOT_SHOWN)
        print(neutral_lines(f"{where}  epoch {state.epoch or 0:.2f}  {shown}"), flush=True)


def _short(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.2e}" if value and abs(value) < 1e-3 else f"{value:.4f}".rstrip("0").rstrip(".")


def exported(callbacks: Iterable[Any], control: TrainerControl) -> dict[str, Any]:
    """The state of all callbacks that have one, by class name, as trainer_state.json holds it."""
    found: dict[str, Any] = {}
    for callback in (*callbacks, control):
        if isinstance(callback, ExportableState):
            name, state = type(callback).__name__, callback.state()
            if name in found:
                before = found[name] if isinstance(found[name], list) else [found[name]]
                found[name] = [*before, state]
            else:
                found[name] = state
    return found


def restore(callbacks: Iterable[Any], control: TrainerControl, state: TrainerState) -> None:
    """Put it back: counters such as early stopping's go on; settings stay those of the new objects."""
    saved = {name: list(each) if isinstance(each, list) else [each] for name, each in state.stateful_callbacks.items()}
    for callback in callbacks:
        mine = saved.get(type(callback).__name__)
        if not isinstance(callback, ExportableState) or not mine:
            continue
        values = mine.pop(0)
        if type(callback).from_state.__func__ is ExportableState.from_state.__func__:
            callback.__dict__.update(values["attributes"])
        else:
            callback.__dict__.update(type(callback).from_state(values).__dict__)
    for name, value in saved.get("TrainerControl", [{"args": {}}])[0]["args"].items():
        setattr(control, name, value)
