"""What tests/soak.py does in forks of its warm process: damages to the cache, and the Trainer that is killed."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from pathlib import Path
from typing import Any

TRAINER_WIDTHS = {"fast": 64, "library": 32}
"""Layers of 64 and more go on the fast path; narrower ones are trained by the library's own loop."""
SETTINGS: dict[str, Any] = {
    "num_train_epochs": 3,
    "save_steps": 2,
    "logging_steps": 3,
    "eval_strategy": "steps",
    "eval_steps": 3,
    "learning_rate": 1e-3,
    "lr_scheduler_type": "cosine",
    "weight_decay": 0.01,
}


def train_with_trainer(folder: str, path: str) -> None:
    """Begin the training, or go on from its newest checkpoint; then write down how it ended."""
    from tests.conftest import small_model
    from tests.huggingface.made import history, make_trainer
    from whet.huggingface.checkpoints import newest_whole

    warnings.simplefilter("ignore")  # a checkpoint that was not written to its end is said, and passed over
    place = Path(folder) / "out"
    trainer = make_trainer(place, model=small_model(width=TRAINER_WIDTHS[path], dropout=0.1), **SETTINGS)
    trainer.train(resume_from_checkpoint=place.is_dir() and newest_whole(place) is not None)
    sums = {name: hashlib.sha256(each.numpy()).hexdigest() for name, each in trainer.model.state_dict().items()}
    ended = {"weights": sums, "history": history(trainer), "fast": trainer.path.startswith("fused")}
    (Path(folder) / "ended.json").write_text(json.dumps(ended))


def damage_cache(folder: str, count: int, seed: int, result: str) -> None:
    """So many damages to entries; by kind, what was tried, noticed and read as before."""
    from tests.cache_damages import letter_tokenizer, reader, trials, write_source

    source, root = Path(folder) / "source", Path(folder) / "cache"
    source.mkdir()
    write_source(source)
    os.environ["WHET_CACHE"] = str(root)
    rows: dict[str, dict[str, int]] = {}
    for trial in trials(reader(root, source, letter_tokenizer()), root, count, seed):
        row = rows.setdefault(trial.damage, {"tried": 0, "told": 0, "same": 0})
        for name, true in (("tried", True), ("told", trial.told), ("same", trial.same)):
            row[name] += true
    Path(result).write_text(json.dumps(rows))
