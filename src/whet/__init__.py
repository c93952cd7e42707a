"""whet sharpens a pretrained transformer on your labelled text.

Names are loaded when they are first used, so `import whet` stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from torch.optim import AdamW
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        EarlyStoppingCallback,
        TrainerCallback,
        get_scheduler,
    )

    from whet.adapters.sklearn import TextClassifier
    from whet.api import Run, fit, load
    from whet.engine.train_step import TrainStep
    from whet.experiments.outcome import Tuning
    from whet.experiments.tune import tune
    from whet.huggingface.trainer import Trainer
    from whet.huggingface.training_arguments import TrainingArguments
    from whet.huggingface.wrappers import load_dataset
    from whet.inference.predictor import Prediction, Predictor
    from whet.metrics import load_metric

_PLACES = {
    "fit": "whet.api",
    "load": "whet.api",
    "Predictor": "whet.inference.predictor",
    "Prediction": "whet.inference.predictor",
    "Run": "whet.api",
    "Trainer": "whet.huggingface.trainer",
    "TrainingArguments": "whet.huggingface.training_arguments",
    "TrainStep": "whet.engine.train_step",
    "AutoTokenizer": "whet.huggingface.wrappers",
    "load_dataset": "whet.huggingface.wrappers",
    "load_metric": "whet.metrics",
    "TextClassifier": "whet.adapters.sklearn",
    "tune": "whet.experiments.tune",
    "Tuning": "whet.experiments.outcome",
    # Unchanged names from the libraries that they come from.
    "AutoModelForSequenceClassification": "transformers",
    "DataCollatorWithPadding": "transformers",
    "EarlyStoppingCallback": "transformers",
    "TrainerCallback": "transformers",
    "get_scheduler": "transformers",
    "AdamW": "torch.optim",
    "Accelerator": "accelerate",
}

__all__ = [
    "Accelerator",
    "AdamW",
    "AutoModelForSequenceClassification",
    "AutoTokenizer",
    "DataCollatorWithPadding",
    "EarlyStoppingCallback",
    "Prediction",
    "Predictor",
    "Run",
    "TextClassifier",
    "TrainStep",
    "Trainer",
    "TrainerCallback",
    "TrainingArguments",
    "Tuning",
    "fit",
    "get_scheduler",
    "load",
    "load_dataset",
    "load_metric",
    "tune",
]


_MODULES = {"metrics": "whet.metrics", "ray": "whet.adapters.ray", "spark": "whet.adapters.spark"}


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(import_module(_PLACES[name]), name)
    if name in _MODULES:
        return import_module(_MODULES[name])
    raise AttributeError(f"module 'whet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES, *_MODULES})
