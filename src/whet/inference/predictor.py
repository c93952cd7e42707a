"""A saved model: texts in, labels and probabilities out, in input order."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from whet.data.readers.given_texts import given_texts
from whet.errors import ArtifactError, UsageError
from whet.records import MUCH_UNREAD
from whet.runs.decisions import read_decisions
from whet.runs.folder import RunFolder, sum_of
from whet.utils.arrays import Array

if TYPE_CHECKING:
    from whet.data.tokens.table import Tokens

CHUNK_ROWS = 1024


@dataclass(frozen=True)
class Prediction:
    """The prediction for one text or pair."""

    label: Any
    """The label's name; a list of names for several labels per row; a number for regression."""
    probability: float | None
    """The label's probability; None for regression."""
    probabilities: dict[str, float]
    abstain: bool | None = None
    """Whether to leave the row unanswered; None without that decision (`whet decide --abstain`)."""
    candidates: list[Any] | None = None
    """The labels of the conformal set, most likely first, or low and high of a number (`whet decide --coverage`)."""

    def __str__(self) -> str:
        """`good 0.973`: the label with its probability, or the number."""
        if isinstance(self.label, list):
            return ", ".join(f"{label} {self.probabilities[label]:.3f}" for label in self.label) or "(none)"
        return f"{self.label:.4g}" if self.probability is None else f"{self.label} {self.probability:.3f}"

    def to_dict(self) -> dict[str, Any]:
        """Return the same as a dictionary for JSON, without fields of missing decisions."""
        optional = ("abstain", "candidates")
        return {name: value for name, value in vars(self).items() if value is not None or name not in optional}


class Predictor:
    """The model of a folder or run. Rows of similar length are batched together."""

    def __init__(
        self, path: Path | str, *, device: str = "auto", precision: str = "auto", trust_remote_code: bool = False
    ) -> None:
        from whet.data.tokens.table import TextTokenizer
        from whet.engine.dispatch import choose_network
        from whet.models.pretrained import length_limit, load_saved, marked_long
        from whet.utils.device import choose_hardware

        self._made_with = {"device": device, "precision": precision, "trust_remote_code": trust_remote_code}
        self.path = folder = Path(path)
        data = RunFolder(folder).data if (folder / "data.json").is_file() else {}
        trained = data.get("labels")
        if (folder / "model" / "config.json").is_file():
            RunFolder(folder).refuse_changed_model()
            folder = folder / "model"
        elif (folder / "config.toml").is_file():
            raise ArtifactError(
                f"The run {str(folder)!r} has no model yet: it is not finished.", "Run the same command again to go on."
            )
        self.columns: dict[str, str | None] = data.get("columns", {})
        """The column names of text, pair and label in the training data; empty if unknown."""
        self.pairs: bool | None = bool(self.columns.get("pair")) if self.columns else None
        """Whether it was trained on pairs; None if unknown."""
        model, self.tokenizer, self.task = load_saved(folder, trust_remote_code)
        self.decisions = read_decisions(folder)
        """The calibration and the decisions that `whet decide` stored in the model folder."""
        if trained is not None and list(self.task.labels) != trained:
            raise ArtifactError(
                f"{str(folder)!r} has the labels {list(self.task.labels)} and its run was trained on {trained}.",
                "The model was replaced or its configuration changed; train again.",
            )
        self.hardware = choose_hardware(device, precision)
        self.network = choose_network(model, self.hardware)
        self.max_length = length_limit(self.tokenizer, model.config, data.get("max_length"))
        self.long = marked_long(model.config)
        """The part that is read of a long text: its `head`, `head-tail`, or all of it in `windows`."""
        self._tokenize = TextTokenizer(self.tokenizer, self.max_length, self.long)
        self._turn = threading.Lock()
        self._kind = str(model.config.model_type)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the path: other processes load the model again from its folder."""
        return _loaded, (str(self.path.resolve()), self._made_with)

    def unread_line(self) -> str:
        """Return a line about the share of text that was cut off so far; empty if it is small."""
        if self._tokenize.unread <= MUCH_UNREAD:
            return ""
        return (
            f"{self._tokenize.unread:.0%} of the text is not read, for the model reads {self.max_length:,} tokens "
            "(train with --long windows to read all of it)."
        )

    def __repr__(self) -> str:
        names = self.task.labels
        shown = ", ".join(map(repr, names[:6])) + (f", … ({len(names)})" if len(names) > 6 else "")
        reads = {True: ", pairs", False: ", single texts", None: ""}[self.pairs]
        gives = f"labels {shown}" if names else "a number"
        return f"Predictor({str(self.path)!r}: {self._kind}{reads}, {gives}, on {self.hardware.device.type})"

    @overload
    def predict(self, texts: str, pairs: str | None = None, *, raw: bool = False) -> Prediction: ...
    @overload
    def predict(self, texts: Any, pairs: Any = None, *, raw: bool = False) -> list[Prediction]: ...
    def predict(self, texts: Any, pairs: Any = None, *, raw: bool = False) -> Prediction | list[Prediction]:
        """One prediction for one text, a list of them for several, in input order.

        `texts` may be a text, a list, an array or a Series of texts, with `pairs` beside them or a sequence of
        (text, pair); or a table that has the columns of the training data: a DataFrame, a Dataset, an Arrow table,
        a dict of columns, a list of dicts. Probabilities are calibrated; with `raw` they are as the model gives them.
        """
        given = given_texts(texts, pairs, trained=self.columns)
        if given.first:
            self.refuse_other_kind(given.second is not None, "was given")
        answers = list(self.decode(self.logits(given.first, given.second), raw=raw))
        return answers[0] if given.single else answers

    def refuse_other_kind(self, second: bool, giver: str) -> None:
        """Raise if a model of pairs gets no second text, or a model of single texts gets one."""
        if self.pairs is not None and self.pairs != second:
            was, lacks = ("pairs", "no second text") if self.pairs else ("single texts", "a second text")
            raise UsageError(f"The model was trained on {was}, and {giver} {lacks}.", "Give what it was trained on.")

    def fingerprint(self) -> str:
        """Return a checksum of the weights, the tokenizer and the decisions."""
        folder = self.path / "model" if (self.path / "model").is_dir() else self.path
        names = sorted(path.name for path in folder.iterdir() if path.is_file() and path.suffix != ".md")
        return hashlib.sha256("".join(f"{name} {sum_of(folder / name)}\n" for name in names).encode()).hexdigest()

    def predict_table(self, table: Any) -> Any:
        """Return the same kind of table with the predictions appended: label, probability, and one column per label.

        An existing column keeps its name and content; the new one is called `predicted`.
        """
        from whet.data.answer_columns import with_answers

        return with_answers(table, self.predict(table))

    def logits(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> Array:
        """Return float32 [rows, outputs]. Threads may share it; they take turns with the model.

        The next rows are tokenized while the model computes these.
        """
        if len(texts) <= CHUNK_ROWS:  # no thread for one text: starting it takes longer than tokenizing
            return self._compute(self._tokens(texts, pairs, 0))
        from whet.utils.background import BackgroundTasks

        parts = []
        with BackgroundTasks("whet-ahead") as ahead:
            pending = ahead.submit(self._tokens, texts, pairs, 0)
            for start in range(0, len(texts), CHUNK_ROWS):
                tokens = pending.result()
                pending = ahead.submit(self._tokens, texts, pairs, start + CHUNK_ROWS)
                parts.append(self._compute(tokens))
        return np.concatenate(parts)

    def _compute(self, tokens: Tokens) -> Array:
        from whet.engine.logits import compute_logits, tokens_per_batch

        # A packed forward pass changes the model's configuration while it runs, and a captured one has a single input
        # buffer, so two at a time would mix their rows. One pass uses all cores anyway.
        with self._turn:
            return compute_logits(
                self.network,
                tokens,
                self.hardware,
                batch_rows=CHUNK_ROWS,
                batch_tokens=tokens_per_batch(self.hardware.device),
            )

    def _tokens(self, texts: Sequence[str], pairs: Sequence[str] | None, start: int) -> Tokens:
        end = start + CHUNK_ROWS
        return self._tokenize(texts[start:end], None if pairs is None else pairs[start:end])

    def decode(self, logits: Array, *, raw: bool = False) -> Iterator[Prediction]:
        """Turn logits into labels and calibrated probabilities by the decisions; `raw` leaves the calibration out."""
        from whet.inference.decisions import read_logits
        from whet.metrics.scores import probabilities

        kind, labels = self.task.kind, self.task.labels
        read = read_logits(self.task, logits, self.decisions)
        shown = probabilities(kind, logits) if raw else read.chances
        for index, (answer, row) in enumerate(zip(read.answers, shown, strict=True)):
            abstain = None if read.abstain is None else bool(read.abstain[index])
            candidates = None if read.candidates is None else read.candidates[index]
            named = {} if kind == "regression" else dict(zip(labels, row.tolist(), strict=True))
            label: Any = float(answer) if kind == "regression" else None
            if kind == "multilabel":
                label = [name for name, on in zip(labels, answer, strict=True) if on]
            elif kind != "regression":
                label = labels[int(answer)]
            chosen = [named[name] for name in (label if isinstance(label, list) else [label]) if name in named]
            yield Prediction(label, max(chosen, default=None), named, abstain, candidates)

    explain = decode
    """The name of `decode` in version 0.1."""


def _loaded(path: str, settings: dict[str, Any]) -> Predictor:
    return Predictor(path, **settings)
