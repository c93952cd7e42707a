"""`tune`: many trainings around the recipe's settings, and an honest answer whether one of them is better.

    tuning = whet.tune("reviews.csv", minutes=20)
    tuning.sentence, tuning.shipped.predict("…")

Rows are held out before anything else. The first training is the default; the others are pruned by their evaluation
curves. At the end the winner and the default are measured on the held-out rows, and the winner is shipped only if a
paired test shows that it is better.
"""

from __future__ import annotations

import dataclasses
import gc
import math
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whet.config import Config, from_environment, make_config
from whet.distributed.environment import several_processes
from whet.errors import Diverged, Stopped, UsageError
from whet.experiments.folder import (
    HELD_OUT_SHARE,
    JOURNAL,
    PAGE,
    RESULT,
    TuningFolder,
    data_settings,
    find_folder,
    prepared,
    what_was_asked,
    with_data,
)
from whet.experiments.outcome import Outcome, TrialLine, Tuning
from whet.experiments.search import FAILED, FINISHED, PRUNED, STOPPED, Search, Trial
from whet.experiments.space import Space
from whet.metrics.scores import higher_is_better
from whet.records import End, Evaluation, Record, Step, shipped_evaluation
from whet.runs.compare import score_metric
from whet.runs.folder import RunFolder
from whet.runs.progress import duration
from whet.training.choice import Rule
from whet.training.recipe import resolve_lora

if TYPE_CHECKING:
    from whet.data.examples import Examples
    from whet.training.setup import Job

Echo = Callable[[str], None]
ROOT = Path("tuning")
PLACES = 12
"""Number of positions at which trainings are compared, which is the number of evaluations per run."""


def tune(
    source: Any = None,
    *,
    minutes: float = 20.0,
    trials: int | None = None,
    models: Sequence[str] = (),
    **settings: Any,
) -> Tuning:
    """Search the settings of a training for so many minutes; given settings are kept.

    `source` and `settings` are those of `whet.fit`; `trials` is the largest number of trainings, `models` are the
    models to choose from. The same call resumes an interrupted tuning.
    """
    if isinstance(source, str | os.PathLike):
        settings["source"] = os.fspath(source)
    config = make_config(from_environment(), settings)
    if source is None and not config.data.source:
        raise UsageError("tune was given no source.", "Give a file, a folder, a DataFrame or a Dataset.")
    asked = Asked(minutes=minutes, trials=trials, models=tuple(models))
    return run_tuning(source if source is not None else config.data.source, config, asked)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The limits of the search, and its models."""

    minutes: float = 20.0
    trials: int | None = None
    models: tuple[str, ...] = ()


def run_tuning(source: Any, config: Config, asked: Asked, echo: Echo = lambda line: None) -> Tuning:
    """Run a tuning from its rows to its result, or resume an interrupted one."""
    from whet.training.setup import read_examples

    config = _settled(config, asked)
    if config.run.offline:
        os.environ["HF_HUB_OFFLINE"] = "1"  # read by the hub's client when it is first imported
    models = asked.models or (config.model.model,)
    examples, _ = read_examples(source, config, echo)
    if "validation" not in examples.rows:
        raise UsageError("There are no validation rows to tune on.", "Give some with --validation FILE.")
    wanted = what_was_asked(config, models, examples)
    folder, begun = find_folder(ROOT, config, wanted)
    if folder.result:
        echo(f"{folder.path} is finished already.")
        return Tuning(folder.path)
    with_rows = _Setting(config, models, examples)
    if not begun:
        with prepared(folder, wanted, examples, config.data.split_seed) as scratch:
            default = with_rows.default(scratch)
            Space.around(default, models, examples.task)  # raises if nothing is left to search
            _refuse_too_little_time(default, asked)
    with folder.files.locked():
        echo(f"{'Going on with' if begun else 'Tuning in'} {folder.path}.")
        _Tuner(folder, with_rows, asked, echo).run()
    return Tuning(folder.path)


def _settled(config: Config, asked: Asked) -> Config:
    """Return the fixed settings of every trial; raise for what a tuning does not support."""
    if several_processes():
        raise UsageError("A tuning trains in one process.", "Start `whet tune` without a launcher.")
    if not asked.minutes > 0:
        raise UsageError(f"--minutes is {asked.minutes:g}.", "It must be above 0.")
    if asked.trials is not None and asked.trials < 2:
        raise UsageError(f"--trials is {asked.trials}.", "It takes at least 2: the default and another one.")
    if len(set(asked.models)) != len(asked.models):
        raise UsageError(f"--models names a model twice: {', '.join(asked.models)}.")
    if asked.models and "model" in config.given:
        raise UsageError("--model and --models are both given.", "Name all of them in --models, the default first.")
    for name, flag in (("seeds", "--seeds"), ("shard", "--shard")):
        if name in config.given:
            raise UsageError(f"{flag} is given, and a trial is one training.", "Leave it out.")
    if config.data.folds not in ("auto", 0):
        raise UsageError(f"--folds is {config.data.folds}, and a tuning measures on one split.", "Leave it out.")
    if config.evaluate.evaluations == 0 and config.evaluate.eval_every is None:
        raise UsageError("evaluations is 0, and a tuning goes by evaluations.", "Leave it out.")
    config = resolve_lora(config)
    # Without given rows to measure on, the drawn test rows are held out from all trials.
    share = config.data.test_share if "test_share" in config.given else HELD_OUT_SHARE
    data = dataclasses.replace(config.data, folds=0, test_share=share)
    return dataclasses.replace(config, data=data)


def _refuse_too_little_time(default: Config, asked: Asked) -> None:
    from whet.training.run import dry_run, ignore

    seconds = dry_run(default.data.source, default, ignore).seconds
    if seconds > asked.minutes * 60:
        enough = max(1, math.ceil(10 * seconds / 60))
        raise UsageError(
            f"--minutes is {asked.minutes:g}, and one training takes about {duration(seconds)}.",
            f"Use --minutes {enough} for about ten of them, or make each shorter with --epochs.",
        )


@dataclass(frozen=True)
class _Setting:
    """Shared by all trials."""

    config: Config
    models: tuple[str, ...]
    examples: Examples

    def base(self, folder: TuningFolder, model: str) -> Config:
        """Return the recipe's settings for this model and these rows."""
        from whet.data.examples import load_examples
        from whet.training.run import ignore, with_recipe

        config = with_data(self.config, data_settings(folder, self.examples, self.config.data))
        config = config.replaced({"model": model, "keep": 1})
        return with_recipe(config, load_examples(config.data.source, config.data), ignore)

    def default(self, folder: TuningFolder) -> Config:
        """Return the first trial; a model that cannot be loaded raises here."""
        for model in self.models[1:]:
            self.base(folder, model)
        return self.base(folder, self.models[0])


class _Tuner:
    """Runs trials until the time is up, and the final comparison."""

    def __init__(self, folder: TuningFolder, setting: _Setting, asked: Asked, echo: Echo) -> None:
        from whet.training.plan import choose_metric

        self.folder, self.setting, self.asked, self.echo = folder, setting, asked, echo
        self.bases = {model: setting.base(folder, model) for model in setting.models}
        self.default = self.bases[setting.models[0]]
        self.space = Space.around(self.default, setting.models, setting.examples.task)
        self.metric = choose_metric(self.default.evaluate.metric, setting.examples.task.kind)
        self.higher = self.metric != "loss" and higher_is_better(self.metric)
        self.search = Search(
            folder.path / JOURNAL, self.space, higher_is_better=self.higher, seed=self.default.train.seed
        )

    def run(self) -> None:
        while self._goes_on():
            self._try(self.search.next())
            self._make_room()
            gc.collect()
        self._refuse_default_alone()
        outcome = self._outcome()
        self._write_page(outcome)
        self.folder.files.write_json(RESULT, outcome.as_dict())

    def _goes_on(self) -> bool:
        """Return whether there is time for another trial as short as the shortest finished one."""
        done = self.search.trials()
        if self.asked.trials is not None and len(done) >= self.asked.trials:
            return False
        shortest = min((trial.seconds for trial in done if trial.state == FINISHED), default=0.0)
        return not done or self._left(done) > shortest

    def _refuse_default_alone(self) -> None:
        """There is nothing to compare yet; with more time, the same command goes on after the default."""
        done = self.search.trials()
        if len(done) > 1:
            return
        took = done[0].seconds
        raise UsageError(
            f"There was time for the default alone, which took {duration(took)} of --minutes {self.asked.minutes:g}.",
            f"Run the same command with --minutes {max(1, math.ceil(10 * took / 60))} to go on after it.",
        )

    def _left(self, done: list[Trial]) -> float:
        return self.asked.minutes * 60 - sum(trial.seconds for trial in done)

    def _try(self, trial: Any) -> None:
        """Train a trial or the rest of it, and record its end."""
        point = self.space.suggested(trial)
        base = self.bases[point.get("model", self.setting.models[0])]
        values = {"run": str(self.folder.run(trial.number)), **self.space.settings(point, base)}
        config = dataclasses.replace(base.replaced(values), given=base.given | values.keys())
        before = _seconds_so_far(Path(values["run"]))
        started = time.monotonic()
        state = self._train(trial, config, started - before)
        seconds = before + time.monotonic() - started
        score = self._score(Path(values["run"]))
        if trial.number == 0 and (state != FINISHED or score is None):
            raise Diverged("The default training diverged: there is nothing to compare with.", "Try a lower --lr.")
        state = FAILED if score is None and state == FINISHED else state
        self.search.tell(trial, state, score, seconds)
        self._tell(trial.number, state, score, seconds)

    def _train(self, trial: Any, config: Config, started: float) -> str:
        from whet.training.run import train_run

        run = Path(config.run.run or "")
        if ended := _ended(run):
            return ended
        left = self._left(self.search.trials())
        # The default is never stopped: without it there is nothing to compare with.
        deadline = started + left if trial.number else None
        watcher = _Watcher(trial, deadline, Rule(self.metric, self.higher))
        try:
            train_run(config.data.source, config, on_event=watcher.on_event)
        except Stopped as stop:
            return {"pruned": PRUNED, "stopped": STOPPED}[stop.reason]
        except Diverged:
            return FAILED
        return FINISHED

    def _score(self, run: Path) -> float | None:
        record = shipped_evaluation(RunFolder(run).records())
        return None if record is None else Rule(self.metric, self.higher).score(record)

    def _tell(self, number: int, state: str, score: float | None, seconds: float) -> None:
        shown = "" if score is None else f"  {self.metric} {score:.4f}"
        how = "" if state == FINISHED else f"  {state}"
        left = max(0.0, self._left(self.search.trials()))
        name = self.folder.run(number).name
        self.echo(f"{name:<9}{shown}{how}  {duration(seconds)}, {duration(left)} left")

    def _make_room(self) -> None:
        """Delete checkpoints of finished trials, and all models but those of the default and the best."""
        from whet.experiments.measure import winner_of

        done = self.search.trials()
        kept = {0, winner_of(done, higher=self.higher).number}
        for trial in done:
            run = RunFolder(self.folder.run(trial.number))
            shutil.rmtree(run.checkpoints, ignore_errors=True)
            if trial.number not in kept:
                shutil.rmtree(run.model, ignore_errors=True)

    def _outcome(self) -> Outcome:
        from whet.experiments import measure

        done = self.search.trials()
        winner = measure.winner_of(done, higher=self.higher)
        task = self.setting.examples.task.kind
        metric = score_metric(self.metric, task)
        names = [self.folder.run(0).name]
        answers = [measure.answers(self.folder, names[0], self.default.data, self.default, metric)]
        found, better = None, False
        if winner.number:
            names.append(self.folder.run(winner.number).name)
            answers.append(measure.answers(self.folder, names[1], self.default.data, self.default, metric))
            found, better = measure.beside_default(names[1], answers[0], answers[1], metric)
        held_out = tuple(measure.measured(name, one, metric) for name, one in zip(names, answers, strict=True))
        shipped = names[-1] if better else names[0]
        rows = len(answers[0].labels)
        return Outcome(
            metric=metric,
            higher_is_better=self.higher,
            held_out_rows=rows,
            held_out_from=self.folder.asked["held_out"],
            trials=tuple(self._line(trial) for trial in done),
            held_out=held_out,
            p_value=found.test.p_value if found and found.test else None,
            shipped=shipped,
            sentence=measure.sentence_of(len(done) - 1, shipped, held_out[0], metric, rows, found),
            importance=self.search.importance(),
            seconds=round(sum(trial.seconds for trial in done), 1),
        )

    def _line(self, trial: Trial) -> TrialLine:
        run = RunFolder(self.folder.run(trial.number))
        flat = run.config.flat()
        return TrialLine(
            name=run.name,
            state=trial.state,
            score=trial.score,
            seconds=trial.seconds,
            settings={name: flat[name] for name in self.space.names},
        )

    def _write_page(self, outcome: Outcome) -> None:
        from whet.experiments.page import write_page

        write_page(self.folder, outcome, self.folder.path / PAGE)


class _Watcher:
    """Follows the run of a trial, and stops it if others were better at the same position or the time is up."""

    def __init__(self, trial: Any, deadline: float | None, rule: Rule) -> None:
        self._trial, self._deadline, self._rule = trial, deadline, rule

    def on_event(self, event: Any, job: Job) -> None:
        if isinstance(event, Evaluation) and event.split == "validation":
            self._judge(event, job.plan.total_steps)
        if self._deadline is not None and not isinstance(event, Record) and time.monotonic() > self._deadline:
            raise Stopped("stopped")

    def _judge(self, record: Evaluation, total: int) -> None:
        score = self._rule.score(record)
        place = round(PLACES * record.step / total)
        if score is None or place in self._trial.storage.get_trial(self._trial._trial_id).intermediate_values:
            return
        self._trial.report(score, place)
        if record.step < total and self._trial.number and self._trial.should_prune():
            raise Stopped("pruned")


def _ended(run: Path) -> str:
    """Return how a trial's run ended if the search does not know yet; empty if it can continue."""
    records = RunFolder(run).records()
    last = records[-1] if records else None
    states = {"pruned": PRUNED, "stopped": STOPPED, "diverged": FAILED}
    return states.get(last.reason, "") if isinstance(last, End) else ""


def _seconds_so_far(run: Path) -> float:
    """Return the time of a trial before its interruption."""
    seen = [record.seconds for record in RunFolder(run).all_records() if isinstance(record, Step | End)]
    return max(seen, default=0.0)
