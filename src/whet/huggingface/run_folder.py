"""The run folder of a Trainer: a callback that writes the records for `whet verdict`, `report` and `watch`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from transformers.trainer_callback import TrainerCallback

from whet.config import make_config, to_toml
from whet.data.tokens.facts import Alphabet, row_hashes, unknown_tokens
from whet.data.tokens.table import Tokens
from whet.engine.notices import notice
from whet.engine.optimizer import SHAPES
from whet.errors import Diverged, UsageError
from whet.huggingface.fast_evaluation import hardware_of, logits_of
from whet.metrics.scores import MAIN_METRIC, higher_is_better, predicted, score
from whet.records import End, Evaluation, Finding, Record, Resume, Save, Start, Step, now
from whet.runs.folder import CONFIG, RECORDS, RunFolder
from whet.runs.report.html import write_report_quietly
from whet.runs.verdict.judge import early_verdict
from whet.task import Task, labels_fit, task_of
from whet.training.choice import Rule
from whet.training.evaluation import confusion_matrix, probe_rows
from whet.training.metadata import describe_environment, start_of
from whet.utils.memory import peak_memory_mb

RECORDS_PER_RUN = 100
PROBE_ROWS = 500
TIMINGS = ("runtime", "samples_per_second", "steps_per_second", "preparation_time")


class RunFolderCallback(TrainerCallback):  # type: ignore[misc]
    """Records a training without changing it; an error of its own ends only the recording."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.folder: RunFolder | None = None
        self._held = ExitStack()
        self._task: Task | None = None
        self._rule = Rule("loss", higher_is_better=False)
        self._best: Evaluation | None = None
        self._evaluated = -1
        self._grad_norm: float | None = None
        self._logged: tuple[int, float, float] = (0, 0.0, 0.0)
        """Step, sum of the losses and seconds at the last step record."""
        self._every = self._rows_a_step = 1
        self._started = 0.0

    # Events ------------------------------------------------------------------------------------------

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        with self._quietly():
            self._open(args, state)

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        trainer = self.trainer
        if self.folder is None or (state.global_step % self._every and state.global_step < state.max_steps):
            return
        with self._quietly():
            fast = trainer._fast
            total = trainer._total_loss_scalar + float(trainer._tr_loss)
            if fast is not None:
                total += float(fast.stepper.window.loss) * trainer.accelerator.gradient_accumulation_steps
            steps = max(1, state.global_step - self._logged[0])
            seconds = time.monotonic() - self._started
            record = Step(
                step=state.global_step,
                epoch=round(float(state.epoch or 0.0), 6),
                loss=(total - self._logged[1]) / steps,
                learning_rate=trainer._get_learning_rate(),
                grad_norm=float(fast.stepper.window.grad_norm) if fast is not None else self._grad_norm,
                seconds=round(seconds, 3),
                rows_per_second=round(steps * self._rows_a_step / max(seconds - self._logged[2], 1e-9), 2),
                memory_mb=round(peak_memory_mb(args.device), 1),
            )
            self._logged = (state.global_step, total, seconds)
            self._append(record)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:
        self._grad_norm = (logs or {}).get("grad_norm", self._grad_norm)

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **others: Any) -> None:
        trainer = self.trainer
        # With several evaluation sets, the curve is that of the first.
        if not trainer.is_in_train or self.folder is None or self._evaluated == state.global_step:
            return
        self._evaluated = state.global_step
        with self._quietly():
            self._append(self._evaluation(state, metrics or {}, self._probe_loss()))
            finding = early_verdict(self.folder.records(), state.global_step)
            if finding is not None:
                self._append(finding)

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        with self._quietly():
            reason = "best" if state.best_global_step == state.global_step else "schedule"
            reason = "interrupted" if self.trainer._told else reason
            self._append(Save(step=state.global_step, path=f"checkpoint-{state.global_step}", reason=reason))

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        early = state.global_step < state.max_steps and self._out_of_patience()
        self._end("patience" if early else "finished")

    def ended_by(self, error: BaseException | None) -> None:
        """Close the folder, however the training ended."""
        if isinstance(error, Diverged):
            self._end("diverged")
        self._held.close()
        self.folder = None

    def note_path(self, path: str, why: str) -> None:
        """Record which path trains, and why."""
        with self._quietly():
            if self.folder is not None:
                trainer, network = self.trainer, SimpleNamespace(path=path, why=why)
                known = describe_environment(hardware_of(trainer), network)  # type: ignore[arg-type]
                whole = {**known, "processes": trainer.args.world_size, "path_history": trainer.path}
                self.folder.write_json("environment.json", whole)

    def note_finding(self, finding: Finding) -> None:
        """Record a finding of the engine."""
        with self._quietly():
            self._append(finding)

    # Parts -------------------------------------------------------------------------------------------

    def _open(self, args: Any, state: Any) -> None:
        self._held.close()
        trainer = self.trainer
        self.folder = None
        self._every = max(1, state.max_steps // RECORDS_PER_RUN)
        self._started, self._evaluated, self._best = time.monotonic(), -1, None
        self._logged = (state.global_step, 0.0, 0.0)
        self._rows_a_step = trainer.get_total_train_batch_size(args)
        if not getattr(args, "record_run", True) or not state.is_world_process_zero:
            return
        path = Path(trainer._get_output_dir(trainer._trial))
        path = path / "_whet" if args.push_to_hub else path  # a push leaves such folders out
        path.mkdir(parents=True, exist_ok=True)
        folder = RunFolder(path)
        self._held.enter_context(folder.locked())
        origin = trainer._resumed_from
        within = origin is not None and Path(origin).resolve().parent == Path(args.output_dir).resolve()
        resuming = within and (path / RECORDS).is_file()
        if resuming:
            folder.drop_torn_line()
        else:
            (path / RECORDS).unlink(missing_ok=True)
            folder.write_text(CONFIG, _config(trainer))
        self.folder = folder
        start = self._describe(state)
        if start is not None and not resuming:
            self._append(start)
        if resuming:
            self._append(Resume(step=state.global_step, path=Path(origin).name, time=now()))
            self._append(Save(step=state.global_step, path=Path(origin).name))

    def _describe(self, state: Any) -> Start | None:
        """Write data.json with what a Trainer knows of the data, and return the start record."""
        trainer, args = self.trainer, self.trainer.args
        sets = {"train": trainer.train_dataset}
        rows = {"train": trainer.num_examples(trainer.callback_handler.train_dataloader)}
        if args.eval_strategy != "no" and (judged := trainer._evaluation_sets()):
            sets["validation"] = judged[0]
            if hasattr(judged[0], "__len__"):
                rows["validation"] = len(judged[0])
        tables = {name: table for name, each in sets.items() if (table := trainer._tokens_of(each)) is not None}
        labels = {name: each.labels for name, each in tables.items() if each.labels is not None}
        self._task = task = task_of(getattr(trainer.model, "config", None), labels.get("train"))
        assert self.folder is not None
        content: dict[str, Any] = {
            "origin": {"files": [], "split": "given to the Trainer"},
            "fingerprint": tables["train"].fingerprint if "train" in tables else "",
            "task": task.kind if task else "",
            "labels": list(task.labels) if task else [],
            "rows": rows,
        }
        self.folder.write_json("data.json", content)
        if task is None:
            return None
        metric = (args.metric_for_best_model or MAIN_METRIC[task.kind]).removeprefix("eval_")
        better = args.greater_is_better if args.metric_for_best_model else None
        self._rule = Rule(metric, higher_is_better(metric) if better is None else bool(better))
        return start_of(
            task,
            {name: each for name, each in labels.items() if labels_fit(each, task)},
            total_steps=state.max_steps,
            steps_per_epoch=-(-state.max_steps // max(1, state.num_train_epochs)),
            rows=rows,
            metric=metric,
            higher_is_better=self._rule.higher_is_better,
            evaluations=self._evaluations(state),
            overlap=_overlap(tables.get("train"), tables.get("validation")),
            unknown=_unknown(tables.get("train"), trainer.processing_class),
        )

    def _evaluations(self, state: Any) -> int:
        """Return the number of planned evaluations, as far as the strategy gives it."""
        strategy = str(getattr(self.trainer.args.eval_strategy, "value", self.trainer.args.eval_strategy))
        if strategy == "epoch":
            return int(state.num_train_epochs)
        return int(-(-state.max_steps // state.eval_steps)) if strategy == "steps" else 0

    def _evaluation(self, state: Any, metrics: Mapping[str, Any], probe: float | None) -> Evaluation:
        """Return whet's scores of the task, overridden by those of `compute_metrics`."""
        logits, labels = self.trainer._last_logits or (None, None)
        own: dict[str, float] = {}
        confusion: list[list[int]] = []
        task = self._task
        if task is not None and logits is not None and labels is not None and _scorable(logits, labels, task):
            own = {name: float(value) for name, value in score(task.kind, logits, labels).items()}
            if task.kind in ("binary", "multiclass"):
                confusion = confusion_matrix(labels, np.asarray(predicted(task.kind, logits)), len(task.labels))
        losses = [float(value) for name, value in metrics.items() if name.endswith("_loss")]
        record = Evaluation(
            step=state.global_step,
            epoch=round(float(state.epoch or 0.0), 6),
            split="validation",
            loss=losses[0] if losses else float("nan"),
            metrics={**own, **_numbers(metrics)},
            rows=0 if labels is None else len(labels),
            probe_loss=probe,
            confusion=confusion,
            seconds=float(metrics.get("eval_runtime", 0.0)),
        )
        if self._rule.replaces(record, self._best):
            record = self._best = replace(record, best=True)
        return record

    def _probe_loss(self) -> float | None:
        """Return the loss on a fixed sample of training rows in evaluation mode, comparable with the evaluation's."""
        fast = self.trainer._fast
        if fast is None:
            return None
        tokens = fast.table.tokens
        rows = probe_rows(len(tokens), PROBE_ROWS, self.trainer.args.seed)
        logits = logits_of(self.trainer, fast.network, tokens, rows)
        return float(fast.loss.mean(logits, tokens.labels[rows]))

    def _out_of_patience(self) -> bool:
        callbacks = self.trainer.callback_handler.callbacks
        limits = [(getattr(each, "early_stopping_patience", None), each) for each in callbacks]
        return any(limit is not None and each.early_stopping_patience_counter >= limit for limit, each in limits)

    def _append(self, record: Record) -> None:
        if self.folder is not None:
            self.folder.append(record)

    def _end(self, reason: str) -> None:
        with self._quietly():
            if self.folder is None:
                return
            state = self.trainer.state
            best = -1 if state.best_global_step is None else int(state.best_global_step)
            seconds = round(time.monotonic() - self._started, 3)
            self._append(End(step=state.global_step, reason=reason, best_step=best, seconds=seconds))
            write_report_quietly(self.folder, notice)

    @contextmanager
    def _quietly(self) -> Any:
        try:
            yield
        except Exception as error:  # a full disk or another run's folder must not stop the training
            self._held.close()
            self.folder = None
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            notice(f"The run folder is no longer written, and training goes on without it: {reason}")


def _config(trainer: Any) -> str:
    """Return the settings under whet's names, as far as there are any."""
    args = trainer.args
    schedule = str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)).removesuffix("_with_warmup")
    words: dict[str, Any] = {
        "model": str(getattr(getattr(trainer.model, "config", None), "_name_or_path", "") or "model"),
        "recipe": "course",
        "folds": 0,
        "epochs": float(args.num_train_epochs),
        "max_steps": args.max_steps if args.max_steps > 0 else None,
        "batch_size": trainer._train_batch_size * args.world_size,
        "accumulate": args.gradient_accumulation_steps,
        "learning_rate": float(args.learning_rate),
        "warmup": float(args.warmup_steps),
        "weight_decay": float(args.weight_decay),
        "clip": float(args.max_grad_norm or 0.0),
        "seed": args.seed,
        "label_smoothing": args.label_smoothing_factor,
        "eval_batch_size": args.per_device_eval_batch_size,
        "run": args.output_dir,
    }
    if schedule in SHAPES:
        words["schedule"] = schedule
    try:
        return to_toml(make_config(words))
    except UsageError:  # values that whet does not support
        return to_toml(make_config({name: words[name] for name in ("model", "run")}))


def _scorable(logits: Any, labels: Any, task: Task) -> bool:
    if not isinstance(logits, np.ndarray) or not isinstance(labels, np.ndarray) or logits.ndim != 2:
        return False
    return logits.shape == (len(labels), task.outputs) and labels_fit(labels, task)


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the scores among a Trainer's metrics, without the prefix and without timings."""
    return {
        name.removeprefix("eval_"): float(value)
        for name, value in metrics.items()
        if isinstance(value, int | float) and name not in ("epoch", "eval_loss") and not name.endswith(TIMINGS)
    }


def _overlap(train: Tokens | None, other: Tokens | None) -> float:
    """Return the share of evaluation rows with the tokens of a training row."""
    if train is None or other is None or not len(other) or _has_empty(train) or _has_empty(other):
        return 0.0
    return round(float(np.isin(row_hashes(other, len(other)), row_hashes(train, len(train))).mean()), 6)


def _unknown(tokens: Tokens | None, tokenizer: Any) -> float:
    """Return the share of tokens for text that the tokenizer cannot represent."""
    if tokens is None or not hasattr(tokenizer, "all_special_ids") or _has_empty(tokens):
        return 0.0
    read, unknown, _ = unknown_tokens(tokens, Alphabet.of(tokenizer))
    return round(unknown / max(1, read), 6)


def _has_empty(tokens: Tokens) -> bool:
    return not tokens.lengths.all()
