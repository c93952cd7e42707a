"""Model and optimizer as named tensors, and back. Names, not positions, so a changed model is noticed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from whet.engine.disk import write_file
from whet.errors import ArtifactError

Groups = dict[str, dict[str, Tensor]]
STAGED_AT_ONCE = 1 << 24

_SAFETENSORS_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def state_tensors(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Groups:
    """Everything that training changes."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    moments: dict[str, Tensor] = {}
    for parameter, state in optimizer.state.items():
        for kind, value in state.items():
            if value is None:  # what some optimizers keep for a moment they do not use
                continue
            moments[f"{names[id(parameter)]}:{kind}"] = torch.as_tensor(value)
    return {"model": model_tensors(model), "optimizer": moments}


def model_tensors(model: torch.nn.Module) -> dict[str, Tensor]:
    """Weights and persistent buffers, each stored once even where two names share it."""
    seen: set[int] = set()
    unique = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            unique[name] = tensor.detach()
    return unique


def load_state_tensors(
    groups: Mapping[str, Mapping[str, Tensor]], model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Put a checkpoint's tensors back; other names or shapes are refused."""
    load_model_tensors(groups["model"], model)
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
    """Weights in place, strictly."""
    own: dict[str, Any] = model_tensors(model)
    for name in sorted(own.keys() ^ tensors.keys()):
        where = "the checkpoint" if name in own else "this model"
        raise ArtifactError(f"{name!r} is missing from {where}: they are of another architecture.")
    with torch.no_grad():
        for name, tensor in own.items():
            found = tensors[name]  # once: it may be read from a file
            if tensor.shape != found.shape:
                raise ArtifactError(
                    f"{name!r} has shape {tuple(found.shape)} in the checkpoint, {tuple(tensor.shape)} here."
                )
            tensor.copy_(found)


@dataclass
class Copies:
    """Tensors as they were at one moment; training on cannot change them."""

    groups: Groups
    ready: Any = None
    """A CUDA event: the copies on the device are made. None where they are on the host already."""

    def taken(self) -> Groups:
        """The copies, once they are made; here they are let go of."""
        if self.ready is not None:
            self.ready.synchronize()
        found, self.groups = self.groups, {}
        return found


def copy_tensors(groups: Mapping[str, Mapping[str, Tensor]]) -> Copies:
    """Copies where the tensors are: on a GPU that takes a thousandth of the time of a transfer to the host."""
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


class TensorFile(Mapping[str, Tensor]):
    """The tensors of a safetensors file, each read when it is asked for: they are never all in memory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with safe_open(path, "pt") as file:
            self._names = dict.fromkeys(file.keys())

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        # Opened for each: the pages of one mapping would stay in memory until all of its tensors are gone.
        with safe_open(self._path, "pt") as file:
            return cast(Tensor, file.get_tensor(name))

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def safetensors_pieces(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> Iterator[Any]:
    """The bytes of a safetensors file, piece by piece: nothing is held twice, and no step of it holds up a thread.

    The library has the whole file in the host's memory before it writes, and keeps all Python threads waiting
    meanwhile. Tensors of one type come out as the same bytes; of several types of one width, in another order.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    place = 0
    # Wide types first, so that every tensor starts where its type may; names next, so that the bytes repeat.
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    for name in names:
        tensor = tensors[name]
        size = tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _SAFETENSORS_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [place, place + size],
        }
        place += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    staging: dict[str, Any] = {}
    for name in names:
        if tensors[name].numel():
            yield from _bytes_of(tensors[name].detach().contiguous().reshape(-1).view(torch.uint8), staging)


def save_tensors(
    tensors: Mapping[str, Tensor], filename: str | os.PathLike[str], metadata: Mapping[str, str] | None = None
) -> str | None:
    """What `safetensors.torch.save_file` writes, with no more than a piece of it in the host's memory; its SHA-256.

    The tensors may be mapped from a file of this very name: that one stays as it is until the new one is complete.
    """
    if any(tensor.dtype not in _SAFETENSORS_NAMES for tensor in tensors.values()):
        save_file(dict(tensors), filename, dict(metadata) if metadata else None)
        return None
    for device in {tensor.device for tensor in tensors.values() if tensor.is_cuda}:
        torch.cuda.current_stream(device).synchronize()  # they are read beside it, and may still be written on it
    scratch = Path(f"{os.fspath(filename)}.tmp")
    scratch.unlink(missing_ok=True)  # by a process that was killed
    try:
        written = write_file(scratch, safetensors_pieces(tensors, metadata))
        os.replace(scratch, filename)
    finally:
        scratch.unlink(missing_ok=True)
    return str(written["sha256"])


def _bytes_of(flat: Tensor, staging: dict[str, Any]) -> Iterator[Any]:
    """From a GPU part by part through one pinned buffer, and not into memory that is new each time."""
    if not flat.is_cuda:
        yield flat.numpy().data
        return
    if not staging:
        staging["buffer"] = torch.empty(STAGED_AT_ONCE, dtype=torch.uint8, pin_memory=True)
        staging["stream"] = torch.cuda.Stream(flat.device)  # type: ignore[no-untyped-call]
    for part in torch.split(flat, STAGED_AT_ONCE):
        with torch.cuda.stream(staging["stream"]):  # beside training's own stream, not in its queue
            staging["buffer"][: len(part)].copy_(part, non_blocking=True)
        staging["stream"].synchronize()
        yield staging["buffer"][: len(part)].numpy().data
