"""Arguments of the library mean the same to both Trainers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers

from tests.huggingface.parity import EVERY_STEP, EVERY_TWO, FUSED, Use, accuracy, compare

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")

ARGUMENTS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "num_train_epochs": {"max_steps": -1, "num_train_epochs": 1.5},
    "per_device_train_batch_size": {"per_device_train_batch_size": 5},
    "accumulation with a short group": {"gradient_accumulation_steps": 3, "per_device_train_batch_size": 2},
    "linear with warm-up": {"warmup_steps": 2},
    "warm-up as a share": {"warmup_steps": 0.5},
    "cosine": {"lr_scheduler_type": "cosine"},
    "restarts": {"lr_scheduler_type": "cosine_with_restarts", "lr_scheduler_kwargs": {"num_cycles": 2}},
    "constant": {"lr_scheduler_type": "constant"},
    "constant with warm-up": {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 2},
    "polynomial": {"lr_scheduler_type": "polynomial"},
    "inverse square root": {"lr_scheduler_type": "inverse_sqrt", "warmup_steps": 1},
    "plateau": {"lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": {"patience": 0}, **EVERY_STEP},
    "weight_decay": {"weight_decay": 0.1},
    "betas and epsilon": {"adam_beta1": 0.8, "adam_beta2": 0.95, "adam_epsilon": 1e-6},
    "optim adamw_torch": {"optim": "adamw_torch"},
    "clipping": {"max_grad_norm": 0.05},
    "no clipping": {"max_grad_norm": 0.0},
    "label smoothing": {"label_smoothing_factor": 0.2, **EVERY_TWO},
    "label smoothing, accumulated": {"label_smoothing_factor": 0.2, "gradient_accumulation_steps": 2},
    "seed": {"seed": 7},
    "data_seed": {"data_seed": 5},
    "sequential": {"train_sampling_strategy": "sequential"},
    "grouped by length": {"train_sampling_strategy": "group_by_length", "num_train_epochs": 2, "max_steps": -1},
    "dataloader_drop_last": {"dataloader_drop_last": True, **EVERY_TWO},
    "workers that persist": {"dataloader_num_workers": 1, "dataloader_persistent_workers": True, **EVERY_TWO},
    "no pinned memory": {"dataloader_pin_memory": False},
    "evaluation by steps": {**EVERY_TWO, "per_device_eval_batch_size": 3},
    "evaluation by epochs": {"eval_strategy": "epoch", "save_strategy": "epoch", "logging_strategy": "epoch"},
    "eval_delay": {**EVERY_STEP, "eval_delay": 2},
    "eval_on_start": {**EVERY_TWO, "eval_on_start": True},
    "prediction_loss_only": {**EVERY_TWO, "prediction_loss_only": True},
    "eval_accumulation_steps": {**EVERY_TWO, "eval_accumulation_steps": 1},
    "best model": {**EVERY_TWO, "load_best_model_at_end": True, "save_total_limit": 1},
    "best by accuracy": {**EVERY_TWO, "metric_for_best_model": "accuracy", "load_best_model_at_end": True},
    "save the best": {"save_strategy": "best", "metric_for_best_model": "accuracy", **EVERY_STEP},
    "save_only_model": {**EVERY_TWO, "save_only_model": True},
    "save_total_limit": {"save_strategy": "steps", "save_steps": 1, "save_total_limit": 2},
    "hub fields without a push": {"push_to_hub": False, "hub_model_id": "a/b", "hub_token": "t", "hub_strategy": "end"},
    "minimal rate": {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": 1e-5}},
    "warm-up, stable, decay": {
        "lr_scheduler_type": "warmup_stable_decay",
        "lr_scheduler_kwargs": {"num_decay_steps": 1},
    },
    "logging_first_step": {"logging_steps": 3, "logging_first_step": True},
    "logging as a share": {"logging_steps": 0.5},
    "no logs": {"logging_strategy": "no"},
    "all tokens counted": {"include_num_input_tokens_seen": "all"},
    "tokens counted without padding": {"include_num_input_tokens_seen": "non_padding"},
    "auto_find_batch_size": {"auto_find_batch_size": True},
    "torch_empty_cache_steps": {"torch_empty_cache_steps": 2},
    "skip_memory_metrics": {"skip_memory_metrics": True},
}
STOCK_ARGUMENTS: dict[str, dict[str, Any]] = {
    "stock (the optimizer is Adafactor)": {"optim": "adafactor"},
    "stock (the optimizer is SGD)": {"optim": "sgd"},
    "stock (neftune_noise_alpha is 5.0)": {"neftune_noise_alpha": 5.0},
    "stock (gradient_checkpointing is True)": {"gradient_checkpointing": True},
    "stock (accelerator_config": {"accelerator_config": {"use_seedable_sampler": False}},
}


@pytest.mark.parametrize("name", list(ARGUMENTS))
def test_an_argument_means_the_same_on_the_fast_path(name: str, tmp_path: Path) -> None:
    compare(Use(FUSED, ARGUMENTS[name], lambda: {"compute_metrics": accuracy}), tmp_path)


@pytest.mark.parametrize("path", list(STOCK_ARGUMENTS))
def test_an_argument_that_changes_the_training_takes_the_librarys_loop(path: str, tmp_path: Path) -> None:
    if "gradient_checkpointing" in path and not hasattr(transformers.TrainingArguments, "gradient_checkpointing"):
        path, args = path.replace("gradient", "activation"), {"activation_checkpointing": True}
    else:
        args = STOCK_ARGUMENTS[path]
    compare(Use(path, args), tmp_path)
