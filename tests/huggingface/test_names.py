"""The names of the course come from whet; the stock ones are the stock ones, except where those fail people."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import whet
from whet import AutoTokenizer, load_dataset
from whet.errors import EnvironmentFault

SAME = {
    "transformers": (
        "AutoModelForSequenceClassification",
        "AutoTokenizer",
        "DataCollatorWithPadding",
        "EarlyStoppingCallback",
    ),
    "torch.optim": ("AdamW",),
    "accelerate": ("Accelerator",),
    "whet.metrics": ("load_metric",),
}


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in SAME.items() for name in names])
def test_what_is_right_is_re_exported_as_it_is(module: str, name: str) -> None:
    from importlib import import_module

    assert getattr(whet, name) is getattr(import_module(module), name)


def test_every_public_name_can_be_had() -> None:
    for name in whet.__all__:
        assert getattr(whet, name) is not None
    assert set(whet.__all__) <= set(dir(whet))


def test_metrics_are_at_hand() -> None:
    assert whet.metrics.load("accuracy").compute(predictions=[1, 0], references=[1, 1]) == {"accuracy": 0.5}


def test_a_tokenizer_takes_a_column_of_a_data_set(tiny_model_folder: Path) -> None:
    from datasets import Dataset

    rows = Dataset.from_dict({"one": ["ab", "c"], "two": ["d", "ef"]})
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_folder)
    expected = tokenizer(["ab", "c"], ["d", "ef"], padding=True)["input_ids"]
    assert tokenizer(rows["one"], rows["two"], padding=True)["input_ids"] == expected
    assert tokenizer(text=rows["one"], text_pair=rows["two"], padding=True)["input_ids"] == expected
    assert tokenizer(np.array(["ab", "c"]))["input_ids"] == tokenizer(["ab", "c"])["input_ids"]


def test_the_tokenizer_is_the_librarys_own(tiny_model_folder: Path, tmp_path: Path) -> None:
    import transformers

    tokenizer = AutoTokenizer.from_pretrained(tiny_model_folder)
    assert type(tokenizer) is type(transformers.AutoTokenizer.from_pretrained(tiny_model_folder))
    tokenizer.save_pretrained(tmp_path)
    assert transformers.AutoTokenizer.from_pretrained(tmp_path)("ab")["input_ids"] == tokenizer("ab")["input_ids"]


def test_mapping_a_data_set_twice_uses_its_cache(tiny_model_folder: Path, tmp_path: Path) -> None:
    """A tokenizer that pickled differently every time would be run again every time."""
    from datasets.fingerprint import Hasher

    one, other = (AutoTokenizer.from_pretrained(tiny_model_folder) for _ in range(2))
    assert Hasher.hash(one) == Hasher.hash(other)


def test_a_local_data_set_loads(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("text,label\nab,1\nc,0\n")
    rows = load_dataset("csv", data_files={"train": str(path)}, cache_dir=str(tmp_path / "cache"))
    assert rows["train"].num_rows == 2


def test_a_data_set_that_cannot_be_had_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    with pytest.raises(EnvironmentFault, match=r"no_such_set.*data_files"):
        load_dataset("no_such_set_anywhere", "mrpc", cache_dir=str(tmp_path))
