"""The training step of the fast path, with the interface of the general one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from whet.config import TrainConfig
from whet.engine.fused.cpu.adamw import AdamW, norm_of_gradients, update_on_cpu
from whet.engine.fused.cpu.layers import CpuLayerOps
from whet.engine.fused.network import FusedNetwork, for_other_rows
from whet.engine.network import Batch
from whet.engine.state_tensors import model_tensors
from whet.engine.stepper import LossOf, Stepper
from whet.errors import ArtifactError
from whet.utils.device import Hardware
from whet.utils.safetensors_files import Groups


class FusedStepper(Stepper):
    """The general step with flat gradients and a flat update."""

    def __init__(self, network: FusedNetwork, loss_of: LossOf, config: TrainConfig, hardware: Hardware) -> None:
        self.network, self.rule = network, AdamW.of(config)
        self._embeddings_of_others = False
        """Whether the sum over processes touched embedding rows that this process did not."""
        super().__init__(
            model=network.model,
            loss_of=loss_of,
            optimizer=None,  # type: ignore[arg-type]  # the update is written out in `_update`
            hardware=hardware,
            clip=config.clip,
            seed=config.seed,
            micro_rows=config.batch_size,
        )

    def backward(self, batch: Batch, divisor: float, *, step: int = 0, micro: int = 0) -> Tensor:
        self.network.add = micro > 0
        # Larger than any micro-batch number, so that every process draws its own dropout.
        self.network.pieces.step, self.network.pieces.micro = step, micro + (self.rank << 32)
        loss = self.loss_of(batch) / divisor
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def reseed(self, seed: int) -> None:
        super().reseed(seed)
        if isinstance(self.network.pieces, CpuLayerOps):  # on a GPU each batch brings its seed
            self.network.pieces.seed = seed

    def sum_gradients(self, summed: Callable[[Sequence[Tensor]], None], *, computed: bool) -> None:
        flat = self.network.flat
        if not computed:  # left over from the previous step
            for group in flat.groups():
                group.gradient.zero_()
        summed([group.gradient for group in flat.groups()])
        self._embeddings_of_others = True

    def zero(self) -> None:
        """Zero the gradients that autograd adds to and the embedding rows; the next step overwrites the matrices."""
        flat = self.network.flat
        flat.zero_head()
        self.network.pieces.clean()
        if self._embeddings_of_others:
            flat.matrices.gradient[flat.matrices.computes_until :].zero_()
            self._embeddings_of_others = False

    def tensors(self) -> Groups:
        flat = self.network.flat
        flat.write_back()
        moments = flat.moments()
        moments["rows"] = torch.from_numpy(flat.used)
        groups: Groups = {"model": model_tensors(self.model), "optimizer": moments}
        if self.average is not None:
            groups["average"] = self.average.named()
        return groups

    def load(self, groups: Mapping[str, Mapping[str, Tensor]]) -> None:
        if "optimizer" not in groups:
            self.network.load_weights(groups["model"])
            return
        flat, saved = self.network.flat, groups["optimizer"]
        if "rows" not in saved:
            raise ArtifactError("The checkpoint does not list its vocabulary rows.")
        rows, own = saved["rows"].cpu().numpy(), flat.moments()
        for name in own.keys() ^ (saved.keys() - {"rows"}):
            raise ArtifactError(f"The checkpoint and this model differ in the optimizer state of {name!r}.")
        self.network.load_weights(groups["model"])
        same_rows = np.array_equal(rows, flat.used)
        for name, tensor in own.items():
            if name.startswith(f"{flat.word}:") and not same_rows:
                # The user accepted other data: newly used rows have no moments yet.
                tensor.copy_(for_other_rows(saved[name], rows, flat.used))
            else:
                tensor.copy_(saved[name])
        self.network.words_seen = flat.words_with_moments()
        if self.average is not None and "average" in groups and not same_rows:
            averaged, now = dict(groups["average"]), flat.matrices.current(flat.word)
            averaged[flat.word] = for_other_rows(averaged[flat.word], rows, flat.used, now)
            groups = {**groups, "average": averaged}
        self.load_average(groups)

    def averaged_tensors(self) -> list[Tensor]:
        return [group.master for group in self.network.flat.groups()]

    def name_averages(self, means: Sequence[Tensor]) -> dict[str, Tensor]:
        groups = zip(self.network.flat.groups(), means, strict=True)
        return {name: group.view(mean, name) for group, mean in groups for name in group.places}

    def swap_average(self) -> None:
        super().swap_average()
        for group in self.network.flat.groups():
            group.refresh()

    def _update(self, step: int, loss: Tensor, rate: float) -> None:
        idle = self._idle()
        norm = norm_of_gradients(self.network.flat, idle)
        good = self.add_step(step, loss, norm)
        if bool(good):
            scale = min(1.0, self.clip / (float(norm) + 1e-6)) if self.clip > 0 else 1.0
            update_on_cpu(self.network.flat, self.rule, step + 1, rate, scale, idle)
        self.zero()

    def _idle(self) -> range:
        """Return rows of the word embedding that cannot change: no gradient so far, no decay, no other process."""
        if self.rule.weight_decay > 0 or self.synchronized is not None:
            return range(0)
        return self.network.flat.words_from(self.network.words_seen)
