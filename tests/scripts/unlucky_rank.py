"""`whet`, where something befalls one of several processes alone: in an evaluation, or reading the best weights."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import whet.training.checkpoints as checkpoint
import whet.training.evaluation as evaluation
from whet.cli import entry
from whet.errors import ArtifactError


def out_of_memory(at: int) -> None:
    """Once, in the evaluation of this number."""
    compute, calls = evaluation.compute_logits, iter(range(1, 10**6))

    def disturbed(network: Any, *given: Any, **named: Any) -> Any:
        if next(calls) == at:
            network.logits = _failing_once(network.logits, network)
        return compute(network, *given, **named)

    evaluation.compute_logits = disturbed


def _failing_once(real: Callable[[Any], Any], network: Any) -> Callable[[Any], Any]:
    def fail(batch: Any) -> Any:
        network.logits = real
        raise torch.OutOfMemoryError("out of memory: for this test")

    return fail


def damaged_weights() -> None:
    """As a disk on the network shows them to one machine and not to the other."""
    prove = checkpoint._prove

    def disturbed(path: Path, entry: Any) -> None:
        prove(path, entry)
        if path.name == checkpoint.WEIGHTS:
            raise ArtifactError(f"{str(path)!r} is damaged: it does not match its SHA-256.")

    checkpoint._prove = disturbed


if __name__ == "__main__":
    what, sys.argv = sys.argv[1], ["whet", *sys.argv[2:]]
    if os.environ["RANK"] == "1":
        damaged_weights() if what == "damage" else out_of_memory(int(what))
    entry()
