"""A run so small that it can be killed a thousand times: a random BERT, its tokenizer, some rows, and comparisons.

Used by `whet selftest` and by the tests. Nothing is downloaded.
"""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

from whet.records import Resume, Save, without_timings
from whet.runs.folder import RunFolder

WORDS = ("apple", "brick", "cloud", "drum", "eagle", "flute", "grape", "house", "iron", "jelly")
SAVE_EVERY = 4
SETTINGS = {
    "--recipe": "course",
    "--epochs": 2,
    "--batch-size": 4,
    "--lr": 0.03,
    "--evaluations": 5,
    "--metric": "loss",
    "--save-every": SAVE_EVERY,
    "--log-every": 3,  # not at every save: a resumed run continues a half-finished sum
    "--keep": 2,
    "--precision": "float32",
    "--device": "cpu",
}


def train_arguments(source: Path, model: Path, run: Path, **changes: Any) -> list[str]:
    """Return the arguments of `whet train` on the small run; changes are flags without dashes, None removes one."""
    settings = {**SETTINGS, "--model": model, "--run": run}
    settings |= {f"--{name.replace('_', '-')}": value for name, value in changes.items()}
    flags = [[name] if value is True else [name, str(value)] for name, value in settings.items() if value is not None]
    return ["train", str(source), *(part for flag in flags for part in flag)]


def write_rows(path: Path | str, rows: int = 60) -> None:
    """Write texts whose first word determines the label."""
    chosen = random.Random(0)
    lines = ["text,label"]
    for index in range(rows):
        first, label = (("no", "bad"), ("yes", "good"))[index % 2]
        lines.append(f"{first} {' '.join(chosen.choices(WORDS, k=chosen.randint(2, 7)))} {index},{label}")
    Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_model(folder: Path | str, width: int = 16, layers: int = 2, dropout: float = 0.1) -> None:
    """Save a BERT with random weights and a tokenizer that splits words into letters."""
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)] + list("0123456789.,!?'")
    vocabulary = {word: index for index, word in enumerate([*special, *letters, *(f"##{c}" for c in letters)])}
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=64,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=2 * width,
        max_position_embeddings=64,
        pad_token_id=0,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    torch.manual_seed(1)
    BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def run_contents(run: Path) -> dict[str, Any]:
    """Return what two executions of the same training share: weights, predictions, records without timings."""
    folder = RunFolder.open(run)
    files = [
        *sorted(folder.model.iterdir()),
        folder.path / "predictions.parquet",
        folder.path / "baselines.json",
        *run.glob("parts/*/*.safetensors"),
        *folder.adapter.glob("*"),
    ]
    found = {file.relative_to(run).as_posix().removeprefix("model/"): file for file in files if file.is_file()}
    sums = {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in found.items()}
    return {"files": sums, "records": shared_records(folder)}


def shared_records(folder: RunFolder) -> list[dict[str, Any]]:
    """Return the records of a run that do not depend on interruptions: docs/design.md defines them."""
    parts = [RunFolder(path) for path in sorted(folder.path.glob("parts/*"))]
    records = [
        without_timings(record)
        for part in (folder, *parts)
        for record in part.records()
        if not isinstance(record, Resume) and not (isinstance(record, Save) and record.reason == "interrupted")
    ]
    return json.loads(json.dumps(records))  # type: ignore[no-any-return]


def differences(expected: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """Describe the differences between the contents of two runs."""
    names = sorted(expected["files"].keys() | found["files"].keys())
    said = [f"{name} differs" for name in names if expected["files"].get(name) != found["files"].get(name)]
    before, after = expected["records"], found["records"]
    if len(before) != len(after):
        said.append(f"{len(after)} records instead of {len(before)}")
    said += [f"record {i}: {b} instead of {a}" for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b]
    return said


def steps_repeated(run: Path) -> int:
    """Return the largest number of steps that one interruption of this run repeated."""
    most = reached = 0
    for record in RunFolder.open(run).all_records():
        if isinstance(record, Resume):
            most, reached = max(most, reached - record.step), record.step
        else:
            reached = max(reached, record.step)
    return most
