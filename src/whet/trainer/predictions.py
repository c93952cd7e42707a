"""A data set to logits, labels and a loss: by the engine where it can, batch by batch where it must."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from whet.data.tokens.table import Tokens
from whet.distributed.group import Ranks
from whet.engine.logits import compute_logits
from whet.engine.losses import Loss
from whet.engine.network import Network
from whet.task import Task
from whet.trainer.data import Collator, batch_rows, on_device, rows_of
from whet.training.evaluation import computed_together, logits_together
from whet.utils.device import Hardware, precision

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Predicted:
    """Rows in input order."""

    logits: Any
    """An array, or a tuple of arrays where the model gives several."""
    labels: Any
    loss: float | None
    rows: int


def predict_tokens(
    ranks: Ranks,
    network: Network,
    tokens: Tokens,
    task: Task,
    hardware: Hardware,
    batch: int,
    between: Callable[[], None],
) -> Predicted:
    """By the engine: rows of like length together, nothing padded, logits back in input order."""

    def compute(rows: Array | None) -> Array:
        return compute_logits(network, tokens, hardware, batch_rows=batch, rows=rows, between=between)

    logits = logits_together(ranks, tokens, None, compute)
    labels = tokens.labels
    known = labels is not None and len(labels) and labels_fit(labels, task)
    loss = Loss(task).mean(logits, labels) if known else None  # type: ignore[arg-type]
    return Predicted(logits, labels, loss, len(tokens))


def labels_fit(labels: Array, task: Task) -> bool:
    """Whether a loss can be computed; a test split may be marked with -1 for a label that is kept secret."""
    if task.kind == "regression":
        return labels.ndim == 1
    if task.kind == "multilabel":
        return labels.ndim == 2 and labels.shape[1] == task.outputs
    return labels.ndim == 1 and labels.dtype.kind == "i" and 0 <= labels.min() <= labels.max() < task.outputs


class _Part(NamedTuple):
    """One batch, on the host."""

    logits: Any
    labels: Any
    loss: float | None
    rows: int


@dataclass(frozen=True)
class BatchPredictor:
    """Any model and any collator, with the trainer's own `compute_loss`."""

    ranks: Ranks
    model: Any
    hardware: Hardware
    collate: Collator
    label_names: Sequence[str]
    compute_loss: Callable[[Any, dict[str, Any]], tuple[torch.Tensor, Any]]
    ignore_keys: Sequence[str]
    between: Callable[[], None]

    def __call__(self, dataset: Any, batch: int) -> Predicted:
        self.model.eval()
        # Batch after batch in turn: the batches are those of one process, whoever computes them.
        starts, world = range(0, len(dataset), batch), self.ranks.world

        def compute() -> list[_Part]:
            with torch.no_grad(), precision(self.hardware):
                return [self._part(dataset, start, batch) for start in starts[self.ranks.rank :: world]]

        found = self.ranks.gather(computed_together(self.ranks, compute))
        parts = [found[index % world][index // world] for index in range(len(starts))]
        labels = [part.labels for part in parts if part.labels is not None]
        losses = [part.loss for part in parts if part.loss is not None]
        mean = None
        if len(losses) == len(parts):
            mean = float(np.average(losses, weights=[part.rows for part in parts]))
        logits = _joined([part.logits for part in parts])
        return Predicted(logits, _joined(labels) if labels else None, mean, len(dataset))

    def _part(self, dataset: Any, start: int, batch: int) -> _Part:
        self.between()
        rows = range(start, min(start + batch, len(dataset)))
        inputs = on_device(self.collate(rows_of(dataset, rows)), self.hardware.device)
        truth = [inputs[name] for name in self.label_names if inputs.get(name) is not None]
        count, labels, mean = batch_rows(inputs), None, None
        if len(truth) == len(self.label_names):
            loss, outputs = self.compute_loss(self.model, inputs)
            mean, labels = float(loss.mean()), _host(truth[0] if len(truth) == 1 else tuple(truth))
        else:
            outputs = self.model(**inputs)
        return _Part(_host(self._logits(outputs, with_loss=bool(truth))), labels, mean, count)

    def _logits(self, outputs: Any, *, with_loss: bool) -> Any:
        """Everything but the loss; a tuple only where there is more than one thing."""
        if isinstance(outputs, Mapping):
            left_out = {"loss", *self.ignore_keys}
            found = tuple(value for name, value in outputs.items() if name not in left_out and value is not None)
        elif isinstance(outputs, tuple):
            found = outputs[1:] if with_loss else outputs
        else:
            return outputs
        return found[0] if len(found) == 1 else found


def _host(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return tuple(_host(item) for item in value)
    tensor = value.detach()
    return (tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor).cpu().numpy()


def _joined(parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], tuple):
        return tuple(_joined(column) for column in zip(*parts, strict=True))
    widths = {part.shape[1:] for part in parts}
    if len(widths) == 1:
        return np.concatenate(parts)
    # Rows of different lengths, such as hidden states of padded batches: filled as the stock Trainer does.
    longest = tuple(max(sizes) for sizes in zip(*widths, strict=True))
    return np.concatenate([_filled(part, longest) for part in parts])


def _filled(part: Array, shape: tuple[int, ...]) -> Array:
    result = np.full((part.shape[0], *shape), -100, dtype=part.dtype)
    result[tuple(slice(size) for size in part.shape)] = part
    return result
