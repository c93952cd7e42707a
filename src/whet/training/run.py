"""One run, from a source to a finished run folder. All entry points that train call this."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whet.config import Config, to_toml
from whet.distributed.environment import require_several, several_processes
from whet.distributed.group import DistributedContext
from whet.errors import Interrupted, UsageError, WhetError
from whet.models.lora import require_peft
from whet.runs.folder import CONFIG, RunFolder
from whet.runs.report.html import write_report_quietly
from whet.training.recipe import (
    MINILM_WIDTH,
    follow_recipe,
    pooling_for,
    refuse_contrastive,
    resolve_folds,
    resolve_lora,
)
from whet.training.recorder import EventHandler, Recorder
from whet.training.resume import compare_with_before, open_run, refuse_other_tokens
from whet.training.setup import BackgroundModelLoader, Job, choose_folds, make_job, make_tokens, read_examples
from whet.utils.gpu_files import refuse_impossible
from whet.utils.signals import Interrupts
from whet.utils.text import Echo

if TYPE_CHECKING:
    from whet.data.audit.audit import Audit
    from whet.data.examples import Examples
    from whet.training.estimate import Estimate


def train_run(
    source: Any,
    config: Config,
    *,
    accept_changes: bool = False,
    measure_only: bool = False,
    echo: Echo = lambda line: None,
    on_event: EventHandler = lambda event, job: None,
) -> RunFolder:
    """Train to the end of the plan, or resume an interrupted run.

    With `measure_only`, a run of folds ends with its held-out predictions and trains no final model.
    """
    from whet.integrations.trackers import available

    if config.run.offline:
        os.environ["HF_HUB_OFFLINE"] = "1"  # the hub's client reads it when it is first imported
    available(config.run.report_to)
    if config.train.shard:
        require_several()
        _refuse_sharded_windows(config)
    refuse_impossible(config.train.device)
    with Interrupts(config.run.max_minutes) as interrupts:
        ranks = _join(config.train.device)
        if not ranks.is_main:
            echo, on_event = ignore, ignore  # only the main process prints
        with ranks.publish_error():
            call = _Call(ranks, interrupts, accept_changes, measure_only, echo, on_event)
            return _train_on_rank(call, source, config)


@dataclass(frozen=True)
class _Call:
    """The arguments of a call that all its stages share."""

    ranks: DistributedContext
    interrupts: Interrupts
    accept_changes: bool
    measure_only: bool
    echo: Echo
    on_event: EventHandler


@dataclass(frozen=True)
class _Rows:
    """The rows of a run, as read."""

    examples: Examples
    report: Audit
    folds: Any
    """The fold of each training row; None without folds."""


def _train_on_rank(call: _Call, source: Any, config: Config) -> RunFolder:
    ranks = call.ranks
    with ranks.raise_on_all_ranks(), call.interrupts.at_once():
        config, rows = _read(source, config, call.echo)
        if ranks.is_main:
            _refuse_changes(config, rows.examples.fingerprint, call.accept_changes)
    # Heavy libraries are loaded only now: most mistakes were found without them.
    from whet.utils.device import start_gpu_in_background

    start_gpu_in_background(config.train.device)
    config = with_recipe(config, rows.examples, call.echo)
    with ranks.raise_on_all_ranks():
        opened = open_run(config, call.accept_changes) if ranks.is_main else None
    folder: RunFolder
    folder, resuming = ranks.broadcast_object(opened)
    with ExitStack() as held:
        with ranks.raise_on_all_ranks():
            if ranks.is_main:
                held.enter_context(folder.locked())
            folder.refuse_links()
        if ranks.broadcast_object(resuming and folder.finished):
            _leave_finished(call, folder, config, rows)
        else:
            _train_in(call, folder, config, rows, resuming)
    return folder


def _read(source: Any, config: Config, echo: Echo) -> tuple[Config, _Rows]:
    """Read the rows, and return the settings with those that depend on them."""
    config = resolve_folds(resolve_lora(config))
    require_peft(config.lora)
    examples, report = read_examples(source, config, echo)
    refuse_contrastive(config, examples.task)
    config, folds = choose_folds(config, examples, echo)
    return config, _Rows(examples, report, folds)


def _leave_finished(call: _Call, folder: RunFolder, config: Config, rows: _Rows) -> None:
    with call.ranks.raise_on_all_ranks():
        compare_with_before(folder, config, rows.examples.fingerprint, call.accept_changes)
    call.echo(f"{folder.path} is finished already.")
    if call.ranks.is_main and not call.measure_only and not (folder.path / "report.html").exists():
        write_report_quietly(folder, call.echo)


def _train_in(call: _Call, folder: RunFolder, config: Config, rows: _Rows, resuming: bool) -> None:
    """Train in an opened folder, which is deleted if the run is new and cannot start."""
    from whet.integrations.trackers import Place, tracked
    from whet.training.estimate import estimate, require_disk

    ranks, echo = call.ranks, call.echo
    tracks: list[Callable[[Any], None]] = []

    def tell(event: Any, job: Any) -> None:
        for track in tracks:
            track(event)
        call.on_event(event, job)

    is_mine = ranks.is_main and not resuming
    with _no_folder_left(folder, is_mine), ranks.raise_on_all_ranks(), call.interrupts.at_once():
        job, changed = _make_job(call, folder, config, rows, resuming)
        training = _trained(config, folder, job, rows.folds, call.interrupts, echo, tell, call.measure_only)
        expected = estimate(job, getattr(training, "trainings", ()))
        echo(expected.sentence())
        require_disk(folder.path, expected)
    ranks.require_same("The tokens", [tokens.fingerprint for tokens in job.prepared.tokens.values()])
    ranks.require_same("The frozen weights", job.frozen)
    if resuming and folder.environment.get("processes", ranks.world) != ranks.world:
        echo(f"Started with another number of processes: with {ranks.world} it is equal only within tolerance.")
    if changed and ranks.is_main:
        echo(f"Going on although {changed}.")
        folder.write_text(CONFIG, to_toml(config))
    place = Place(folder.path / "tensorboard", "whet", folder.path.name)
    trackers = config.run.report_to if ranks.is_main else ()
    with tracked(trackers, place, config.flat(), echo) as track:
        tracks.append(track)
        training.run(resuming=resuming, changed=changed)


def _make_job(call: _Call, folder: RunFolder, config: Config, rows: _Rows, resuming: bool) -> tuple[Job, str]:
    """Return the job, and in words what has changed since the run was started."""
    accept = call.accept_changes
    before = folder.data if resuming else {}
    changed = compare_with_before(folder, config, rows.examples.fingerprint, accept) if resuming else ""
    model = BackgroundModelLoader(config, rows.examples.task)
    prepared = make_tokens(config, rows.examples, rows.report, call.echo, call.interrupts.check, model)
    changed = changed or refuse_other_tokens(folder, before, prepared, accept)
    return make_job(prepared, call.echo, call.ranks, model=model), changed


def _refuse_sharded_windows(config: Config) -> None:
    if config.model.long == "windows":
        raise UsageError(
            "--long is 'windows', and with --shard all processes must compute as many rows, which windows are not.",
            "Leave one of them out, or take --long head-tail.",
        )


def _refuse_changes(config: Config, fingerprint: str, accept: bool) -> None:
    """Refuse settings that opening the folder would refuse, before the heavy libraries are loaded."""
    path = Path(config.run.run or "")
    if config.train.recipe == "course" and config.run.run is not None and (path / CONFIG).is_file():
        compare_with_before(RunFolder.open(path), config, fingerprint, accept)


def _trained(
    config: Config,
    folder: RunFolder,
    job: Job,
    folds: Any,
    interrupts: Interrupts,
    echo: Echo,
    on_event: EventHandler,
    measure_only: bool = False,
) -> Any:
    """Return the object that trains: folds, several seeds, or one training."""
    if folds is not None:
        from whet.training.folds import FoldedRun

        return FoldedRun(folder, job, folds, interrupts, echo, on_event, measure_only=measure_only)
    if config.train.seeds > 1:
        from whet.training.seeds import SeededRun

        return SeededRun(folder, job, interrupts, echo, on_event)
    return Recorder(folder, job, interrupts, echo, on_event)


def with_recipe(config: Config, examples: Examples, echo: Echo) -> Config:
    """Return the settings of this run, completed by the recipe."""
    if config.train.recipe == "course":
        return config
    from whet.models.pooling import released_pooling
    from whet.models.pretrained import find_model, load_config

    found = load_config(config.model.model, config.model)
    width = int(getattr(found, "hidden_size", 0) or getattr(found, "dim", MINILM_WIDTH))
    rows, place = len(examples.rows["train"]), find_model(config.model.model, config.model.trust_remote_code)
    pooling = pooling_for(
        rows, found, lambda: released_pooling(place, found, config.model.revision), lora=config.lora.lora
    )
    config, said = follow_recipe(config, rows, examples.task, width, pooling)
    echo(said)
    return config


def _join(device: str) -> DistributedContext:
    """Join the processes that were started with this one; a single process does not need torch for it."""
    if not several_processes():
        return DistributedContext()
    from whet.distributed.rendezvous import join_processes

    return join_processes(device)


@contextmanager
def _no_folder_left(folder: RunFolder, is_mine: bool) -> Iterator[None]:
    """Delete the folder of a run that could not start (a wrong model, metric or device)."""
    try:
        yield
    except Interrupted:
        raise
    except WhetError:
        if is_mine:
            folder.discard_unstarted()
        raise


def ignore(*_: Any) -> None:
    """Do nothing; the output of ranks other than the main one."""


def dry_run(source: Any, config: Config, echo: Echo, *, accept_changes: bool = False) -> Estimate:
    """Run everything up to the first step: show how the data was read, and the estimate."""
    from whet.integrations.trackers import available

    available(config.run.report_to)
    refuse_impossible(config.train.device)
    config, rows = _read(source, config, echo)
    _refuse_changes(config, rows.examples.fingerprint, accept_changes)
    config = with_recipe(config, rows.examples, echo)
    from whet.training.estimate import estimate

    model = BackgroundModelLoader(config, rows.examples.task)
    job = make_job(make_tokens(config, rows.examples, rows.report, echo, model=model), echo, model=model)
    with Interrupts() as interrupts:
        training = _trained(config, RunFolder(Path()), job, rows.folds, interrupts, echo, ignore)
        expected = estimate(job, getattr(training, "trainings", ()))
    echo(expected.sentence())
    return expected
