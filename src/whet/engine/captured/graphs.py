"""Runs work on a CUDA stream of its own, and captures it as graphs that share one pool of memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from whet.utils.cuda_streams import stream_of
from whet.utils.device import fixed_order
from whet.utils.memory import is_memory_error

Work = Callable[[], Any]
CUT = 160
"""The most characters of an error that become part of a reason."""

# torch has no type annotations for these.
_cuda: Any = torch.cuda


class NotCapturable(Exception):
    """The work cannot become a graph, with the reason in words. What was done before is as if it had not happened."""


class Recorder:
    """Launches and captures work. Graphs share their memory, so only one of them may run at a time."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream, self._pool = stream_of(self, device), torch.cuda.graph_pool_handle()

    def forget(self) -> None:
        """Begin a new pool: the memory of one goes with the last of its graphs, and its handle cannot be used again."""
        self._pool = torch.cuda.graph_pool_handle()

    def launch(self, work: Work) -> None:
        """Run the work once without a graph, on the stream that captures it."""
        asking = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(asking)
        try:
            with torch.cuda.stream(self._stream), fixed_order(strict=False), NumbersOnDevice():
                work()
        finally:
            asking.wait_stream(self._stream)

    def capture(self, work: Work) -> Callable[[], None]:
        """Return the work as a function that launches all of it at once. It must have run before."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self.device)
        self._make_room()
        with torch.cuda.stream(self._stream), fixed_order(strict=False), NumbersOnDevice():
            # Thread-local mode: other threads, for example the one that saves, may call CUDA meanwhile.
            try:
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                work()
                graph.capture_end()
            except BaseException as error:
                self._leave_capture(graph)
                if isinstance(error, RuntimeError) and not is_memory_error(error):
                    raise NotCapturable(_first_line(error)) from None
                raise
        return graph.replay

    def _make_room(self) -> None:
        """Free cached memory if it may be needed: none can be freed during a capture."""
        free, total = torch.cuda.mem_get_info(self.device)
        cached = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        if free < max(total // 4, cached):
            torch.cuda.empty_cache()

    def seed(self, seed: int) -> None:
        """Seed what the next launch or replay draws."""
        _cuda.default_generators[self.device.index or 0].manual_seed(seed)

    def _leave_capture(self, graph: torch.cuda.CUDAGraph) -> None:
        """End a capture that has failed, and what torch up to 2.11 leaves of it.

        The generator would refuse to draw numbers outside of a graph, and the allocator would not free cached memory.
        """
        index = self.device.index if self.device.index is not None else torch.cuda.current_device()
        generator = _cuda.default_generators[index]
        for leave in (
            graph.capture_end,  # the capture is invalid, and this says so
            lambda: torch._C._cuda_endAllocateToPool(index, self._pool),  # type: ignore[attr-defined]
            lambda: generator.graphsafe_set_state(generator.clone_state()),
        ):
            with contextlib.suppress(RuntimeError, AttributeError):
                leave()
        self.forget()


class NumbersOnDevice(TorchFunctionMode):
    """Make single numbers where they belong. The library copies some of them from the host, which no graph can hold."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        single = func is torch.tensor and len(args) == 1 and isinstance(args[0], bool | int | float)
        if single and kwargs.get("device") is not None:
            return torch.full((), args[0], **kwargs)
        return func(*args, **kwargs)


def _first_line(error: BaseException) -> str:
    line = (str(error).splitlines() or [type(error).__name__])[0]
    return line if len(line) <= CUT else f"{line[:CUT]}…"
