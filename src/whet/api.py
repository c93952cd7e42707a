"""The Python API: `fit` trains and returns a `Run`, `load` returns the predictor of a run or model folder."""

from __future__ import annotations

import gc
import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from whet.config import from_environment, make_config
from whet.errors import UsageError
from whet.records import Baselines, Evaluation, Record, shipped_evaluation, start_of
from whet.runs.folder import RunFolder

if TYPE_CHECKING:
    from whet.inference.predictor import Prediction, Predictor
    from whet.integrations.notebook import Figure
    from whet.runs.curves import Curves


class Run:
    """The result of `whet.fit`. Everything is read from the run folder."""

    def __init__(self, path: Path | str, *, trust_remote_code: bool = False) -> None:
        self.folder = RunFolder.open(path)
        self._trusts = trust_remote_code

    @property
    def path(self) -> Path:
        return self.folder.path

    @cached_property
    def records(self) -> list[Record]:
        return self.folder.records()

    @property
    def best(self) -> Evaluation | None:
        """The evaluation of the weights in `model/`; with folds, that of the held-out rows."""
        found = shipped_evaluation(self.records)
        return found if found is not None and found.best else None

    @property
    def metrics(self) -> dict[str, float]:
        """Scores of the saved model: on validation under their names, on test with the prefix `test_`."""
        found: dict[str, float] = {}
        if self.best is not None:
            found.update(self.best.metrics, loss=self.best.loss)
        record = self._last_test()
        if record is not None:
            found.update({f"test_{name}": value for name, value in record.metrics.items()}, test_loss=record.loss)
        return found

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """The 95% interval of the main metric on each split, named as in `metrics`."""
        from whet.runs.report.scores import main_intervals

        prefix = {"test": "test_"}
        found = main_intervals(self.records, {"validation": self.best, "test": self._last_test()})
        return {f"{prefix.get(split, '')}{metric}": edges for (split, metric), edges in found.items()}

    @property
    def baselines(self) -> dict[str, Baselines]:
        """The saved model and its baselines on the same rows, by split."""
        return {record.split: record for record in self.records if isinstance(record, Baselines)}

    @cached_property
    def curves(self) -> Curves:
        """Loss, metrics and rates as arrays by step."""
        from whet.runs.curves import curves

        return curves(self.records)

    @cached_property
    def predictor(self) -> Predictor:
        from whet.inference.predictor import Predictor

        return Predictor(self.path, trust_remote_code=self._trusts)

    @overload
    def predict(self, texts: str, pairs: str | None = None) -> Prediction: ...
    @overload
    def predict(self, texts: Any, pairs: Any = None) -> list[Prediction]: ...
    def predict(self, texts: Any, pairs: Any = None) -> Prediction | list[Prediction]:
        """Return labels with probabilities: one for one text, a list for several, in input order."""
        answer: Prediction | list[Prediction] = self.predictor.predict(texts, pairs)
        return answer

    def predict_table(self, table: Any) -> Any:
        """Return the same kind of table with the predictions appended."""
        return self.predictor.predict_table(table)

    def plot(self) -> Figure:
        """Return the curves, drawn in a notebook; `str()` of it is SVG."""
        from whet.integrations.notebook import Figure

        return Figure(self.records)

    def summary(self) -> dict[str, Any]:
        """Return what `whet train --json` prints."""
        import dataclasses

        from whet.records import End
        from whet.runs.parts import parts_as_dicts
        from whet.runs.verdict.judge import verdict_of

        start = start_of(self.records)
        end = next((record for record in self.records if isinstance(record, End)), None)
        return {
            "run": str(self.path),
            "task": start.task if start else "",
            "labels": start.labels if start else [],
            "steps": end.step if end else 0,
            "best_step": end.best_step if end else -1,
            "seconds": round(end.seconds, 3) if end else 0.0,
            "metrics": self.metrics,
            "intervals": {name: list(edges) for name, edges in self.intervals.items()},
            "majority": start.majority if start else {},
            "baselines": {split: dataclasses.asdict(record) for split, record in self.baselines.items()},
            "verdict": verdict_of(self.records).as_dict(),
            "folds": start.folds if start else 0,
            "parts": parts_as_dicts(self.records),
        }

    def _last_test(self) -> Evaluation | None:
        return next(reversed(self._evaluations("test")), None)

    def _evaluations(self, split: str) -> list[Evaluation]:
        return [record for record in self.records if isinstance(record, Evaluation) and record.split == split]

    def __repr__(self) -> str:
        scores = ", ".join(f"{name}={value:.4f}" for name, value in list(self.metrics.items())[:3])
        return f"Run({str(self.path)!r}, {scores})"


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
    from whet.integrations.notebook import NotebookView, in_notebook
    from whet.training.run import ignore, train_run

    view = NotebookView() if in_notebook() else None
    try:
        on_event = view.on_event if view else ignore
        folder = train_run(source, config, accept_changes=accept_changes, on_event=on_event)
        return Run(folder.path, trust_remote_code=config.model.trust_remote_code)
    finally:
        if view:
            view.close()
        # Model and moments are in reference cycles, which Python may keep for many runs: they are few objects, but
        # large.
        gc.collect()


def load(path: Path | str, **settings: Any) -> Predictor:
    """Return the predictor of a run folder or model folder."""
    from whet.inference.predictor import Predictor

    return Predictor(path, **settings)
