"""The running mean of the weights: what many steps agree on, without the chance of the last few.

Recent steps count most: a step that lies k steps back counts for `decay` to the power of k. Early in a run the mean
reaches back over a tenth of the steps at most, so the pretrained weights, where training began, soon leave it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from whet.errors import ArtifactError

LARGEST_GAP = 8
"""Steps between two updates of the mean, from step 128 on: it reads every weight, which a step should not notice."""
EARLY_POWER = 9
"""Until the decay takes over, step s counts about as s to the power of 8."""


def update_gap(step: int) -> int:
    """Steps since the last update, if the mean is updated after this step, counted from 1; else 0."""
    gap = min(LARGEST_GAP, max(1, 1 << max(0, (step - 1).bit_length() - 5)))
    return 0 if step % gap else gap


def decay_over_gap(decay: float, step: int, gap: int) -> float:
    """The share of the mean that stays when the weights after this step are taken in; the first update replaces it."""
    return min(decay**gap, ((step - gap) / step) ** EARLY_POWER)


class Average:
    """A mean beside each tensor that training changes. A function of the steps alone, so it resumes exactly."""

    def __init__(
        self, decay: float, sources: Sequence[Tensor], named: Callable[[Sequence[Tensor]], dict[str, Tensor]]
    ) -> None:
        """`named` gives tensors that lie as the sources do by the names of the parameters."""
        self.decay, self.sources, self._named = decay, list(sources), named
        self.means = [torch.zeros_like(source) for source in self.sources]
        self.begun = False

    def update(self, step: int) -> None:
        """Take in the weights after this step, counted from 1, if the mean is updated here."""
        gap = update_gap(step)
        if not gap:
            return
        kept = decay_over_gap(self.decay, step, gap) if self.begun else 0.0
        self.begun = True
        torch._foreach_lerp_(self.means, self.sources, 1.0 - kept)

    def swap(self) -> None:
        """Exchange the weights with their means, in place."""
        if not self.begun:
            return
        for source, mean in zip(self.sources, self.means, strict=True):
            kept = source.clone()
            source.copy_(mean)
            mean.copy_(kept)

    def named(self) -> dict[str, Tensor]:
        """The means by the names of their parameters."""
        return self._named(self.means)

    def load(self, saved: Mapping[str, Tensor] | None) -> None:
        """The inverse of `named`; None where the checkpoint has no mean, which then begins anew."""
        self.begun = saved is not None
        if saved is None:
            return
        own = self.named()
        for name in sorted(own.keys() ^ saved.keys()):
            raise ArtifactError(f"The checkpoint and this model differ in the averaged weights of {name!r}.")
        for name, mean in own.items():
            found = saved[name]  # once: it may be read from a file
            if mean.shape != found.shape:
                raise ArtifactError(
                    f"The averaged {name!r} has shape {tuple(found.shape)} in the checkpoint, {tuple(mean.shape)} here."
                )
            mean.copy_(found)
