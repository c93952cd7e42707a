"""Milliseconds per step of three Trainers on the same rows, in turns: the library's, whet's, and its slower path.

The engine that whet's Trainer drives is timed alone beside them: the difference is what the Trainer adds.

    python benchmarks/trainer_overhead.py [--model FOLDER] [--rows 512] [--batch 8] [--rounds 3] [--steps 60] [--cpu]

A turn trains so many steps; the first third is not counted, because the first steps of a length are compiled and
captured. Without --model it is a BERT of random weights with the sizes of --layers and --width.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from typing import Any

import numpy as np
import torch
import transformers

import whet


class OnTheLibrarysLoop(whet.Trainer):  # type: ignore[misc, valid-type]
    """Overrides a method that shapes training, without changing it."""

    def training_step(self, *given: Any, **named: Any) -> Any:
        return super().training_step(*given, **named)


class Clock(transformers.TrainerCallback):  # type: ignore[misc]
    """When a third of the steps was done, and when all were."""

    def __init__(self, warm: int) -> None:
        self.warm, self.begun, self.ended = warm, 0.0, 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self.device = args.device

    def on_log(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now = time.perf_counter()
        if state.global_step == self.warm:
            self.begun = now
        elif state.global_step == state.max_steps and not self.ended:
            self.ended = now


def make_rows(count: int, vocabulary: int) -> Any:
    import datasets

    rng = np.random.default_rng(0)
    lengths = rng.integers(20, 90, count)
    rows = [rng.integers(5, vocabulary, length).tolist() for length in lengths]
    masks = [[1] * len(row) for row in rows]
    return datasets.Dataset.from_dict(
        {"input_ids": rows, "attention_mask": masks, "label": [row[0] % 2 for row in rows]}
    )


def padding_tokenizer() -> Any:
    from tokenizers import Tokenizer, models

    backend = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1}, unk_token="[UNK]"))
    names = ["input_ids", "attention_mask"]
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", model_input_names=names)


def make_model(chosen: argparse.Namespace) -> Any:
    if chosen.model:
        return transformers.AutoModelForSequenceClassification.from_pretrained(chosen.model)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        num_hidden_layers=chosen.layers,
        hidden_size=chosen.width,
        num_attention_heads=max(1, chosen.width // 64),
        intermediate_size=4 * chosen.width,
    )
    return transformers.BertForSequenceClassification(config)


def make_trainer(kind: type, chosen: argparse.Namespace, rows: Any, folder: str, callbacks: list[Any]) -> Any:
    arguments = whet.TrainingArguments if issubclass(kind, whet.Trainer) else transformers.TrainingArguments
    args = arguments(
        folder,
        max_steps=chosen.steps,
        per_device_train_batch_size=chosen.batch,
        logging_steps=chosen.steps // 3,
        save_strategy="no",
        bf16=chosen.bf16,
        use_cpu=chosen.cpu,
        disable_tqdm=True,
        report_to="none",
    )
    tokenizer = padding_tokenizer()
    return kind(make_model(chosen), args, train_dataset=rows, processing_class=tokenizer, callbacks=callbacks)


def turn(kind: type, chosen: argparse.Namespace, rows: Any) -> tuple[float, str]:
    """Milliseconds per step, and the path."""
    warm = chosen.steps // 3
    with tempfile.TemporaryDirectory() as folder:
        clock = Clock(warm)
        trainer = make_trainer(kind, chosen, rows, folder, [clock])
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
        return 1000 * (clock.ended - clock.begun) / (chosen.steps - warm), getattr(trainer, "path", "")


def turn_of_engine(chosen: argparse.Namespace, rows: Any) -> float:
    """Milliseconds per step without the Trainer: the same stepper on as many rows, in the engine's own order."""
    from whet.huggingface.fast_epoch import Fast

    def steps(first: int, last: int) -> None:
        for step in range(first, last):
            at = fast.feed.order.at(step)
            fast.stepper(step, fast.feed, at, at, 5e-5)
        if fast.hardware.device.type == "cuda":
            torch.cuda.synchronize(fast.hardware.device)

    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(whet.Trainer, chosen, rows, folder, [])
        trainer.create_optimizer_and_scheduler(chosen.steps)
        trainer.model.train()
        fast = Fast(trainer, trainer.get_train_dataloader())
        warm = chosen.steps // 3
        steps(0, warm)
        begun = time.perf_counter()
        steps(warm, chosen.steps)
        return 1000 * (time.perf_counter() - begun) / (chosen.steps - warm)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    for name, value in (("layers", 12), ("width", 768), ("rows", 512), ("batch", 8), ("rounds", 3), ("steps", 60)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--cpu", action="store_true")
    chosen = parser.parse_args()
    chosen.steps = max(3, chosen.steps - chosen.steps % 3)  # a log falls on the first third and on the end
    rows = make_rows(chosen.rows, make_model(chosen).config.vocab_size)
    kinds = {"transformers": transformers.Trainer, "whet": whet.Trainer, "whet, library's loop": OnTheLibrarysLoop}
    found: dict[str, list[float]] = {name: [] for name in kinds}
    paths = {}
    for _ in range(chosen.rounds):
        for name, kind in kinds.items():
            milliseconds, paths[name] = turn(kind, chosen, rows)
            found[name].append(milliseconds)
        found.setdefault("engine alone", []).append(turn_of_engine(chosen, rows))
    for name, times in found.items():
        print(f"{name:22} {statistics.median(times):9.2f} ms per step  {paths.get(name, '')}")


if __name__ == "__main__":
    main()
