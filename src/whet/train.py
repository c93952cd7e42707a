"""One run, from a source to a finished run folder. Every door that trains comes through here."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whet.config import Config, differences, from_environment, make_config, to_toml
from whet.engine.ranks import Ranks, require_several, several_processes
from whet.errors import Interrupted, UsageError, WhetError
from whet.gpu_files import refuse_impossible
from whet.interrupts import Interrupts
from whet.prepare import ModelBeside, Prepared, Say, make_job, make_tokens, read_examples
from whet.recipe import MINILM_WIDTH, follow_recipe, refuse_contrastive
from whet.recorder import Listener, Recorder, write_report_quietly
from whet.runs.store import CONFIG, RunFolder, next_run_path, run_name, runs_named

if TYPE_CHECKING:
    from whet.data.examples import Examples
    from whet.run import Run

# Settings that may change between an interrupted run and its continuation: they do not touch the training.
FREE_SETTINGS = frozenset({"run", "keep", "max_minutes", "offline", "report_to"})


def fit(source: Any = None, *, accept_changes: bool = False, **settings: Any) -> Run:
    """Fine-tune a model on labelled text and return the finished run.

    `source` is a file, a folder, a hub name, a DataFrame, a Dataset or lists; `settings` are the names that
    `whet train --help` lists, such as `model="minilm"`, `epochs=3`, `learning_rate=5e-5`.
    """
    if isinstance(source, str | os.PathLike):
        settings["source"] = os.fspath(source)
    config = make_config(from_environment(), settings)
    if source is None and not config.data.source:
        raise UsageError("fit was given no source.", "Give a file, a folder, a DataFrame or a Dataset.")
    from whet.notebook import NotebookView, in_notebook

    view = NotebookView() if in_notebook() else None
    try:
        return train_run(source, config, accept_changes=accept_changes, listen=view.listen if view else _nothing)
    finally:
        if view:
            view.close()
        # Model and moments are in reference cycles, which Python may leave for many runs: too few objects, too large.
        gc.collect()


def train_run(
    source: Any,
    config: Config,
    *,
    accept_changes: bool = False,
    say: Say = lambda line: None,
    listen: Listener = lambda event, job: None,
) -> Run:
    """Train to the end of the plan, or go on with a run that was interrupted."""
    from whet.trackers import available

    if config.run.offline:
        os.environ["HF_HUB_OFFLINE"] = "1"  # read by the hub's client when it is first imported
    available(config.run.report_to)
    if config.train.shard:
        require_several()
    refuse_impossible(config.train.device)
    with Interrupts(config.run.max_minutes) as interrupts:
        ranks = _join(config.train.device)
        if not ranks.is_main:
            say, listen = _nothing, _nothing  # what happens is told once
        with ranks.leaving():
            return _train_among(ranks, source, config, interrupts, accept_changes, say, listen)


def _train_among(
    ranks: Ranks,
    source: Any,
    config: Config,
    interrupts: Interrupts,
    accept_changes: bool,
    say: Say,
    listen: Listener,
) -> Run:
    from whet.trackers import Place, tracked

    with ranks.together(), interrupts.at_once():
        examples, report = read_examples(source, config, say)
        refuse_contrastive(config, examples.task)
        if ranks.is_main:
            _refuse_changes(config, examples.fingerprint, accept_changes)
    # The data is read; only now the heavy libraries are loaded, which takes longer than most mistakes deserve.
    from whet.engine.devices import wake
    from whet.estimate import estimate, require_disk
    from whet.run import Run

    wake(config.train.device)
    config = _with_recipe(config, examples, say)
    with ranks.together():
        opened = open_run(config, accept_changes) if ranks.is_main else None
    folder, resuming = ranks.from_main(opened)
    with ExitStack() as held:
        with ranks.together():
            if ranks.is_main:
                held.enter_context(folder.locked())
            folder.refuse_links()
        if ranks.from_main(resuming and folder.finished):
            with ranks.together():
                compare_with_before(folder, config, examples.fingerprint, accept_changes)
            say(f"{folder.path} is finished already.")
            if ranks.is_main and not (folder.path / "report.html").exists():
                write_report_quietly(folder, say)
            return Run(folder.path, trust_remote_code=config.model.trust_remote_code)
        is_mine = ranks.is_main and not resuming
        with _no_folder_left(folder, is_mine), ranks.together(), interrupts.at_once():
            before = folder.data if resuming else {}
            changed = compare_with_before(folder, config, examples.fingerprint, accept_changes) if resuming else ""
            model = ModelBeside(config, examples.task)
            prepared = make_tokens(config, examples, report, say, interrupts.check, model)
            changed = changed or _refuse_other_tokens(folder, before, prepared, accept_changes)
            job = make_job(prepared, say, ranks, model=model)
            expected = estimate(job)
            say(expected.sentence())
            require_disk(folder.path, expected)
        ranks.require_same("The tokens", [tokens.fingerprint for tokens in prepared.tokens.values()])
        if resuming and folder.environment.get("processes", ranks.world) != ranks.world:
            say(f"Begun with another number of processes: with {ranks.world} it is equal only within tolerance.")
        if changed and ranks.is_main:
            say(f"Going on although {changed}.")
            folder.write_text(CONFIG, to_toml(config))
        place = Place(folder.path / "tensorboard", "whet", folder.path.name)
        trackers = config.run.report_to if ranks.is_main else ()
        with tracked(trackers, place, config.flat(), say) as track:

            def tell(event: Any, job: Any) -> None:
                track(event)
                listen(event, job)

            Recorder(folder, job, interrupts, say, tell).run(resuming=resuming, changed=changed)
    return Run(folder.path, trust_remote_code=config.model.trust_remote_code)


def _refuse_changes(config: Config, fingerprint: str, accept: bool) -> None:
    """What would be refused when the folder is opened, before the heavy libraries are loaded."""
    path = Path(config.run.run or "")
    if config.train.recipe == "course" and config.run.run is not None and (path / CONFIG).is_file():
        compare_with_before(RunFolder.open(path), config, fingerprint, accept)


def _with_recipe(config: Config, examples: Examples, say: Say) -> Config:
    """The settings of this run, those that were left to the recipe among them."""
    if config.train.recipe == "course":
        return config
    from whet.engine.model import load_config

    found = load_config(config.model.model, config.model)
    width = int(getattr(found, "hidden_size", 0) or getattr(found, "dim", MINILM_WIDTH))
    config, said = follow_recipe(config, len(examples.rows["train"]), examples.task, width)
    say(said)
    return config


def _join(device: str) -> Ranks:
    """This process among those that were started with it; alone, torch is not needed to know that."""
    if not several_processes():
        return Ranks()
    from whet.engine.devices import join_processes

    return join_processes(device)


@contextmanager
def _no_folder_left(folder: RunFolder, is_mine: bool) -> Iterator[None]:
    """A run that could not even start (a wrong model, metric or device) leaves no folder behind."""
    try:
        yield
    except Interrupted:
        raise
    except WhetError:
        if is_mine:
            folder.discard_unstarted()
        raise


def _nothing(*_: Any) -> None:
    """What a process that is not the main one says."""


def rehearse(source: Any, config: Config, say: Say, *, accept_changes: bool = False) -> None:
    """Everything up to the first step: what was understood, and what training would take."""
    from whet.trackers import available

    available(config.run.report_to)
    refuse_impossible(config.train.device)
    examples, report = read_examples(source, config, say)
    refuse_contrastive(config, examples.task)
    _refuse_changes(config, examples.fingerprint, accept_changes)
    config = _with_recipe(config, examples, say)
    from whet.estimate import estimate

    model = ModelBeside(config, examples.task)
    job = make_job(make_tokens(config, examples, report, say, model=model), say, model=model)
    say(estimate(job).sentence())


def open_run(config: Config, accept_changes: bool = False) -> tuple[RunFolder, bool]:
    """The folder of this run, and whether it holds an earlier part of it.

    Without --run, the newest run of this name goes on if it was not finished and has the same settings, or other ones
    that were accepted.
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
    changed = differences(folder.config, config)
    return {name: pair for name, pair in changed.items() if name not in FREE_SETTINGS}


def compare_with_before(folder: RunFolder, config: Config, fingerprint: str, accept: bool) -> str:
    """What differs from how the run was begun, in words; refused unless accepted."""
    changed = {name: (str(old), str(new)) for name, (old, new) in _changed(folder, config).items()}
    before = folder.data.get("fingerprint", fingerprint)
    if before != fingerprint:
        changed["data"] = (before[:12], fingerprint[:12])
    listed = "; ".join(f"{name} was {old}, is {new}" for name, (old, new) in changed.items())
    if changed and not accept:
        raise UsageError(
            f"The run {str(folder.path)!r} was begun with other settings: {listed}.",
            "Choose another --run, or add --accept-changes to go on with the new ones.",
        )
    return listed


def _refuse_other_tokens(folder: RunFolder, before: dict[str, Any], prepared: Prepared, accept: bool) -> str:
    """The same settings and data can still mean other tokens: the folder of the model may hold another tokenizer."""
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
