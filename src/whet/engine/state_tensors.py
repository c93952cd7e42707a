"""Converts model and optimizer to named tensors and back. Names instead of positions, so that a changed model
raises."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whet.errors import ArtifactError
from whet.models.lora import frozen_names
from whet.utils.safetensors_files import Groups


def state_tensors(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Groups:
    """Return every tensor that training changes."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    moments: dict[str, Tensor] = {}
    for parameter, state in optimizer.state.items():
        for kind, value in state.items():
            if value is None:  # some optimizers keep this for a moment that they do not use
                continue
            moments[f"{names[id(parameter)]}:{kind}"] = torch.as_tensor(value)
    return {"model": trained_tensors(model), "optimizer": moments}


def model_tensors(model: torch.nn.Module) -> dict[str, Tensor]:
    """Return weights and persistent buffers, each stored once even if two names share it."""
    seen: set[int] = set()
    unique = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            unique[name] = tensor.detach()
    return unique


def trained_tensors(model: torch.nn.Module) -> dict[str, Tensor]:
    """Return the same without the weights that adapters leave as they are."""
    frozen = frozen_names(model)
    return {name: tensor for name, tensor in model_tensors(model).items() if name not in frozen}


def load_state_tensors(
    groups: Mapping[str, Mapping[str, Tensor]], model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Load a checkpoint's tensors; other names or shapes raise."""
    load_tensors(groups["model"], trained_tensors(model))
    if "optimizer" not in groups:
        return
    parameters = dict(model.named_parameters())
    optimizer.state.clear()
    for key, value in groups["optimizer"].items():
        name, _, kind = key.rpartition(":")
        if name not in parameters:
            raise ArtifactError(f"The checkpoint has optimizer state for {name!r}, which this model does not have.")
        parameter = parameters[name]
        if value.dim() and value.shape != parameter.shape:
            raise ArtifactError(
                f"The optimizer state of {name!r} has shape {tuple(value.shape)}, {tuple(parameter.shape)} here."
            )
        # AdamW keeps its step counter on the host unless it is fused on an accelerator.
        device = parameter.device if kind != "step" or parameter.device.type == "cuda" else torch.device("cpu")
        optimizer.state[parameter][kind] = value.to(device).clone()


def load_model_tensors(tensors: Mapping[str, Tensor], model: torch.nn.Module) -> None:
    """Load weights in place, strictly."""
    load_tensors(tensors, model_tensors(model))


def load_tensors(tensors: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    """Copy tensors into those of the same name; other names or shapes raise."""
    for name in sorted(own.keys() ^ tensors.keys()):
        where = "the checkpoint" if name in own else "this model"
        raise ArtifactError(f"{name!r} is missing from {where}: they are of another architecture.")
    with torch.no_grad():
        for name, tensor in own.items():
            found = tensors[name]  # read once: each access may read a file
            if tensor.shape != found.shape:
                raise ArtifactError(
                    f"{name!r} has shape {tuple(found.shape)} in the checkpoint, {tuple(tensor.shape)} here."
                )
            tensor.copy_(found)


@dataclass
class Copies:
    """Copies of tensors at one moment, which further training does not change."""

    groups: Groups
    ready: Any = None
    """A CUDA event: the copies on the device are complete. None if they are on the host."""

    def taken(self) -> Groups:
        """Wait for the copies, return them and drop this object's reference."""
        if self.ready is not None:
            self.ready.synchronize()
        found, self.groups = self.groups, {}
        return found


def copy_tensors(groups: Mapping[str, Mapping[str, Tensor]]) -> Copies:
    """Copy tensors on their device: on a GPU that takes a thousandth of the time of a transfer to the host."""
    try:
        copies = {
            group: {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}
            for group, tensors in groups.items()
        }
    except torch.OutOfMemoryError:
        return Copies(
            {
                group: {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
                for group, tensors in groups.items()
            }
        )
    if not any(tensor.is_cuda for tensors in copies.values() for tensor in tensors.values()):
        return Copies({group: {n: t.cpu() for n, t in tensors.items()} for group, tensors in copies.items()})
    ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
    ready.record()
    return Copies(copies, ready)
