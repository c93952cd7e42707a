"""Counters of the server in Prometheus' text format. Only the event loop's thread writes them."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from whet.utils.memory import resident_bytes

if TYPE_CHECKING:
    from whet.inference.serving.batching import Batcher

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Counters:
    """Requests by path and status, predicted rows, seconds of /predict."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.open = 0
        """Requests in progress."""
        self._durations = [0] * (len(SECONDS) + 1)
        self._seconds = 0.0

    def predicted(self, seconds: float) -> None:
        """Add the duration of a /predict request, from its first byte to its response."""
        self._durations[bisect_left(SECONDS, seconds)] += 1
        self._seconds += seconds

    def text(self, batcher: Batcher | None, ready: bool) -> str:
        """Return all metrics."""
        lines = [
            *_metric("whet_ready", "gauge", "1 if requests are answered.", [("", int(ready))]),
            *_metric("whet_requests_open", "gauge", "Requests that are being answered.", [("", self.open)]),
            *_metric(
                "whet_requests_total",
                "counter",
                "Requests by path and status.",
                [
                    (f'{{path="{path}",status="{status}"}}', count)
                    for (path, status), count in sorted(self.requests.items())
                ],
            ),
            *_histogram(
                "whet_predict_seconds", "Seconds of a request for predictions.", SECONDS, self._durations, self._seconds
            ),
        ]
        if (resident := resident_bytes()) is not None:
            meaning = "Memory of this process that is resident."
            lines += _metric("process_resident_memory_bytes", "gauge", meaning, [("", resident)])
        if batcher is not None:
            sizes = sorted(dict(batcher.batch_sizes).items())
            lines += _metric("whet_queue_rows", "gauge", "Rows that wait.", [("", batcher.waiting)])
            bounds, counts = [size for size, _ in sizes], [count for _, count in sizes]
            lines += _histogram(
                "whet_batch_rows", "Rows that were computed together.", bounds, [*counts, 0], batcher.rows
            )
        return "\n".join(lines) + "\n"


def _metric(name: str, kind: str, meaning: str, values: Iterable[tuple[str, float]]) -> list[str]:
    return [
        f"# HELP {name} {meaning}",
        f"# TYPE {name} {kind}",
        *(f"{name}{labels} {value}" for labels, value in values),  # in full: `:g` would round a million requests
    ]


def _histogram(name: str, meaning: str, bounds: Iterable[float], counts: list[int], total: float) -> list[str]:
    """Turn the counts of single buckets into cumulative ones, as Prometheus expects."""
    lines, below = [f"# HELP {name} {meaning}", f"# TYPE {name} histogram"], 0
    for bound, count in zip(bounds, counts, strict=False):
        below += count
        lines.append(f'{name}_bucket{{le="{bound:g}"}} {below}')
    everything = sum(counts)
    return [*lines, f'{name}_bucket{{le="+Inf"}} {everything}', f"{name}_sum {total}", f"{name}_count {everything}"]
