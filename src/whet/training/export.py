"""What a run writes besides its records: who it is at the start; model, predictions and report at the end."""

from __future__ import annotations

import copy
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
from whet.models.pretrained import save_model
from whet.records import Evaluation, Record
from whet.runs.decisions import FILE, Decisions
from whet.runs.folder import SUMS, RunFolder, files_of, sum_of
from whet.runs.report.model_card import model_card
from whet.training.checkpoints import CheckpointFolder
from whet.training.evaluation import Evaluator
from whet.training.setup import Job
from whet.utils.background import Beside
from whet.utils.files import sync_file, sync_folder, sync_tree

if TYPE_CHECKING:
    from whet.distributed.group import Ranks

Array = np.ndarray[Any, Any]


def finish(
    folder: RunFolder,
    job: Job,
    checkpoints: CheckpointFolder,
    evaluator: Evaluator,
    append: Callable[[Record], None],
) -> None:
    """The best step's weights, and with them model and predictions, and a last look at the test rows.

    The last checkpoint may still be on its way to the disk; the best one, if it is another, is there: a save begins
    when the one before it is whole. Interrupted anywhere in here, it is all done again.
    """
    best = job.state.best_step if job.state.best_step >= 0 else job.state.step
    with _cleaned(folder, job.ranks), Beside("whet-model") as beside:
        with ExitStack() as proven:
            if best != job.state.step:
                job.stepper.load(proven.enter_context(checkpoints.reading(best, weights_only=True)).tensors)
            model = job.stepper.finished_model()
            written = None
            if job.ranks.is_main:
                written = beside.submit(_write_beside, folder, _on_its_own(model), job.prepared.tokenizer)
            record, logits = _last_look(job, evaluator, best)
        job.ranks.meet()  # where the weights are not proven for one process, what all computed counts for none
        if record is not None:
            append(record)
        if written is None:
            return
        with _disk_faults(folder.path):
            write_predictions(folder.path / "predictions.parquet", job, logits)
            sums = written.result() | _write_temperature(folder, job, logits)
            _put_model_in_place(folder, sums)
            sync_folder(folder.path)


@contextmanager
def _cleaned(folder: RunFolder, ranks: Ranks) -> Iterator[None]:
    """A model that did not come to its place goes: it takes room, and its weights may not be proven."""
    try:
        yield
    except BaseException:
        if ranks.is_main:
            shutil.rmtree(folder.unfinished_model, ignore_errors=True)
        raise


def _on_its_own(model: Any) -> Any:
    """The same weights with a configuration that no other thread changes; a packed forward pass does so."""
    found = copy.copy(model)
    found.config = copy.deepcopy(model.config)
    return found


def _last_look(job: Job, evaluator: Evaluator, best: int) -> tuple[Evaluation | None, dict[str, Array]]:
    """The record of the test rows, if they have labels, and the logits of every split that is told about."""
    record, logits = None, {}
    if "validation" in job.prepared.tokens:
        logits["validation"] = evaluator.validation_logits(best)
    if job.prepared.labels("test") is not None:
        record, logits["test"] = evaluator.measure("test", job.state)
    elif "test" in job.prepared.tokens:
        logits["test"] = evaluator.logits("test")
    return record, logits


@contextmanager
def _disk_faults(path: Path) -> Iterator[None]:
    """Every library has its own error for a full disk."""
    from safetensors import SafetensorError

    try:
        yield
    except Exception as error:
        if not isinstance(error, OSError | SafetensorError) and type(error) is not Exception:  # tokenizers has no own
            raise
        raise EnvironmentFault(
            f"The model could not be written to {str(path)!r}: {getattr(error, 'strerror', None) or error}.",
            "The checkpoints that were completed are whole. Make room there and run the same command again.",
        ) from None


def _write_beside(folder: RunFolder, model: Any, tokenizer: Any) -> dict[str, str]:
    """All of model/ but its card, under another name; the sums of the files. The test rows are looked at meanwhile."""
    scratch = folder.unfinished_model
    shutil.rmtree(scratch, ignore_errors=True)
    sums = save_model(model, tokenizer, scratch)
    sums |= {name: sum_of(file) for name, file in files_of(scratch).items() if name not in sums}
    sync_tree(scratch)
    return sums


def _write_temperature(folder: RunFolder, job: Job, logits: dict[str, Array]) -> dict[str, str]:
    """whet.json: what makes the model's probabilities right on the validation rows. The sum of the file."""
    labels = job.prepared.labels("validation")
    if labels is None or "validation" not in logits or job.prepared.examples.task.kind == "regression":
        return {}
    temperature, why = usable_temperature(job.prepared.examples.task.kind, logits["validation"], labels)
    found = Decisions(temperature, {"split": "validation", "rows": len(labels), "why": why})
    path = folder.unfinished_model / FILE
    path.write_text(found.to_json(), encoding="utf-8")
    sync_file(path)
    return {FILE: sum_of(path)}


def _put_model_in_place(folder: RunFolder, sums: dict[str, str]) -> None:
    """model/ with its card, whole or not at all."""
    scratch, target = folder.unfinished_model, folder.model
    if target.is_symlink():
        raise ArtifactError(f"{str(target)!r} is a link, which a run folder never holds.")
    card = scratch / "README.md"
    card.write_text(model_card(folder), encoding="utf-8")
    sync_file(card)
    sync_folder(scratch)
    folder.write_json(SUMS, {**sums, card.name: sum_of(card)})
    shutil.rmtree(target, ignore_errors=True)
    os.replace(scratch, target)


def write_predictions(path: Path, job: Job, logits: dict[str, Array]) -> None:
    """Every validation and test row in input order: text, label, what was predicted and how surely."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = [_predictions_table(job, split, values) for split, values in logits.items()]
    if not tables:
        return
    scratch = path.with_name(f".{path.name}.tmp")
    pq.write_table(pa.concat_tables(tables), scratch)
    sync_file(scratch)
    os.replace(scratch, path)


def _predictions_table(job: Job, split: str, logits: Array) -> Any:
    import pyarrow as pa

    task, rows = job.prepared.examples.task, job.prepared.examples.rows[split]
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
        columns["probability"] = pa.nulls(len(rows), pa.float32())
    else:
        columns["predicted"] = pa.array(answers.astype(np.int64))
        columns["probability"] = pa.array(likely.max(axis=1).astype(np.float32))
    columns["logits"] = pa.array(list(logits), pa.list_(pa.float32()))
    return pa.table(columns)
