"""PEFT models in whet's Trainer: the library's own loop and its own files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers

from tests.conftest import small_model
from tests.huggingface.made import history, make_rows, make_trainer, padding_tokenizer
from tests.huggingface.test_resume import StopAt
from whet import Trainer
from whet.runs.folder import RunFolder

# PEFT 0.21 reads a property of the library that transformers 5.23 has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
SETTINGS: dict[str, Any] = {"num_train_epochs": 2, "save_steps": 2, "logging_steps": 3, "learning_rate": 1e-2}


def adapted(model: Any = None) -> Any:
    torch.manual_seed(5)
    settings = peft.LoraConfig(task_type="SEQ_CLS", r=2, lora_dropout=0.1, target_modules=["query", "value"])
    return peft.get_peft_model(model or small_model(width=64, dropout=0.1), settings)


def make(folder: Path, **others: Any) -> Trainer:
    return make_trainer(folder, model=adapted(), **{**SETTINGS, **others})


def trained(model: Any) -> dict[str, torch.Tensor]:
    return {name: each for name, each in model.named_parameters() if each.requires_grad}


def test_it_trains_as_the_librarys_trainer_does(tmp_path: Path) -> None:
    ours = make(tmp_path / "ours", eval_strategy="epoch")
    ours.train()
    assert ours.path == "stock (the model is a PeftModelForSequenceClassification) from step 0"
    theirs = transformers.Trainer(
        adapted(), ours.args, ours.data_collator, make_rows(24), make_rows(16, seed=1), padding_tokenizer()
    )
    theirs.args.output_dir = str(tmp_path / "theirs")
    theirs.train()
    assert all(torch.equal(each, trained(theirs.model)[name]) for name, each in trained(ours.model).items())


def test_a_checkpoint_holds_the_adapter_and_resumes_exactly(tmp_path: Path) -> None:
    whole = make(tmp_path / "whole")
    whole.train()
    with pytest.raises(KeyboardInterrupt, match="resume_from_checkpoint"):
        make(tmp_path / "cut", callbacks=[StopAt(3)]).train()
    resumed = make(tmp_path / "cut")
    resumed.train(resume_from_checkpoint=True)
    assert (tmp_path / "cut" / "checkpoint-4" / "adapter_model.safetensors").is_file()
    assert not (tmp_path / "cut" / "checkpoint-4" / "model.safetensors").exists()
    assert all(torch.equal(each, trained(whole.model)[name]) for name, each in trained(resumed.model).items())
    assert history(resumed) == history(whole)


def test_the_run_folder_records_it(tmp_path: Path) -> None:
    trainer = make(tmp_path, eval_strategy="epoch")
    trainer.train()
    folder = RunFolder.open(tmp_path)
    assert folder.finished
    assert "PeftModel" in folder.environment["path_why"]


def test_a_model_with_adapters_inside_trains_with_the_librarys_loop(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, model=adapted().base_model.model, **SETTINGS)
    trainer.train()
    assert trainer.path.startswith("stock (a part of the model is a peft.")
