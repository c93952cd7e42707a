"""Chooses the device and the precision that a run computes with."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import threading
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils.deterministic

from whet.errors import UsageError
from whet.utils.gpu_files import no_cuda
from whet.utils.launcher import local_rank

_knowing = threading.Lock()


@dataclass(frozen=True)
class Hardware:
    """The chosen device and precision, with the reason in words."""

    device: torch.device
    precision: str
    why: str
    slow: str = ""
    """A warning that the chosen precision is emulated on this device, one sentence; empty if it is native."""

    @property
    def bf16(self) -> bool:
        return self.precision == "bf16"


def choose_hardware(device: str = "auto", precision: str = "auto") -> Hardware:
    """Return the requested device or the best available one; `auto` precision is bf16 only if it is native."""
    found = find_device(device)
    if found.type == "cuda":
        _small_workspaces()
        if found.index is not None:
            torch.cuda.set_device(found)  # events and kernels go to the current device
    native, reason = _native_bf16(found)
    if precision == "auto":
        return Hardware(found, "bf16" if native else "float32", reason)
    if precision == "bf16" and found.type == "mps":
        raise UsageError("precision is 'bf16' and the device is mps, which trains in float32 here.")
    if found.type == "cuda" and precision == "float32":
        # If the user sets float32, matrix products use no tf32 either.
        torch.backends.cuda.matmul.allow_tf32 = False
    if precision == "bf16" and not native:
        slow = f"bf16 was asked for and {reason}: it works, slowly; float32 is faster here."
        return Hardware(found, precision, f"asked for, although {reason}", slow)
    return Hardware(found, precision, "asked for")


def start_gpu_in_background(device: str) -> None:
    """Start the GPU that `choose_hardware` will choose on a background thread, while other libraries load."""
    _small_workspaces()  # set here: other threads must not see the environment change

    def start() -> None:
        with contextlib.suppress(Exception):  # `choose_hardware` reports the error later
            if device == "auto" or device.startswith("cuda"):
                _start_driver()
            if (found := find_device(device)).type == "cuda":
                for dtype in (torch.bfloat16, torch.float32):  # loads cuBLAS and starts autograd's thread
                    x = torch.zeros(16, 16, dtype=dtype, device=found, requires_grad=True)
                    (x @ x).sum().backward()  # type: ignore[no-untyped-call]
                precompute_triton_cache_key()

    threading.Thread(target=start, name="whet-gpu", daemon=True).start()


def _start_driver() -> None:
    """Start the CUDA driver without torch, which would block all threads for 0.2 s."""
    with contextlib.suppress(OSError):  # there is no driver
        ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1").cuInit(0)


def _small_workspaces() -> None:
    """Set the cuBLAS workspace of each stream to 8 MB, which is as fast as the default of 32 MB."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:2:16:8")


def precompute_triton_cache_key() -> None:
    """Compute Triton's cache key early: it hashes 0.5 GB, and the first kernel waits for it.

    The lock makes a second thread wait for the first: several threads at once take four times as long.
    """
    # other versions keep it elsewhere and compute it later
    with _knowing, contextlib.suppress(ImportError, AttributeError):
        from triton.runtime import cache

        cache.triton_key()


def find_device(name: str) -> torch.device:
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", local_rank())
        if torch.backends.mps.is_available():
            return torch.device("mps")
        return torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f"device is {name!r}.", "It must be auto, cpu, cuda, cuda:N or mps.") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise no_cuda(name)
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UsageError("device is 'mps' and torch sees no MPS device.", "Leave --device out to use the CPU.")
    return device


def _native_bf16(device: torch.device) -> tuple[bool, str]:
    if device.type == "cuda":
        native = torch.cuda.get_device_capability(device) >= (8, 0)
        return native, "the GPU computes bf16 natively" if native else "the GPU has no native bf16"
    if device.type == "cpu":
        native = onednn_takes_bf16() and (not _is_x86() or _x86_multiplies_bf16())
        return native, "the CPU computes bf16 natively" if native else "the CPU has no native bf16"
    return False, f"{device.type} trains in float32 here"


def onednn_takes_bf16() -> bool:
    """Return whether oneDNN, which multiplies matrices for torch, supports bf16 on this processor.

    `ONEDNN_MAX_CPU_ISA` limits the answer. On ARM it depends on whether the processor itself multiplies bf16.
    """
    question: Any = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", bool)
    onednn: Any = torch.backends.mkldnn
    return bool(onednn.is_available()) and bool(question())


def _is_x86() -> bool:
    return platform.machine().lower() in ("x86_64", "amd64")


def _x86_multiplies_bf16() -> bool:
    """Return whether the processor multiplies bf16. With AVX-512 alone oneDNN emulates it, slower than plain
    float32."""
    checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, check, bool)() for check in checks)


def instruction_sets() -> str:
    """Describe the instruction sets that torch uses on this processor: `AVX2, no bf16`."""
    native, _ = _native_bf16(torch.device("cpu"))
    bf16 = "native bf16" if native else "bf16 by detours" if onednn_takes_bf16() else "no bf16"
    return f"{torch.backends.cpu.get_cpu_capability()}, {bf16}"


def synchronize(device: torch.device) -> None:
    """Wait for queued work, so that a clock that is read next is correct."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def precision(hardware: Hardware) -> AbstractContextManager[Any]:
    """Context for bf16 matrix products with float32 weights, or for plain float32."""
    if hardware.bf16:
        return torch.autocast(hardware.device.type, torch.bfloat16)
    return nullcontext()


@contextmanager
def fixed_order(*, strict: bool = True) -> Iterator[None]:
    """Make torch add in a fixed order on a GPU; otherwise two runs differ in the last bits.

    If not `strict`, an operation that has no such order stays as it is, and flash attention is one of those.
    """
    settings: Any = torch.utils.deterministic
    before, filling = torch.get_deterministic_debug_mode(), settings.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=not strict)
    settings.fill_uninitialized_memory = False
    try:
        with nullcontext() if strict else warnings.catch_warnings():
            if not strict:
                warnings.filterwarnings("ignore", message=".*deterministic")
            yield
    finally:
        settings.fill_uninitialized_memory = filling
        torch.set_deterministic_debug_mode(before)
