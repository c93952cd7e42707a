"""Small saved models to serve: real weights, a real tokenizer, and the run's own notes beside them."""

from __future__ import annotations

import json
from pathlib import Path


def save_run(folder: Path, model: Path, *, labels: tuple[str, ...] = ("bad", "good"), pair: str | None = None) -> Path:
    """A folder like that of a run, whose model has a random head."""
    from whet.config import ModelConfig
    from whet.models.pretrained import load_model, load_tokenizer, save_model
    from whet.task import Task

    task = Task("binary" if len(labels) == 2 else "multiclass", labels)
    loaded = load_model(str(model), task, ModelConfig(), seed=0)
    save_model(loaded.model, load_tokenizer(str(model), ModelConfig()), folder / "model")
    columns = {"text": "review", "pair": pair, "label": "label"}
    about = {"columns": columns, "labels": list(labels), "max_length": 32}
    (folder / "data.json").write_text(json.dumps(about))
    (folder / "records.jsonl").touch()
    return folder
