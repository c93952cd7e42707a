"""What saving costs: seconds a step with a save every so many steps, against none at all.

    python benchmarks/save_cost.py                         # BERT-base, a save every 50 steps
    python benchmarks/save_cost.py --layers 6 --width 384  # MiniLM's size

The two kinds of training alternate, round by round, and every round begins with the disk's queue empty, so that other
load on the machine hits both alike. Saving is the real thing: copies, SHA-256, fsync, rename, pruning.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from whet.config import make_config
from whet.data.tokens.batches import BatchOrder
from whet.data.tokens.table import Tokens, Truncation
from whet.engine.dispatch import choose_path
from whet.engine.losses import Loss
from whet.engine.network import TokenBatches
from whet.task import Task
from whet.training.checkpoints import Checkpoint, CheckpointFolder
from whet.utils.device import choose_hardware, synchronize


def main() -> int:
    asked = arguments()
    job = Job(asked)
    with TemporaryDirectory(prefix="whet-save-", dir=asked.folder) as folder:
        checkpoints = CheckpointFolder(Path(folder), keep=2)
        job.steps(2, None)
        plain, saving = [], []
        for _ in range(asked.rounds):
            os.sync()
            plain.append(job.seconds(asked.every, None))
            os.sync()
            saving.append(job.seconds(asked.every, checkpoints))
        size = sum(file.stat().st_size for file in checkpoints.folder(checkpoints.steps()[-1]).iterdir())
    without, with_saves = statistics.median(plain), statistics.median(saving)
    slower = 100 * (with_saves / without - 1)
    result = {
        "device": str(job.hardware.device),
        "path": job.network.path,
        "parameters_millions": round(job.parameters / 1e6, 1),
        "checkpoint_mb": round(size / 2**20, 1),
        "save_every": asked.every,
        "rounds": asked.rounds,
        "seconds_a_step": round(without / asked.every, 4),
        "seconds_a_step_with_saves": round(with_saves / asked.every, 4),
        "slower_percent": round(slower, 2),
        "every_round": {"without": [round(s, 3) for s in plain], "with": [round(s, 3) for s in saving]},
    }
    print(json.dumps(result, indent=1))
    return 0 if slower < asked.most else 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--rows", type=int, default=16, help="rows a step")
    parser.add_argument("--tokens", type=int, default=64, help="tokens a row at most")
    parser.add_argument("--every", type=int, default=50, help="steps between two saves")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--folder", default=None, help="on which disk to save")
    parser.add_argument("--most", type=float, default=5.0, help="exit with 1 above so many percent")
    return parser.parse_args()


class Job:
    """A BERT with random weights on random rows; the real step and the real checkpoint."""

    def __init__(self, asked: argparse.Namespace) -> None:
        from transformers import BertConfig, BertForSequenceClassification

        config = make_config({"batch_size": asked.rows, "device": asked.device}).train
        self.hardware = choose_hardware(config.device, config.precision)
        torch.manual_seed(1)
        sizes = BertConfig(
            hidden_size=asked.width,
            num_hidden_layers=asked.layers,
            num_attention_heads=asked.width // 64,
            intermediate_size=4 * asked.width,
        )
        model = BertForSequenceClassification(sizes)
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        loss, tokens = Loss(Task("binary", ("no", "yes")), None, 0.0), random_tokens(asked)
        self.network, self.stepper = choose_path(model, loss, config, self.hardware, [tokens])
        order = BatchOrder(rows=len(tokens), batch_size=asked.rows, seed=1, kind="random", lengths=tokens.lengths)
        self.feed = TokenBatches(tokens, order, self.network, loss)
        self.step = 0

    def seconds(self, count: int, checkpoints: CheckpointFolder | None) -> float:
        synchronize(self.hardware.device)
        started = time.monotonic()
        self.steps(count, checkpoints)
        synchronize(self.hardware.device)
        return time.monotonic() - started

    def steps(self, count: int, checkpoints: CheckpointFolder | None) -> None:
        """A round that saves does so at its beginning: the writing then runs beside the steps, as in a run."""
        if checkpoints is not None:
            checkpoints.save(Checkpoint(self.step, self.stepper.tensors(), {"state": {}}), -1)
        for _ in range(count):
            epoch, index = divmod(self.step, self.feed.order.steps_per_epoch)
            rows = self.feed.order.batch(epoch, index)
            self.stepper(self.step, self.feed, rows, rows, 1e-5)
            self.step += 1
        if checkpoints is not None:
            checkpoints.wait()  # what is not written by then would hold up the next save


def random_tokens(asked: argparse.Namespace) -> Tokens:
    rng = np.random.default_rng(0)
    lengths = rng.integers(asked.tokens // 2, asked.tokens + 1, 64 * asked.rows)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    ids: Any = rng.integers(1000, 30000, offsets[-1]).astype(np.int32)
    labels = rng.integers(0, 2, len(lengths)).astype(np.int64)
    return Tokens(ids, offsets, np.zeros(len(ids), np.uint8), labels, Truncation(), "random")


if __name__ == "__main__":
    sys.exit(main())
