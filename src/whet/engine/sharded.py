"""`--shard`: splits weights, gradients and moments over all processes, for models that do not fit into one.

torch's fully_shard does the work. It gathers a layer's weights when the layer computes and frees them afterwards, and
sums its gradients on the rank that owns the shard. So all processes must make the same passes in the same order. A
process with fewer rows computes one that counts for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from whet.distributed.group import DistributedContext
from whet.engine.network import BatchSource, Rows
from whet.engine.state_tensors import load_model_tensors, model_tensors
from whet.engine.stepper import Stepper, split
from whet.utils.device import Hardware
from whet.utils.safetensors_files import Groups


def shard_model(model: Any, hardware: Hardware, ranks: DistributedContext) -> Any:
    """Return the same module with sharded parameters."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    mesh = init_device_mesh(hardware.device.type, (ranks.world,))
    layers = set(getattr(model, "_no_split_modules", None) or ())
    for module in model.modules():
        if type(module).__name__ in layers:
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # Every process already divided by the divisor of all rows: gradients are summed, not averaged.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    return model


class ShardedStepper(Stepper):
    """A step of all processes together; each keeps and updates its shard."""

    lockstep = True

    def __init__(self, ranks: DistributedContext, plain: type, **settings: Any) -> None:
        super().__init__(**settings)
        self.ranks, self._plain = ranks, plain

    def __call__(self, step: int, feed: BatchSource, rows: Rows, share: Rows, rate: float) -> None:
        with self.ranks.translate_connection_errors(computing=True):
            super().__call__(step, feed, rows, share, rate)

    def parts(self, rows: Rows, share: Rows, divisor: float) -> Sequence[tuple[Rows, float]]:
        """Return as many passes as the process with the most rows makes."""
        wanted = math.ceil(math.ceil(len(rows) / self.ranks.world) / self.micro_rows)
        own = [(part, divisor) for part in split(share, self.micro_rows)]
        return own + [(rows[:1], math.inf)] * (wanted - len(own))

    def sum_gradients(self, summed: Callable[[Sequence[Tensor]], None], *, computed: bool) -> None:
        """Nothing to do: the backward pass has summed them."""

    def clipped(self, limit: float) -> Tensor:
        return _whole(super().clipped(limit))

    def tensors(self) -> Groups:
        """Gather tensor after tensor from all processes; only the main process keeps them."""
        self._let_go()
        return {group: self._gathered(tensors) for group, tensors in super().tensors().items()}

    def load(self, groups: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Load this process's shard of each tensor."""
        self._let_go()
        parameters = dict(self.model.named_parameters())
        model = {name: _share_like(parameters.get(name), tensor) for name, tensor in groups["model"].items()}
        shares: Groups = {"model": model}
        if "average" in groups:
            found = groups["average"]
            shares["average"] = {name: _share_like(parameters.get(name), found[name]) for name in found}
        if "optimizer" in groups:
            shares["optimizer"] = {
                key: _share_like(parameters.get(key.rpartition(":")[0]), tensor) if tensor.dim() else tensor
                for key, tensor in groups["optimizer"].items()
            }
        super().load(shares)

    def finished_model(self) -> Any:
        """Return a complete module on the host of the main process, None on the others."""
        self._let_go()
        weights = self._gathered(model_tensors(self.model))
        if not self.ranks.is_main:
            return None
        model = self._plain(self.model.config)
        load_model_tensors(weights, model)
        return model

    def averaged_tensors(self) -> list[Tensor]:
        """Return this process's shards: the mean of a shard needs no other process."""
        return [getattr(each, "_local_tensor", each) for each in super().averaged_tensors()]

    def name_averages(self, means: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return the means as sharded tensors, so that they can be gathered like the weights."""
        named = super().name_averages(means)
        parameters = dict(self.model.named_parameters())
        return {name: _as_share_of(parameters[name], mean) for name, mean in named.items()}

    def swap_average(self) -> None:
        self._let_go()
        super().swap_average()

    def _let_go(self) -> None:
        """Release weights that are still gathered after a pass without a backward pass."""
        from torch.distributed.fsdp import FSDPModule

        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def _gathered(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found = {}
        for name in sorted(tensors):  # the order must be the same on all processes, however it was read
            with self.ranks.translate_connection_errors():
                whole = _whole(tensors[name])
            if self.ranks.is_main:
                found[name] = whole.cpu()
        return found


def _whole(tensor: Tensor) -> Tensor:
    gather = getattr(tensor, "full_tensor", None)
    return tensor if gather is None else gather()


def _as_share_of(parameter: Any, local: Tensor) -> Tensor:
    """Return a sharded tensor like this parameter, from this process's shard."""
    from torch.distributed.tensor import DTensor

    if not isinstance(parameter, DTensor):
        return local
    return DTensor.from_local(
        local, parameter.device_mesh, parameter.placements, shape=parameter.shape, stride=parameter.stride()
    )


def _share_like(like: Any, whole: Tensor) -> Tensor:
    """Return this process's shard of a complete tensor."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(like, DTensor):
        return whole
    return distribute_tensor(whole.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
