"""Data sets and Trainers for the tests of whet.huggingface: random rows, real models, nothing on the network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.conftest import small_model
from whet import Trainer, TrainingArguments

QUIET: dict[str, Any] = {"use_cpu": True, "bf16": False, "disable_tqdm": True, "report_to": "none"}


def make_rows(rows: int = 24, *, seed: int = 0, kind: str = "binary", longest: int = 30) -> Any:
    """A tokenised data set whose label can be learned from the first token."""
    import datasets

    rng = np.random.default_rng(seed)
    table = []
    for _ in range(rows):
        length = int(rng.integers(4, longest))
        ids = rng.integers(5, 400, length).tolist()
        label: Any = {
            "binary": ids[0] % 2,
            "multilabel": [float(ids[0] % 2), float(ids[0] % 3 == 0)],
            "regression": ids[0] / 400,
        }[kind]
        table.append(
            {
                "sentence1": f"row {len(table)}",
                "label": label,
                "input_ids": ids,
                "token_type_ids": [int(place > 2) for place in range(length)],
                "attention_mask": [1] * length,
            }
        )
    return datasets.Dataset.from_list(table)


def padding_tokenizer(pad_id: int = 0) -> Any:
    """What pads, and knows two tokens."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.WordLevel({"[PAD]": pad_id, "[UNK]": 1 - pad_id}, unk_token="[UNK]"))
    names = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", model_input_names=names)


def make_trainer(folder: Path, *, model: Any = None, kind: type[Trainer] = Trainer, **others: Any) -> Trainer:
    """A Trainer on random rows; `others` go to TrainingArguments or, if it knows them, to the Trainer."""
    from transformers import PrinterCallback

    own = ("callbacks", "compute_metrics", "optimizers", "model_init", "data_collator", "compute_loss_func")
    given = {name: others.pop(name) for name in own if name in others}
    rows = {"train_dataset": others.pop("train", None) or make_rows(24)}
    rows["eval_dataset"] = others.pop("evaluation", None) or make_rows(16, seed=1)
    args = TrainingArguments(str(folder), **{**QUIET, **others})
    if "model_init" not in given:
        given["model"] = model if model is not None else small_model()
    trainer = kind(args=args, **rows, processing_class=padding_tokenizer(), **given)
    trainer.remove_callback(PrinterCallback)
    return trainer


def weights(model: Any) -> dict[str, Any]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def logged(trainer: Any, name: str = "loss") -> list[float]:
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def history(trainer: Any) -> list[dict[str, float]]:
    """What was logged, without timings, and without the mean over the steps of one call."""
    timings = ("runtime", "per_second", "train_loss")
    return [
        {name: value for name, value in entry.items() if not name.endswith(timings)}
        for entry in trainer.state.log_history
    ]
