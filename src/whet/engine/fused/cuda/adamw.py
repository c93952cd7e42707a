"""The norm of the gradients and AdamW on CUDA: what runs beside the forward and the backward pass, and what alone.

AdamW is bound by memory and the forward pass is not, so an update runs at the beginning of the next replay, on a
stream of its own, in the order in which the forward pass needs the weights. Of the word embedding only the rows of
the batch come first; the rest has time until the backward pass is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from whet.engine.fused.cpu.adamw import AdamW
from whet.engine.fused.cuda import adamw_kernels as kernels
from whet.engine.fused.parameters import FlatModel, Group
from whet.engine.stepper import StepTotals

# torch's own annotations leave these untyped.
_cuda: Any = torch.cuda


class Launch(NamedTuple):
    """How an update is laid over the device."""

    programs: int
    block: int
    warps: int


ALONE = Launch(1056, 512, 4)
BESIDE = Launch(96, 4096, 32)
"""With the device to itself, and beside the forward pass: there two programs fill one multiprocessor, so that the
others stay whole for products, whose programs need a whole one each."""


class Span(NamedTuple):
    """Neighbours in a group that are updated together."""

    group: Group
    start: int
    end: int
    partials: int
    """How many programs square it."""


SMALL, WORDS, PLACES, FIRST_LAYER = 0, 1, 2, 3


class Words(NamedTuple):
    """The distinct words of a batch: token i of `order` from starts[k] on is the k-th; and the turn's own number."""

    order: Tensor
    starts: Tensor
    ids: Tensor
    turn: Tensor


class CudaUpdate:
    """Norm, clipping and AdamW over a flat model. Nothing is read back from the device."""

    def __init__(self, flat: FlatModel, rule: AdamW, clip: float, side_stream: torch.cuda.Stream) -> None:
        self.flat, self.rule, self.clip, self.side_stream = flat, rule, clip, side_stream
        self.spans = _spans(flat)
        ends = torch.tensor([span.partials for span in self.spans]).cumsum(0).tolist()
        self._firsts = [0, *ends[:-1]]
        self._partial = torch.zeros(1 << (ends[-1] - 1).bit_length(), device=flat.device)
        self.scale = torch.full((), -1.0, device=flat.device)
        """What a pending update multiplies gradients by; below 0 when none is pending."""
        self._width = flat.named[flat.word].shape[1]
        self._updated_at = torch.full((len(flat.used),), -1, dtype=torch.int64, device=flat.device)

    def run(self, rates: Tensor) -> None:
        """All of it, with the device to itself. `rates`: the rate and the two bias corrections."""
        for span in self.spans:
            self._span(span, rates, ALONE)

    def run_beside(self, rates: Tensor, words: Words) -> list[torch.cuda.Event]:
        """On the stream beside; an event for the embeddings, one a layer, and one for all of it."""
        self.side_stream.wait_stream(torch.cuda.current_stream())
        ready: list[torch.cuda.Event] = []

        def mark() -> None:
            ready.append(_cuda.Event())
            ready[-1].record(self.side_stream)

        with torch.cuda.stream(self.side_stream):
            self._span(self.spans[SMALL], rates, ALONE)
            self.flat.zero_head()  # its backward pass comes first
            self._span(self.spans[PLACES], rates, ALONE)
            self._words_of_batch(rates, words)
            mark()
            for index, span in enumerate(self.spans[FIRST_LAYER:]):
                self._span(span, rates, BESIDE if index else ALONE)  # nothing can run before the first layer is done
                mark()
            self._other_words(rates, words)
            self._zero_embeddings()
            self.scale.fill_(-1.0)
            mark()
        return ready

    def zero(self) -> None:
        """What the next step adds to: the head's gradients, and the rows of the embeddings."""
        self.flat.zero_head()
        self._zero_embeddings()

    def _zero_embeddings(self) -> None:
        matrices = self.flat.matrices
        matrices.gradient[matrices.computes_until :].zero_()

    def square_layer_beside(self, layer: int) -> None:
        """A layer's part of the norm, while its gradients are still in the cache."""
        with torch.cuda.stream(self.side_stream):
            self._square(FIRST_LAYER + layer)

    def add_step(self, window: StepTotals, loss: Tensor, step: Tensor, *, layers_squared: bool) -> None:
        """Norm, clipping factor and window of a step whose gradients are complete."""
        left: Sequence[int] = range(FIRST_LAYER if layers_squared else len(self.spans))
        for index in left:
            self._square(index)
        kernels.add_step[(1,)](
            self._partial, loss, step, window.loss, window.grad_norm, window.first_nonfinite_step,
            self.scale, self.clip, COUNT=self._partial.numel(),
        )  # fmt: skip

    def _square(self, index: int) -> None:
        group, start, end, partials = self.spans[index]
        partial = self._partial[self._firsts[index] :]
        kernels.squares[(partials,)](group.gradient, start, end, partial, BLOCK=4096, num_warps=8)

    def _span(self, span: Span, rates: Tensor, launch: Launch) -> None:
        group, start, end, _ = span
        kernels.adamw[(min(launch.programs, -(-(end - start) // launch.block)),)](
            group.master, group.first, group.second, group.gradient, group.compute, self.scale, rates,
            start, end, group.decays_until, group.computes_until, *self._numbers(),
            BLOCK=launch.block, COPY=group.compute is not group.master, num_warps=launch.warps, **EXACT,
        )  # fmt: skip

    def _words_of_batch(self, rates: Tensor, words: Words) -> None:
        group = self.flat.matrices
        kernels.adamw_words_of_batch[(words.ids.shape[0],)](
            group.master, group.first, group.second, group.gradient,
            words.order, words.starts, words.ids, self._updated_at, words.turn, self.scale, rates,
            self.spans[WORDS].start, *self._numbers(), **self._wide(), **EXACT,
        )  # fmt: skip

    def _other_words(self, rates: Tensor, words: Words) -> None:
        group = self.flat.matrices
        kernels.adamw_other_words[(BESIDE.programs,)](
            group.master, group.first, group.second, group.gradient, self._updated_at, words.turn, self.scale, rates,
            self.spans[WORDS].start, len(self.flat.used), *self._numbers(), **self._wide(),
            ROWS=max(1, BESIDE.block // self._wide()["BLOCK"]), num_warps=BESIDE.warps, **EXACT,
        )  # fmt: skip

    def _wide(self) -> dict[str, int]:
        return {"WIDTH": self._width, "BLOCK": 1 << (self._width - 1).bit_length()}

    def _numbers(self) -> tuple[float, ...]:
        rule = self.rule
        return (rule.beta1, 1 - rule.beta1, rule.beta2, 1 - rule.beta2, rule.epsilon, rule.weight_decay)


EXACT = {"enable_fp_fusion": False}
"""Products and sums are rounded one by one: else the compiler joins some, others with another number of warps, and
an update that ran alone would differ in the last bit from the same one beside a forward pass."""


def _spans(flat: FlatModel) -> list[Span]:
    """Everything that is updated: biases, norms and the head; the embeddings; the layers."""
    matrices, small = flat.matrices, flat.small
    start, shape = matrices.places[flat.word]
    after_words = start + shape.numel()
    each = matrices.computes_until // len(flat.layers)
    return [
        Span(small, 0, small.size, 128),
        Span(matrices, start, after_words, 1024),
        Span(matrices, after_words, matrices.size, 128),
        *(Span(matrices, k * each, (k + 1) * each, 128) for k in range(len(flat.layers))),
    ]
