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
        free, total = torch.cuda.mem_get_info(self.device)
        if free < total // 4:  # no memory can be freed during a capture
            torch.cuda.empty_cache()
        with torch.cuda.stream(self._stream), fixed_order(strict=False), NumbersOnDevice():
            # Thread-local mode: other threads, for example the one that saves, may call CUDA meanwhile.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                work()
            except BaseException as error:
                with contextlib.suppress(RuntimeError):  # the capture is invalid, and says so
                    graph.capture_end()
                self._leave_capture()
                if isinstance(error, RuntimeError) and not is_memory_error(error):
                    raise NotCapturable(_first_line(error)) from None
                raise
            graph.capture_end()
        return graph.replay

    def seed(self, seed: int) -> None:
        """Seed what the next launch or replay draws."""
        _cuda.default_generators[self.device.index or 0].manual_seed(seed)

    def _leave_capture(self) -> None:
        """Take the generator out of a capture that has failed: it would refuse to draw numbers outside of a graph."""
        generator = _cuda.default_generators[self.device.index or 0]
        with contextlib.suppress(RuntimeError):
            generator.graphsafe_set_state(generator.clone_state())


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
