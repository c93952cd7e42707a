"""Reads and writes safetensors files piece by piece."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from whet.utils.cuda_streams import give_back_stream, take_stream
from whet.utils.files import replacing, write_file

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


class TensorFile(Mapping[str, Tensor]):
    """The tensors of a safetensors file. Each is read on access, so they are never all in memory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with safe_open(path, "pt") as file:
            self._names = dict.fromkeys(file.keys())

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        # The file is opened for each tensor: the pages of a shared mapping would stay in memory until all tensors are
        # freed.
        with safe_open(self._path, "pt") as file:
            return cast(Tensor, file.get_tensor(name))

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def safetensors_pieces(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> Iterator[Any]:
    """Yield the bytes of a safetensors file piece by piece, without a second copy and without blocking other threads.

    The library itself copies the whole file into host memory before it writes, and blocks all Python threads
    meanwhile. For tensors of one type the bytes are the same. Types of equal width come in another order.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    place = 0
    # Wide types come first, so that every tensor is aligned; then names, so that the bytes are reproducible.
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
    try:
        for name in names:
            if tensors[name].numel():
                yield from _bytes_of(tensors[name].detach().contiguous().reshape(-1).view(torch.uint8), staging)
    finally:
        if staging:
            give_back_stream(staging["stream"], staging["stream"].device)


def save_tensors(
    tensors: Mapping[str, Tensor], filename: str | os.PathLike[str], metadata: Mapping[str, str] | None = None
) -> str | None:
    """Write the same file as `safetensors.torch.save_file`, with one piece in host memory; return its SHA-256.

    The tensors may be mapped from a file of the same name, which stays as it is until the new one is complete.
    """
    if any(tensor.dtype not in _SAFETENSORS_NAMES for tensor in tensors.values()):
        save_file(dict(tensors), filename, dict(metadata) if metadata else None)
        return None
    for device in {tensor.device for tensor in tensors.values() if tensor.is_cuda}:
        # read on a side stream; the main stream may still be writing them
        torch.cuda.current_stream(device).synchronize()
    with replacing(Path(filename)) as scratch:
        written = write_file(scratch, safetensors_pieces(tensors, metadata))
    return str(written["sha256"])


def _bytes_of(flat: Tensor, staging: dict[str, Any]) -> Iterator[Any]:
    """Copy a tensor from the GPU in parts through one pinned buffer."""
    if not flat.is_cuda:
        yield flat.numpy().data
        return
    if not staging:
        staging["buffer"] = torch.empty(STAGED_AT_ONCE, dtype=torch.uint8, pin_memory=True)
        staging["stream"] = take_stream(flat.device)
    for part in torch.split(flat, STAGED_AT_ONCE):
        with torch.cuda.stream(staging["stream"]):  # a side stream, so that the copy does not wait for training
            staging["buffer"][: len(part)].copy_(part, non_blocking=True)
        staging["stream"].synchronize()
        yield staging["buffer"][: len(part)].numpy().data
