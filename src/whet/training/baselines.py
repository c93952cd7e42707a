"""Baselines of a trained model: TF-IDF and frozen features with logistic regression, on the same rows.

They are computed after training from the same training rows, within seconds, because large data is sampled. The
frozen features come from the pretrained weights, which are loaded again, so a resumed run computes the same. A
baseline that fails is left out and named; the run continues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from whet.data.folds import KEPT
from whet.errors import EnvironmentFault, Interrupted
from whet.records import Baselines
from whet.runs.folder import RunFolder
from whet.training.setup import Job
from whet.utils.arrays import Array

if TYPE_CHECKING:
    from whet.metrics.baselines import Standing
    from whet.training.folds import Pooled

FILE = "baselines.json"
FROZEN, TFIDF = "frozen", "TF-IDF"
EVALUATED_ROWS = 4_000
"""Rows of a split that the baselines are evaluated on, which gives their scores to about 1.5 points."""
SHARE_OF_TRAINING = 0.05
"""Largest cost of the frozen features, as a share of the training's cost."""
MIN_TOKENS, MAX_TOKENS = 60_000, 400_000
"""Lower and upper bound for the tokens that the pretrained encoder reads."""


def write_baselines(
    folder: RunFolder,
    job: Job,
    logits: dict[str, Array],
    check_interrupt: Callable[[], None],
    held_out: Pooled | None = None,
) -> list[Baselines]:
    """Write baselines.json; yield the records of the labelled splits in `logits`.

    With folds, the rows `held_out` replace the validation rows, and the baselines are trained fold by fold too.
    """
    answered = [
        _Answered(split, split, np.arange(len(values)), values)
        for split, values in logits.items()
        if job.prepared.labels(split) is not None and len(values)
    ]
    if held_out is not None:
        answered.insert(0, _Answered("validation", "train", held_out.rows, held_out.logits))
    if not answered:
        return []
    made = _Made(job, answered, check_interrupt, held_out)
    found = dict(made.standings())
    left_out = list(dict.fromkeys(made.left_out))
    content = {split: standing.as_dict() for split, standing in found.items()}
    folder.write_json(FILE, {**content, "left_out": left_out})
    folded = {rows.name for rows in answered if rows.name != rows.split}
    return [_record(job.state.step, split, split in folded, found[split], left_out) for split in found]


def _record(step: int, split: str, out_of_fold: bool, standing: Standing, left_out: list[str]) -> Baselines:
    shown = standing.as_dict()
    kept = ("name", "value", "interval", "p_value", "association", "above_commonest", "trained_on")
    return Baselines(
        step=step,
        split=split,
        metric=standing.metric,
        rows=standing.rows,
        value=standing.value,
        interval=list(standing.interval) if standing.interval else None,
        association=standing.association,
        of_rows=standing.of_rows,
        train_rows=standing.train_rows,
        baselines=[{name: baseline[name] for name in kept} for baseline in shown["baselines"]],
        sentence=standing.sentence,
        left_out=left_out,
        out_of_fold=out_of_fold,
    )


@dataclass(frozen=True)
class _Rows:
    """Rows of one split that a baseline is trained or evaluated on."""

    split: str
    rows: Array

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class _Answered:
    """Rows with the model's predictions."""

    name: str
    """The split that the score belongs to."""
    split: str
    """The split that contains the rows: with folds, the training rows."""
    rows: Array
    logits: Array

    def only(self, rows: Array) -> _Answered:
        """Return those of the given rows that have predictions."""
        kept = np.isin(self.rows, rows)
        return _Answered(self.name, self.split, self.rows[kept], self.logits[kept])


class _Made:
    """Computes the baselines of one run, split by split."""

    def __init__(
        self, job: Job, answered: list[_Answered], check_interrupt: Callable[[], None], held_out: Pooled | None = None
    ) -> None:
        from whet.metrics.linear_models import MAX_ROWS, sample_rows

        self.job, self.check_interrupt = job, check_interrupt
        self.task, self.tokens = job.prepared.examples.task, job.prepared.tokens
        self.left_out: list[str] = []
        labels = job.prepared.labels("train")
        assert labels is not None
        self.train_labels = labels
        self.folds: Array | None = None
        if held_out is not None:
            self.folds = np.full(len(labels), KEPT, np.int64)
            self.folds[held_out.rows] = held_out.folds
        budget = self._tokens_to_read()
        self.all_rows = {rows.name: len(rows.rows) for rows in answered}
        self.asked = [rows.only(self._sampled(rows.split, budget / 2 / len(answered))) for rows in answered]
        read = sum(len(rows.rows) * self._length(rows.split) for rows in self.asked)
        most = int(max(budget / 2, budget - read) / self._length("train"))
        # A smaller sample is part of a larger one, so these include every requested row.
        self.train = _Rows("train", sample_rows(len(labels), MAX_ROWS))
        self.frozen_train = _Rows("train", sample_rows(len(labels), min(most, MAX_ROWS)))
        self._features: Array | None = None
        self._encoder: Any = None

    def standings(self) -> Iterator[tuple[str, Standing]]:
        """Return for each split the standings of the model and its baselines."""
        from whet.metrics.baselines import compare_baselines

        for asked in self.asked:
            labels = self.job.prepared.labels(asked.split)
            assert labels is not None
            every = {FROZEN: self._tried(FROZEN, self._frozen, asked), TFIDF: self._tried(TFIDF, self._tfidf, asked)}
            try:
                standing = compare_baselines(
                    self.task.kind,
                    asked.logits,
                    labels[asked.rows],
                    {name: found for name, found in every.items() if found is not None},
                    metric=self.job.metric,
                    train_labels=self.train_labels,
                    trained_on={FROZEN: len(self.frozen_train), TFIDF: self._tfidf_rows()},
                    of_rows=self.all_rows[asked.name] if len(asked.rows) < self.all_rows[asked.name] else None,
                )
            except Exception as error:
                self.left_out.append(f"{asked.name} rows: {_in_short(error)}")
                continue
            yield asked.name, standing

    def _tried(self, name: str, make: Callable[[_Answered], Array], asked: _Answered) -> Array | None:
        """Return a baseline's logits of these rows; an error is reported and does not end the run."""
        try:
            self.check_interrupt()
            return make(asked)
        except Interrupted:
            raise
        except Exception as error:
            self.left_out.append(f"{name}: {_in_short(error)}")
            return None

    # TF-IDF ------------------------------------------------------------------------------------------

    def _tfidf(self, asked: _Answered) -> Array:
        from whet.metrics.linear_models import tfidf_predictions

        kind, outputs = self.task.kind, asked.logits.shape[1]
        texts, pairs = self._texts(self.train)
        labels = self.train_labels[self.train.rows]
        if asked.split != "train":
            return tfidf_predictions(kind, outputs, texts, pairs, labels, *self._texts(_Rows(asked.split, asked.rows)))

        def fit(train: Array, held: Array) -> Array:
            own, others = (
                ([texts[row] for row in rows], None if pairs is None else [pairs[row] for row in rows])
                for rows in (train, held)
            )
            return tfidf_predictions(kind, outputs, *own, labels[train], *others)

        return self._out_of_fold(fit, self.train, asked)

    def _tfidf_rows(self) -> int:
        from whet.metrics.linear_models import tfidf_rows

        return len(tfidf_rows(*self._texts(self.train)))

    def _texts(self, chosen: _Rows) -> tuple[list[str], list[str] | None]:
        rows = self.job.prepared.examples.rows[chosen.split]
        table = rows.table.select([name for name in ("text", "pair") if name in rows.column_names]).take(chosen.rows)
        texts = table.column("text").to_pylist()
        return texts, table.column("pair").to_pylist() if "pair" in table.column_names else None

    # Frozen features ---------------------------------------------------------------------------------

    def _frozen(self, asked: _Answered) -> Array:
        from whet.metrics.linear_models import frozen_predictions

        if self.job.prepared.config.train.shard:
            raise EnvironmentFault("the model is split over the processes")
        kind, outputs = self.task.kind, asked.logits.shape[1]
        labels = self.train_labels[self.frozen_train.rows]
        if self._features is None:
            self._features = self._read(self.frozen_train)
        features = self._features
        if asked.split != "train":
            return frozen_predictions(kind, outputs, features, labels, self._read(_Rows(asked.split, asked.rows)))

        def fit(train: Array, held: Array) -> Array:
            return frozen_predictions(kind, outputs, features[train], labels[train], features[held])

        return self._out_of_fold(fit, self.frozen_train, asked)

    def _out_of_fold(self, fit: Callable[[Array, Array], Array], train: _Rows, asked: _Answered) -> Array:
        """Return the predictions for each fold's rows from a training on the other folds."""
        from whet.metrics.linear_models import out_of_fold

        assert self.folds is not None
        return out_of_fold(fit, self.folds[train.rows])[np.searchsorted(train.rows, asked.rows)]

    def _read(self, chosen: _Rows) -> Array:
        """Return the pretrained encoder's features of these rows."""
        from whet.engine.embeddings import embed_texts, mean_token_features
        from whet.metrics.linear_models import pair_features

        prepared, hardware = self.job.prepared, self.job.hardware
        texts, pairs = self._texts(chosen)
        if pairs is None:
            rows = chosen.rows
            return mean_token_features(
                self._pretrained(), self.tokens[chosen.split], hardware, rows=rows, check_interrupt=self.check_interrupt
            )
        both = embed_texts(
            self._pretrained(),
            prepared.tokenizer,
            [*texts, *pairs],
            hardware,
            prepared.max_length,
            prepared.config.model.long,
            check_interrupt=self.check_interrupt,
        )
        return pair_features(both[: len(texts)], both[len(texts) :])

    def _pretrained(self) -> Any:
        """Load the pretrained model again: the trained one has other weights."""
        if self._encoder is None:
            from whet.models.pretrained import load_model

            config = self.job.prepared.config
            loaded = load_model(config.model.model, self.task, config.model, seed=config.train.seed)
            self._encoder = loaded.model.to(self.job.hardware.device)
        return self._encoder

    # Sampling -----------------------------------------------------------------------------------------

    def _tokens_to_read(self) -> float:
        """Return how many tokens to read. A training step costs about three forward passes."""
        trained = self.job.plan.total_steps * self.job.feed.order.batch_size * self._length("train")
        return float(np.clip(3 * SHARE_OF_TRAINING * trained, MIN_TOKENS, MAX_TOKENS))

    def _length(self, split: str) -> float:
        lengths = self.tokens[split].lengths
        return max(1.0, float(np.mean(lengths))) if len(lengths) else 1.0

    def _sampled(self, split: str, tokens: float) -> Array:
        from whet.metrics.linear_models import sample_rows

        most = min(EVALUATED_ROWS, max(1, int(tokens / self._length(split))))
        return sample_rows(len(self.tokens[split]), most)


def _in_short(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
