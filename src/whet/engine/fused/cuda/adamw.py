"""The gradient norm and AdamW on CUDA, alone or on a side stream during the forward and the backward pass.

AdamW is limited by memory bandwidth, the forward pass is not. So an update runs at the beginning of the next replay
on a side stream, in the order in which the forward pass needs the weights. Of the word embedding the rows of the
batch come first; the others may take until the end of the backward pass.
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

# torch has no type annotations for these.
_cuda: Any = torch.cuda


class Launch(NamedTuple):
    """The launch configuration of an update."""

    programs: int
    block: int
    warps: int


ALONE = Launch(1056, 512, 4)
BESIDE = Launch(96, 4096, 32)
"""Configurations for an update alone, and for one during the forward pass. The latter fills each multiprocessor with
two programs, so that the other multiprocessors are free for matrix products."""


class Span(NamedTuple):
    """Neighbouring elements of a group that are updated together."""

    group: Group
    start: int
    end: int
    partials: int
    """The number of programs that compute its sum of squares."""


SMALL, WORDS, PLACES, FIRST_LAYER = 0, 1, 2, 3


class Words(NamedTuple):
    """The distinct words of a batch: tokens order[starts[k]:] are those of the k-th word; and the number of the
    replay."""

    order: Tensor
    starts: Tensor
    ids: Tensor
    turn: Tensor


class CudaUpdate:
    """Gradient norm, clipping and AdamW over a flat model, without reading anything back from the device."""

    def __init__(self, flat: FlatModel, rule: AdamW, clip: float, side_stream: torch.cuda.Stream) -> None:
        self.flat, self.rule, self.clip, self.side_stream = flat, rule, clip, side_stream
        self.spans = _spans(flat)
        ends = torch.tensor([span.partials for span in self.spans]).cumsum(0).tolist()
        self._firsts = [0, *ends[:-1]]
        self._partial = torch.zeros(1 << (ends[-1] - 1).bit_length(), device=flat.device)
        self.scale = torch.full((), -1.0, device=flat.device)
        """Factor for the gradients of a pending update; below 0 if none is pending."""
        self._width = flat.named[flat.word].shape[1]
        self._updated_at = torch.full((len(flat.used),), -1, dtype=torch.int64, device=flat.device)

    def run(self, rates: Tensor) -> None:
        """Run the whole update alone. `rates` holds the learning rate and the two bias corrections."""
        for span in self.spans:
            self._span(span, rates, ALONE)

    def run_beside(self, rates: Tensor, words: Words) -> list[torch.cuda.Event]:
        """Run the update on the side stream; returns an event for the embeddings, one per layer, and one for
        everything."""
        self.side_stream.wait_stream(torch.cuda.current_stream())
        ready: list[torch.cuda.Event] = []

        def mark() -> None:
            ready.append(_cuda.Event())
            ready[-1].record(self.side_stream)

        with torch.cuda.stream(self.side_stream):
            self._span(self.spans[SMALL], rates, ALONE)
            self.flat.zero_head()  # the previous backward pass must end first
            self._span(self.spans[PLACES], rates, ALONE)
            self._words_of_batch(rates, words)
            mark()
            for index, span in enumerate(self.spans[FIRST_LAYER:]):
                # the first layer waits for this, so nothing runs at the same time
                self._span(span, rates, BESIDE if index else ALONE)
                mark()
            self._other_words(rates, words)
            self._zero_embeddings()
            self.scale.fill_(-1.0)
            mark()
        return ready

    def zero(self) -> None:
        """Zero what the next step adds to: the head's gradients and the rows of the embeddings."""
        self.flat.zero_head()
        self._zero_embeddings()

    def _zero_embeddings(self) -> None:
        matrices = self.flat.matrices
        matrices.gradient[matrices.computes_until :].zero_()

    def square_layer_beside(self, layer: int) -> None:
        """Add a layer to the sum of squares while its gradients are still in the cache."""
        with torch.cuda.stream(self.side_stream):
            self._square(FIRST_LAYER + layer)

    def add_step(self, window: StepTotals, loss: Tensor, step: Tensor, *, layers_squared: bool) -> None:
        """Add a step whose gradients are complete to the totals, with its norm and clipping factor."""
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
            start, end, self._decays_until(group), group.computes_until, *self._numbers(),
            BLOCK=launch.block, COPY=group.compute is not group.master, num_warps=launch.warps, **EXACT,
        )  # fmt: skip

    def _decays_until(self, group: Group) -> int:
        return group.size if self.rule.everywhere else group.decays_until

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
"""Rounds every product and sum on its own. Otherwise the compiler fuses some of them, depending on the number of
warps, and an update alone would differ in the last bit from one during a forward pass."""


def _spans(flat: FlatModel) -> list[Span]:
    """Return all spans to update: biases, norms and the head; the embeddings; the layers."""
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
