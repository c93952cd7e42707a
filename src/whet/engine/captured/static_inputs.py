"""Inputs of a graph at a fixed place on the device, filled through pinned memory ahead of the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

STAGES = 4
"""The host may fill the inputs of so many replays before the device has read the first."""


class StaticInputs:
    """Integers and real numbers in one buffer, so that one copy transfers both."""

    def __init__(self, integers: int, reals: int, device: torch.device) -> None:
        size = integers + -(-reals // 2)
        self._buffer = torch.zeros(size, dtype=torch.int64, device=device)
        self.integers = self._buffer[:integers]
        self.reals = self._buffer[integers:].view(torch.float32)[:reals]
        self._device, self._on_gpu = device, device.type == "cuda"
        stages = torch.zeros(STAGES, size, dtype=torch.int64)
        self._stages = stages.pin_memory() if self._on_gpu else stages
        self._copied: list[Any] = [torch.cuda.Event() for _ in range(STAGES)] if self._on_gpu else []  # type: ignore[no-untyped-call]
        self._turn = 0

    def fill(self, integers: Any, reals: Any) -> None:
        """Copy these values to the device; waits only if the host is `STAGES` copies ahead of it."""
        which, self._turn = self._turn % STAGES, self._turn + 1
        if self._on_gpu:
            self._copied[which].synchronize()
        staged = self._stages[which].numpy()
        staged[: len(integers)] = integers
        staged[len(self.integers) :].view(np.float32)[: len(reals)] = reals
        self._buffer.copy_(self._stages[which], non_blocking=True)
        if self._on_gpu:
            self._copied[which].record(torch.cuda.current_stream(self._device))
