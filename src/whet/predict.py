"""A saved model: texts in, labels and probabilities out, in input order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from whet.errors import ArtifactError, UsageError
from whet.runs.store import RunFolder

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Prediction:
    """What the model says of one text or pair."""

    label: Any
    """The label's name; a list of names for several labels a row; a number for regression."""
    probability: float | None
    """Of that label; None for regression."""
    probabilities: dict[str, float]


class Predictor:
    """A model folder (or a run's) that answers. Rows of like length are computed together, inside."""

    def __init__(self, path: Path | str, *, device: str = "auto", precision: str = "float32") -> None:
        from whet.engine.devices import choose_hardware
        from whet.engine.feed import Network
        from whet.engine.model import length_limit, load_saved

        folder = Path(path)
        trained = RunFolder(folder).data.get("labels") if (folder / "data.json").is_file() else None
        if (folder / "model" / "config.json").is_file():
            folder = folder / "model"
        model, self.tokenizer, self.task = load_saved(folder)
        if trained is not None and list(self.task.labels) != trained:
            raise ArtifactError(
                f"{str(folder)!r} has the labels {list(self.task.labels)} and its run was trained on {trained}.",
                "The model was replaced or its configuration changed; train again.",
            )
        self.hardware = choose_hardware(device, precision)
        self.network = Network(model, self.hardware.device)
        self.max_length = length_limit(self.tokenizer, model.config, None)

    def predict(self, texts: str | Sequence[Any], pairs: str | Sequence[str] | None = None) -> list[Prediction]:
        """Predictions for texts, for texts with pairs, or for a sequence of (text, pair)."""
        first, second = _two_columns(texts, pairs)
        return list(self.explain(self.logits(first, second)))

    def logits(self, texts: Sequence[str], pairs: Sequence[str] | None = None, *, batch_rows: int = 64) -> Array:
        """float32 [rows, outputs]."""
        import datasets

        from whet.data.tokens import tokenize
        from whet.engine.evaluate import compute_logits

        columns: dict[str, Any] = {"text": list(texts)}
        if pairs is not None:
            columns["pair"] = list(pairs)
        table = datasets.Dataset.from_dict(
            columns, features=datasets.Features({name: datasets.Value("string") for name in columns})
        )
        tokens = tokenize(table, self.tokenizer, max_length=self.max_length, task=self.task, cache=None)
        return compute_logits(self.network, tokens, self.hardware, batch_rows=batch_rows)

    def explain(self, logits: Array) -> Iterator[Prediction]:
        """Logits as label names and probabilities."""
        from whet.metrics.scores import predicted, probabilities

        kind, labels = self.task.kind, self.task.labels
        answers, likely = np.asarray(predicted(kind, logits)), np.asarray(probabilities(kind, logits))
        for answer, row in zip(answers, likely, strict=True):
            if kind == "regression":
                yield Prediction(float(np.ravel(answer)[0]), None, {})
                continue
            named = {label: float(value) for label, value in zip(labels, row, strict=True)}
            if kind == "multilabel":
                chosen = [label for label, on in zip(labels, answer, strict=True) if on]
                yield Prediction(chosen, max((named[label] for label in chosen), default=None), named)
            else:
                label = labels[int(answer)]
                yield Prediction(label, named[label], named)


def load(path: Path | str, **settings: Any) -> Predictor:
    """The predictor of a run folder or of a model folder."""
    return Predictor(path, **settings)


def _two_columns(texts: Any, pairs: Any) -> tuple[list[str], list[str] | None]:
    if isinstance(texts, str):
        texts, pairs = [texts], None if pairs is None else [pairs]
    texts = list(texts)
    if pairs is None and texts and isinstance(texts[0], tuple | list):
        texts, pairs = [row[0] for row in texts], [row[1] for row in texts]
    if pairs is not None:
        pairs = list(pairs)
        if len(pairs) != len(texts):
            raise UsageError(
                f"There are {len(texts)} texts and {len(pairs)} pairs.",
                "Give as many of one as of the other.",
            )
    for index, text in enumerate([*texts, *(pairs or [])]):
        if not isinstance(text, str):
            raise UsageError(f"Text {index % max(1, len(texts))} is {text!r}, which is not a text.")
    return texts, pairs
