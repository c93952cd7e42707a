"""The exponential moving average of the weights.

Recent steps count most: the weights k steps back count with a factor of `decay` to the power of k. Early in a run the
mean covers at most the last tenth of the steps, so the pretrained weights soon drop out of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from whet.errors import ArtifactError

LARGEST_GAP = 8
"""Steps between two updates of the mean, from step 128 on. An update reads every weight, so it must be rare."""
EARLY_POWER = 9
"""Until the decay takes over, step s counts about in proportion to s to the power of 8."""


def update_gap(step: int) -> int:
    """Return the steps since the last update if the mean is updated after this step, counted from 1; else 0."""
    gap = min(LARGEST_GAP, max(1, 1 << max(0, (step - 1).bit_length() - 5)))
    return 0 if step % gap else gap


def decay_over_gap(decay: float, step: int, gap: int) -> float:
    """Return the factor that the mean keeps when the weights after this step are added; the first update replaces
    it."""
    return min(decay**gap, ((step - gap) / step) ** EARLY_POWER)


class Average:
    """Keeps a mean for each trained tensor. It depends on the steps alone, so it resumes exactly."""

    def __init__(
        self, decay: float, sources: Sequence[Tensor], named: Callable[[Sequence[Tensor]], dict[str, Tensor]]
    ) -> None:
        """`named` maps tensors in the order of the sources to the names of the parameters."""
        self.decay, self.sources, self._named = decay, list(sources), named
        self.means = [torch.zeros_like(source) for source in self.sources]
        self.begun = False

    def update(self, step: int) -> None:
        """Add the weights after this step, counted from 1, if the mean is updated here."""
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
        """The inverse of `named`. None, for a checkpoint without a mean, starts a new mean."""
        self.begun = saved is not None
        if saved is None:
            return
        own = self.named()
        for name in sorted(own.keys() ^ saved.keys()):
            raise ArtifactError(f"The checkpoint and this model differ in the averaged weights of {name!r}.")
        for name, mean in own.items():
            found = saved[name]  # read once: each access may read a file
            if mean.shape != found.shape:
                raise ArtifactError(
                    f"The averaged {name!r} has shape {tuple(found.shape)} in the checkpoint, {tuple(mean.shape)} here."
                )
            mean.copy_(found)
