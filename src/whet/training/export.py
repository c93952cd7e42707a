"""Writes the results of a run: model, predictions and report."""

from __future__ import annotations

import copy
import dataclasses
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from whet.errors import ArtifactError, EnvironmentFault
from whet.metrics.calibration import usable_temperature
from whet.metrics.scores import predicted, probabilities
from whet.models.lora import has_adapters, merged, save_adapter
from whet.models.pretrained import base_of, save_model
from whet.records import Evaluation, Record
from whet.runs.decisions import FILE, Decisions
from whet.runs.folder import SUMS, RunFolder, files_of, sum_of
from whet.runs.report.model_card import model_card
from whet.training.baselines import write_baselines
from whet.training.checkpoints import CheckpointFolder
from whet.training.choice import Choice, choose
from whet.training.evaluation import Evaluator
from whet.training.setup import Job, Prepared
from whet.utils.arrays import Array
from whet.utils.background import BackgroundTasks
from whet.utils.files import replacing, sync_file, sync_folder, sync_tree

if TYPE_CHECKING:
    from whet.data.example_files import SplitRows
    from whet.distributed.group import DistributedContext
    from whet.task import Task
    from whet.training.folds import Pooled


def finish(
    folder: RunFolder,
    job: Job,
    checkpoints: CheckpointFolder,
    evaluator: Evaluator,
    append: Callable[[Record], None],
    held_out: Pooled | None = None,
    choice: Choice | None = None,
) -> None:
    """Load the best step's weights, evaluate the test rows, and write model, predictions and report.

    The last checkpoint may still be being written, but the best one is complete if it is another: a save starts after
    the previous one has ended. If this is interrupted, it is repeated as a whole. With folds, `held_out` replaces the
    validation rows, and their `choice` replaces the one made here.
    """
    with _delete_partial_model_on_error(folder, job.ranks), BackgroundTasks("whet-model") as beside:
        with ExitStack() as proven:
            averaged = None
            if choice is None:
                choice, averaged = _choose(folder, job, evaluator, append)
            if choice.averaged:
                job.stepper.swap_average()
            elif choice.step != job.state.step:
                job.stepper.load(proven.enter_context(checkpoints.reading(choice.step, weights_only=True)).tensors)
            model = job.stepper.finished_model()
            written = None
            if job.ranks.is_main:
                written = beside.submit(_save_unfinished, folder, model, _copy_to_save(model), job.prepared)
            record, logits = _predict_final_splits(job, evaluator, choice.step, averaged if choice.averaged else None)
        job.ranks.barrier()  # barrier: if one rank's weights fail verification, no rank uses the results
        if record is not None:
            append(record)
        if written is None:
            return
        with _disk_faults(folder.path):
            write_predictions(folder.path / "predictions.parquet", job, logits, held_out)
            for found in write_baselines(folder, job, logits, evaluator.check_interrupt, held_out):
                append(found)
            sums = written.result() | _write_temperature(folder, job, logits, held_out)
            _put_model_in_place(folder, sums)
            sync_folder(folder.path)


@contextmanager
def _delete_partial_model_on_error(folder: RunFolder, ranks: DistributedContext) -> Iterator[None]:
    """Delete a partly written model on error: it takes room, and its weights may be unverified."""
    try:
        yield
    except BaseException:
        if ranks.is_main:
            shutil.rmtree(folder.unfinished_model, ignore_errors=True)
            shutil.rmtree(folder.unfinished_adapter, ignore_errors=True)
        raise


def _copy_to_save(model: Any) -> Any:
    """Return the same module with its own copy of the configuration, which a packed forward pass changes; with
    adapters merged into its weights."""
    if has_adapters(model):
        return merged(model)
    found = copy.copy(model)
    found.config = copy.deepcopy(model.config)
    return found


def _choose(
    folder: RunFolder, job: Job, evaluator: Evaluator, append: Callable[[Record], None]
) -> tuple[Choice, Array | None]:
    """Choose the weights to ship; also return the validation logits of the averaged weights if they are a candidate."""
    candidates: list[Evaluation] = []
    logits = None
    if job.stepper.average is not None and "validation" in job.prepared.tokens:
        record, logits = evaluator.averaged(job.state)
        candidates = [record]
    rule, step = job.plan.rule, job.state.step
    found = choose([*folder.records(), *candidates], rule, step) if job.ranks.is_main else None
    choice: Choice = job.ranks.broadcast_object(found)
    if job.stepper.average is not None and not candidates:  # no evaluation shows that the last step alone is better
        choice = Choice(step, True, "")
    for record in candidates:
        append(dataclasses.replace(record, best=choice.averaged))
        append(choice.finding(step))
    return choice, logits


def _predict_final_splits(
    job: Job, evaluator: Evaluator, best: int, averaged: Array | None
) -> tuple[Evaluation | None, dict[str, Array]]:
    """Return the record of the test rows, if they have labels, and the logits of all final splits."""
    record, logits = None, {}
    if "validation" in job.prepared.tokens:
        logits["validation"] = evaluator.validation_logits(best) if averaged is None else averaged
    if job.prepared.labels("test") is not None:
        record, logits["test"] = evaluator.measure("test", job.state)
    elif "test" in job.prepared.tokens:
        logits["test"] = evaluator.logits("test")
    return record, logits


@contextmanager
def _disk_faults(path: Path) -> Iterator[None]:
    """Turn each library's error for a full disk into EnvironmentFault."""
    from safetensors import SafetensorError

    try:
        yield
    except Exception as error:
        # tokenizers has no error class of its own
        if not isinstance(error, OSError | SafetensorError) and type(error) is not Exception:
            raise
        raise EnvironmentFault(
            f"The model could not be written to {str(path)!r}: {getattr(error, 'strerror', None) or error}.",
            "The checkpoints that were completed are whole. Make room there and run the same command again.",
        ) from None


def _save_unfinished(folder: RunFolder, trained: Any, model: Any, prepared: Prepared) -> dict[str, str]:
    """Save model/ without its card under a temporary name, while the test rows are evaluated; return the files'
    SHA-256. The adapters of the trained module, if it has any, are saved beside it."""
    if has_adapters(trained):
        config, scratch = prepared.config.model, folder.unfinished_adapter
        shutil.rmtree(scratch, ignore_errors=True)
        save_adapter(trained, scratch, base_of(config), config.revision)
        sync_tree(scratch)
    scratch = folder.unfinished_model
    shutil.rmtree(scratch, ignore_errors=True)
    sums = save_model(model, prepared.tokenizer, scratch)
    sums |= {name: sum_of(file) for name, file in files_of(scratch).items() if name not in sums}
    sync_tree(scratch)
    return sums


def _write_temperature(
    folder: RunFolder, job: Job, logits: dict[str, Array], held_out: Pooled | None
) -> dict[str, str]:
    """Write whet.json with the temperature fitted on validation or held-out rows; return its SHA-256."""
    kind = job.prepared.examples.task.kind
    measured: Array | None
    if held_out is not None:
        measured, labels = held_out.logits, job.prepared.labels("train")
        labels = None if labels is None else labels[held_out.rows]
    else:
        measured, labels = logits.get("validation"), job.prepared.labels("validation")
    if labels is None or measured is None or kind == "regression":
        return {}
    temperature, why = usable_temperature(kind, measured, labels)
    about = {"split": "validation" if held_out is None else "held-out", "rows": len(labels), "why": why}
    path = folder.unfinished_model / FILE
    path.write_text(Decisions(temperature, about).to_json(), encoding="utf-8")
    sync_file(path)
    return {FILE: sum_of(path)}


def _put_model_in_place(folder: RunFolder, sums: dict[str, str]) -> None:
    """Add the card and rename the folder to model/; before that the adapters' to adapter/."""
    scratch, target = folder.unfinished_model, folder.model
    for place in (folder.adapter, target):
        if place.is_symlink():
            raise ArtifactError(f"{str(place)!r} is a link, which a run folder never holds.")
    if folder.unfinished_adapter.is_dir():
        shutil.rmtree(folder.adapter, ignore_errors=True)
        os.replace(folder.unfinished_adapter, folder.adapter)
    card = scratch / "README.md"
    card.write_text(model_card(folder), encoding="utf-8")
    sync_file(card)
    sync_folder(scratch)
    folder.write_json(SUMS, {**sums, card.name: sum_of(card)})
    shutil.rmtree(target, ignore_errors=True)
    os.replace(scratch, target)


def write_predictions(path: Path, job: Job, logits: dict[str, Array], held_out: Pooled | None = None) -> None:
    """Write all validation and test rows in input order: text, label, prediction and probability.

    Rows held out by folds count as validation rows; the column `fold` has the fold's number, from 1.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    task, rows = job.prepared.examples.task, job.prepared.examples.rows
    tables = [_predictions_table(task, split, rows[split], values) for split, values in logits.items()]
    if held_out is not None:
        first = _predictions_table(task, "validation", rows["train"].taken(held_out.rows), held_out.logits)
        first = first.append_column("fold", pa.array(held_out.folds + 1, pa.int64()))
        tables = [first, *(table.append_column("fold", pa.nulls(len(table), pa.int64())) for table in tables)]
    if not tables:
        return
    with replacing(path) as scratch:
        pq.write_table(pa.concat_tables(tables), scratch)


def _predictions_table(task: Task, split: str, rows: SplitRows, logits: Array) -> Any:
    import pyarrow as pa

    columns: dict[str, Any] = {
        "split": pa.array([split] * len(rows)),
        "row": rows.table.column("row"),
        "text": rows.table.column("text").cast(pa.large_string()),
    }
    if "pair" in rows.column_names:
        columns["pair"] = rows.table.column("pair").cast(pa.large_string())
    label_type = {"multilabel": pa.list_(pa.float32()), "regression": pa.float32()}.get(task.kind, pa.int64())
    columns["label"] = pa.array(rows.column("label") or [None] * len(rows), label_type)
    answers, likely = np.asarray(predicted(task.kind, logits)), np.asarray(probabilities(task.kind, logits))
    if task.kind == "multilabel":
        columns["predicted"] = pa.array(list(answers.astype(np.float32)), label_type)
        columns["probability"] = pa.array(likely.max(axis=1).astype(np.float32))
    elif task.kind == "regression":
        columns["predicted"] = pa.array(answers.reshape(-1).astype(np.float32))
    else:
        columns["predicted"] = pa.array(answers.astype(np.int64))
        columns["probability"] = pa.array(likely.max(axis=1).astype(np.float32))
    columns["logits"] = pa.array(list(logits), pa.list_(pa.float32()))
    return pa.table(columns)
