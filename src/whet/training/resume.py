"""Opens the run folder of a command: a new one, or an unfinished one with the same settings and data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from whet.config import Config, differences, settings_that_change
from whet.errors import UsageError
from whet.runs.folder import RunFolder, next_run_path, run_name, runs_named
from whet.training.recipe import resolve_folds
from whet.training.setup import Prepared


def open_run(config: Config, accept_changes: bool = False) -> tuple[RunFolder, bool]:
    """Return the folder of this run, and whether it holds an earlier part of it.

    Without --run, the newest unfinished run of this name continues if its settings are the same, or if other ones
    were accepted.
    """
    if config.run.run is not None:
        path = Path(config.run.run)
        if (path / "config.toml").is_file():
            return RunFolder.open(path), True
        return RunFolder.create(path, config), False
    root, name = Path("runs"), run_name(config.data.source)
    for newest in runs_named(root, name)[:1]:
        if not newest.finished and (accept_changes or not _changed(newest, config)):
            return newest, True
    return RunFolder.create(next_run_path(root, name), config), False


def _changed(folder: RunFolder, config: Config) -> dict[str, tuple[Any, Any]]:
    changed = differences(resolve_folds(folder.config), config)
    free = settings_that_change("nothing")
    return {name: pair for name, pair in changed.items() if name not in free}


def compare_with_before(folder: RunFolder, config: Config, fingerprint: str, accept: bool) -> str:
    """Return in words what differs from the start of the run; raise unless it is accepted."""
    changed = {name: (str(old), str(new)) for name, (old, new) in _changed(folder, config).items()}
    before = folder.data.get("fingerprint", fingerprint)
    if before != fingerprint:
        changed["data"] = (before[:12], fingerprint[:12])
    listed = "; ".join(f"{name} was {old}, is {new}" for name, (old, new) in changed.items())
    if changed and not accept:
        raise UsageError(
            f"The run {str(folder.path)!r} was started with other settings: {listed}.",
            "Choose another --run, or add --accept-changes to go on with the new ones.",
        )
    return listed


def refuse_other_tokens(folder: RunFolder, before: dict[str, Any], prepared: Prepared, accept: bool) -> str:
    """Refuse other tokens with the same settings and data: the model's folder may hold another tokenizer."""
    now = {name: tokens.fingerprint for name, tokens in prepared.tokens.items()}
    if before.get("tokens", now) == now:
        return ""
    if not accept:
        raise UsageError(
            f"The tokens of the run {str(folder.path)!r} were others: the tokenizer of "
            f"{prepared.config.model.model!r} has changed since.",
            "Put the old one back, choose another --run, or add --accept-changes.",
        )
    return "the tokenizer has changed"
