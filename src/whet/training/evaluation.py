"""Evaluates a job: validation rows and the training probe, in evaluation mode, as one record."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from whet.data.example_files import SplitRows
from whet.data.tokens.table import Tokens
from whet.engine.logits import compute_logits, tokens_per_batch
from whet.engine.network import Rows
from whet.errors import Diverged, Interrupted
from whet.metrics.intervals import standard_error
from whet.metrics.scores import predicted, probabilities, score
from whet.records import AVERAGED, Evaluation
from whet.training.setup import Job
from whet.utils.arrays import Array
from whet.utils.memory import no_room_to_evaluate_together
from whet.utils.signals import STOPPED_ELSEWHERE
from whet.utils.text import SHOWN_CHARACTERS

if TYPE_CHECKING:
    from whet.distributed.group import DistributedContext
    from whet.training.plan import State

T = TypeVar("T")
LOCKSTEP_ROWS = 32
"""Rows per batch of a sharded model: batches by tokens could give the processes different numbers of passes."""


class Evaluator:
    """Called by the loop with the state; also evaluates other splits after training."""

    def __init__(
        self,
        job: Job,
        check_interrupt: Callable[[], None] = lambda: None,
        on_smaller_batch: Callable[[int], None] = lambda rows: None,
    ) -> None:
        self.job, self.check_interrupt, self.on_smaller_batch = job, check_interrupt, on_smaller_batch
        config = job.prepared.config
        self.batch_rows = config.evaluate.eval_batch_size
        self.probe = probe_rows(len(job.feed.tokens), config.evaluate.probe_rows, config.train.seed)
        self._validation: dict[int, Array] = {}
        """Logits by step: of the last evaluation and of the best one before it."""

    def __call__(self, state: State) -> Evaluation:
        started = time.monotonic()
        batch_rows = self.batch_rows
        record, found = self.measure("validation", state)
        self._validation = {step: own for step, own in self._validation.items() if step == state.best_step}
        if self.batch_rows == batch_rows:
            self._validation[state.step] = found
        logits = self.logits("train", self.probe)
        labels = self.job.prepared.labels("train")
        assert labels is not None
        probe_loss = self.job.loss.mean(logits, labels[self.probe]) if len(self.probe) else None
        record = _replaced(record, probe_loss=probe_loss, seconds=round(time.monotonic() - started, 3))
        # The best step must be decided by one number, even if processors differ in the last bit.
        return self.job.ranks.broadcast_object(record)  # type: ignore[no-any-return]

    def validation_logits(self, step: int) -> Array:
        """Return the validation logits of this step, whose weights the model has: stored ones, or computed."""
        found = self._validation.get(step)
        # A rank may have dropped its stored logits, so all ranks compute together.
        if self.job.ranks.any_rank(found is None) or found is None:
            return self.logits("validation")
        return found

    def averaged(self, state: State) -> tuple[Evaluation, Array]:
        """Return the record and the validation logits of the averaged weights; the model keeps its weights."""
        started = time.monotonic()
        with self.job.stepper.averaged():
            record, logits = self.measure("validation", state)
        record = _replaced(record, split=AVERAGED, seconds=round(time.monotonic() - started, 3))
        return self.job.ranks.broadcast_object(record), logits

    def measure(self, split: str, state: State) -> tuple[Evaluation, Array]:
        """Return the record of one split and its logits in input order."""
        logits, labels = self.logits(split), self.job.prepared.labels(split)
        assert labels is not None
        _refuse_not_finite(logits, split, state.step)
        epoch = round(state.step / self.job.feed.order.steps_per_epoch, 6)
        rows = self.job.prepared.examples.rows[split]
        return evaluation_record(self.job, logits, labels, split, rows, state.step, epoch), logits

    def logits(self, split: str, rows: Array | None = None) -> Array:
        """Return logits in input order; with several processes each computes its share of the rows."""
        tokens, ranks = self.job.prepared.tokens[split], self.job.ranks
        if not self.job.stepper.lockstep:
            return compute_logits_on_all_ranks(ranks, tokens, rows, lambda own: self._compute(tokens, own))

        def compute(own: Array | None) -> Array:
            with ranks.translate_connection_errors(computing=True):
                return self._compute(tokens, own, check_interrupt=lambda: None)

        return compute_logits_on_all_ranks(ranks, tokens, rows, compute, lockstep=True)

    def _compute(self, tokens: Tokens, rows: Array | None, check_interrupt: Callable[[], None] | None = None) -> Array:
        lockstep = self.job.stepper.lockstep
        return compute_logits(
            self.job.network,
            tokens,
            self.job.hardware,
            batch_rows=min(self.batch_rows, LOCKSTEP_ROWS) if lockstep else self.batch_rows,
            batch_tokens=None if lockstep else tokens_per_batch(self.job.hardware.device),
            rows=rows,
            check_interrupt=self.check_interrupt if check_interrupt is None else check_interrupt,
            on_smaller_batch=self._take_fewer,
        )

    def _take_fewer(self, rows: int) -> None:
        """After running out of memory: the rest of the run evaluates at most `rows` rows at a time."""
        if self.job.stepper.lockstep:
            raise no_room_to_evaluate_together(rows)
        self.batch_rows = rows
        self._validation = {}  # other batches may change the last bits, and a resumed run has only these
        self.on_smaller_batch(rows)


def evaluation_record(
    job: Job, logits: Array, labels: Array, split: str, rows: SplitRows, step: int, epoch: float
) -> Evaluation:
    """Return loss and scores of these rows, and the rows with the most wrong predictions."""
    task = job.prepared.examples.task
    record = Evaluation(
        step=step,
        epoch=epoch,
        split=split,
        loss=job.loss.mean(logits, labels),
        metrics=score(task.kind, logits, labels),
        rows=len(labels),
    )
    metric = job.plan.metric
    if job.plan.steady and split == "validation" and metric in record.metrics:
        record = _replaced(record, error=standard_error(task.kind, logits, labels, metric))
    if task.kind not in ("binary", "multiclass"):
        return record
    answers = np.asarray(predicted(task.kind, logits))
    return _replaced(
        record,
        confusion=confusion_matrix(labels, answers, len(task.labels)),
        worst=_worst(rows, task.labels, np.asarray(probabilities(task.kind, logits)), labels, answers),
    )


def _worst(rows: SplitRows, names: Sequence[str], likely: Array, labels: Array, answers: Array) -> list[dict[str, Any]]:
    """Return the most wrong rows with their text, so that a page can show them without the data."""
    found: list[dict[str, Any]] = []
    for index, own in most_wrong(likely, labels):
        example = rows.row(index)
        shown: dict[str, Any] = {name: example[name][:SHOWN_CHARACTERS] for name in ("text", "pair") if name in example}
        found.append(
            {
                "row": example["row"],
                **shown,
                "label": names[labels[index]],
                "predicted": names[answers[index]],
                "probability": round(own, 6),
            }
        )
    return found


def compute_logits_on_all_ranks(
    ranks: DistributedContext,
    tokens: Tokens,
    rows: Array | None,
    compute: Callable[[Array | None], Array],
    *,
    lockstep: bool = False,
) -> Array:
    """Return logits in input order; each process computes its share of the rows.

    In lockstep all processes make the same number of passes: one with a row less repeats a row.
    """
    if ranks.world == 1:
        return compute(rows)
    chosen = np.arange(len(tokens), dtype=np.int64) if rows is None else rows
    # Dealt out by length, so that no process gets all the long rows.
    order = np.argsort(-tokens.lengths[chosen], kind="stable")
    own = order[ranks.rank :: ranks.world]
    most = -(-len(order) // ranks.world) if lockstep else len(own)
    padded = np.concatenate([own, order[: most - len(own)]])
    part = run_on_all_ranks(ranks, lambda: compute(chosen[padded]))[: len(own)]
    return ranks.gather_rows(part, own, len(chosen))  # type: ignore[no-any-return]


def run_on_all_ranks(ranks: DistributedContext, compute: Callable[[], T]) -> T:
    """Run this rank's part. If one rank got a signal to stop, all stop here."""
    stopped: Interrupted | None = None
    try:
        part = compute()
    except Interrupted as error:
        stopped = error
    if ranks.any_rank(stopped is not None):
        raise stopped or Interrupted(*STOPPED_ELSEWHERE)
    return part


def _refuse_not_finite(logits: Array, split: str, step: int) -> None:
    """Raise if logits are not finite: they would still give a class, and wrong scores without any sign."""
    bad = np.flatnonzero(~np.isfinite(logits).all(axis=1))
    if not len(bad):
        return
    error = Diverged(
        f"The model's answer to {len(bad)} of {len(logits)} {split} rows is not a finite number, after step {step}.",
        "Try --precision float32 and a tenth of the learning rate (--lr); if it was so at the start, another --model.",
    )
    error.step, error.rows, error.split = step, bad[:100].tolist(), split  # type: ignore[attr-defined]
    raise error


def _replaced(record: Evaluation, **changes: Any) -> Evaluation:
    import dataclasses

    return dataclasses.replace(record, **changes)


WORST_ROWS = 10


def probe_rows(rows: int, wanted: int, seed: int) -> Rows:
    """Return the fixed sample of training rows that is evaluated with the validation split."""
    if rows <= wanted:
        return np.arange(rows, dtype=np.int64)
    chosen = np.random.Generator(np.random.Philox(key=[seed, 0x9706E])).choice(rows, wanted, replace=False)
    return np.sort(chosen).astype(np.int64)


def confusion_matrix(labels: Array, predicted: Array, classes: int) -> list[list[int]]:
    """Return counts by true label (row) and predicted label (column)."""
    table = np.bincount(labels * classes + predicted, minlength=classes * classes)
    return [[int(count) for count in row] for row in table.reshape(classes, classes)]


def most_wrong(probabilities: Array, labels: Array, most: int = WORST_ROWS) -> list[tuple[int, float]]:
    """Return the rows whose own label has the lowest probability, and that probability."""
    own = probabilities[np.arange(len(labels)), labels]
    wrong = np.flatnonzero(probabilities.argmax(axis=1) != labels)
    worst = wrong[np.argsort(own[wrong], kind="stable")][:most]
    return [(int(row), float(own[row])) for row in worst]
