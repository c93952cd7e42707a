"""Launches kernels, and compiles all of them before the first launch.

A kernel is compiled at its first launch while everything waits, then the next one. Most of that work is outside of
Python (LLVM, ptxas, a C compiler for the launcher), so several can be compiled at once.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from triton.runtime import JITFunction, driver
from triton.runtime.jit import MockTensor

from whet.utils.device import precompute_triton_cache_key

AT_ONCE = 6
"""Kernels compiled at once. With five threads the others finish while the longest compiles; each takes 8 MB on the
host."""
Call = tuple[tuple[Any, ...], dict[str, Any]]

_noted: defaultdict[Kernel, list[Call]] | None = None
"""Launches that are only recorded while kernels are compiled ahead."""


class Kernel:
    """A Triton function that Python launches."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        launch = self.function[grid] if _noted is None else functools.partial(self._note, _noted)
        # Triton's default until 3.9; it warns that 3.10 has another.
        return functools.partial(launch, enable_fp_fusion=True)

    def _note(self, noted: defaultdict[Kernel, list[Call]], *given: Any, **options: Any) -> None:
        # The tensors themselves are not kept: all tensors of a step would stay in memory.
        noted[self].append((tuple(Address.of(each) for each in given), options))

    def compile(self, calls: list[Call], device: torch.device) -> None:
        """Compile for each recorded call in turn; Triton detects equal ones."""
        for given, options in calls:
            # A kernel that cannot be compiled is reported at its launch.
            with contextlib.suppress(Exception), torch.cuda.device(device):
                made = self.function.warmup(*given, grid=(1,), **options)
                made.run  # noqa: B018  # makes the launcher and loads the code


class Address(MockTensor):  # type: ignore[misc]
    """The properties of a tensor that Triton compiles for."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor.dtype)
        self._at = tensor.data_ptr()

    def data_ptr(self) -> int:
        return self._at

    @staticmethod
    def of(given: Any) -> Any:
        return Address(given) if isinstance(given, torch.Tensor) else given


@contextlib.contextmanager
def compiling_ahead(device: torch.device) -> Iterator[None]:
    """Record the kernels launched in this context and compile them at its end. Matrix products run on arbitrary
    values."""
    global _noted
    noted = _noted = defaultdict(list)
    try:
        yield
    finally:
        _noted = None
    compiled = {kernel: calls for kernel, calls in noted.items() if isinstance(kernel.function, JITFunction)}
    if not compiled:  # in Triton's interpreter
        return
    precompute_triton_cache_key()
    driver.active.get_current_device()  # creates the driver, once
    longest_first = sorted(compiled, key=lambda kernel: -len(kernel.function.fn.__code__.co_code))
    with ThreadPoolExecutor(min(AT_ONCE, os.cpu_count() or 1)) as pool:
        for kernel in longest_first:
            pool.submit(kernel.compile, compiled[kernel], device)
