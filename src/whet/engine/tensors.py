"""Model and optimizer as named tensors, and back. Names, not positions, so a changed model is noticed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from whet.errors import ArtifactError

Groups = dict[str, dict[str, Tensor]]


def state_tensors(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Groups:
    """Everything that training changes."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    moments: dict[str, Tensor] = {}
    for parameter, state in optimizer.state.items():
        for kind, value in state.items():
            moments[f"{names[id(parameter)]}:{kind}"] = torch.as_tensor(value)
    return {"model": model_tensors(model), "optimizer": moments}


def model_tensors(model: torch.nn.Module) -> dict[str, Tensor]:
    """Weights and persistent buffers, each stored once even where two names share it."""
    seen: set[int] = set()
    unique = {}
    for name, tensor in model.state_dict().items():
        if tensor.data_ptr() not in seen or tensor.numel() == 0:
            seen.add(tensor.data_ptr())
            unique[name] = tensor
    return unique


def load_state_tensors(
    groups: Mapping[str, Mapping[str, Tensor]], model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Put a checkpoint's tensors back; other names or shapes are refused."""
    load_model_tensors(groups["model"], model)
    parameters = dict(model.named_parameters())
    optimizer.state.clear()
    for key, value in groups["optimizer"].items():
        name, _, kind = key.rpartition(":")
        if name not in parameters:
            raise ArtifactError(f"The checkpoint has optimizer state for {name!r}, which this model does not have.")
        parameter = parameters[name]
        # AdamW keeps its step counter on the host unless it is fused on an accelerator.
        device = parameter.device if kind != "step" or parameter.device.type == "cuda" else torch.device("cpu")
        optimizer.state[parameter][kind] = value.to(device).clone()


def load_model_tensors(tensors: Mapping[str, Tensor], model: torch.nn.Module) -> None:
    """Weights in place, strictly."""
    own: dict[str, Any] = model_tensors(model)
    for name in sorted(own.keys() ^ tensors.keys()):
        where = "the checkpoint" if name in own else "this model"
        raise ArtifactError(f"{name!r} is missing from {where}: they are of another architecture.")
    with torch.no_grad():
        for name, tensor in own.items():
            if tensor.shape != tensors[name].shape:
                raise ArtifactError(
                    f"{name!r} has shape {tuple(tensors[name].shape)} in the checkpoint, {tuple(tensor.shape)} here."
                )
            tensor.copy_(tensors[name])
