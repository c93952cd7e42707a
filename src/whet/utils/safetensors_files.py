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

from whet.utils.files import write_file

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
