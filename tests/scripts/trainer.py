"""A script with a Trainer, as people start it with torchrun or accelerate: FOLDER EPOCHS [stock]."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import transformers

from tests.conftest import small_model
from tests.huggingface.made import make_rows, padding_tokenizer
from whet import DataCollatorWithPadding, Trainer, TrainingArguments

folder, epochs = Path(sys.argv[1]), float(sys.argv[2])
args = TrainingArguments(
    str(folder),
    num_train_epochs=epochs,
    per_device_train_batch_size=4,
    learning_rate=1e-3,
    logging_steps=5,
    save_steps=10,
    eval_strategy="epoch",
    use_cpu=True,
    bf16=False,
)
kind = transformers.Trainer if "stock" in sys.argv else Trainer
trainer = kind(
    small_model(seed=args.process_index),
    args,
    DataCollatorWithPadding(padding_tokenizer()),
    train_dataset=make_rows(37),
    eval_dataset=make_rows(11, seed=1),
)
trainer.train()
metrics = trainer.evaluate()
found = trainer.predict(make_rows(13, seed=2))
told = {
    "eval_loss": metrics["eval_loss"],
    "predictions": found.predictions.tolist(),
    "losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
    "path": getattr(trainer, "path", ""),
}
(folder / f"rank-{args.process_index}.json").write_text(json.dumps(told))
