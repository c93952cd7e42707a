"""What launches and captures work, without a GPU: a replay runs the work once more."""

from __future__ import annotations

from collections.abc import Callable

import torch

from whet.engine.captured.graphs import NotCapturable

Work = Callable[[], None]


class Replaying:
    """What a recorder is without a GPU."""

    def __init__(self, refuses: str = "") -> None:
        self.refuses, self.captures, self.forgotten = refuses, 0, 0

    def launch(self, work: Work) -> None:
        work()

    def capture(self, work: Work) -> Work:
        if self.refuses:
            raise NotCapturable(self.refuses)
        self.captures += 1
        return work

    def seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def forget(self) -> None:
        self.forgotten += 1
