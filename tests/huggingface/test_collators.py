"""whet's collator gives what the stock one gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.huggingface.made import make_rows, make_trainer
from whet import AutoTokenizer, DataCollatorWithPadding, PaddingCollator
from whet.errors import UsageError


def rows_and_tokenizer(folder: Path) -> tuple[list[dict[str, Any]], Any]:
    return list(make_rows(5).remove_columns(["sentence1"])), AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("multiple", [None, 8])
def test_batches_are_the_stock_ones(multiple: int | None, tiny_model_folder: Path) -> None:
    rows, tokenizer = rows_and_tokenizer(tiny_model_folder)
    expected = DataCollatorWithPadding(tokenizer, pad_to_multiple_of=multiple)(rows)
    found = PaddingCollator(tokenizer, multiple)(rows)
    assert set(found) == set(expected)
    assert all(torch.equal(found[name], expected[name]) for name in found)


def test_a_dictionary_of_columns_works_as_in_the_course(tiny_model_folder: Path) -> None:
    rows, tokenizer = rows_and_tokenizer(tiny_model_folder)
    collate = PaddingCollator(tokenizer)
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    assert all(torch.equal(each, collate(rows)[name]) for name, each in collate(columns).items())


def test_the_trainer_takes_either_on_the_fast_path(tiny_model_folder: Path, tmp_path: Path) -> None:
    _, tokenizer = rows_and_tokenizer(tiny_model_folder)
    for collator in (PaddingCollator(tokenizer), DataCollatorWithPadding(tokenizer)):
        trainer = make_trainer(tmp_path, data_collator=collator, max_steps=1, save_strategy="no")
        trainer.train()
        assert trainer.path.startswith("packed")


def test_padding_on_the_left_is_left_to_the_stock_one(tiny_model_folder: Path) -> None:
    _, tokenizer = rows_and_tokenizer(tiny_model_folder)
    tokenizer.padding_side = "left"
    with pytest.raises(UsageError, match="DataCollatorWithPadding"):
        PaddingCollator(tokenizer)
