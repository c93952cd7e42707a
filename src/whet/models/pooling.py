"""Mean pooling: the head reads the mean of all tokens, in a model that every library can load.

A model of the BERT family has no such setting, so one more layer of its own kind is appended. Its queries are zero:
every token attends to all tokens alike, and the first one, which the head reads, becomes their normalised mean. The
saved folder is an ordinary one with a layer more. ModernBERT and others of its kind have a setting, which is set.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from whet.errors import UsageError
from whet.models.families import FAMILIES

if TYPE_CHECKING:
    import torch

Pooling = Literal["first", "mean"]

MEAN_WEIGHT = 30.0
"""How often the mean counts beside the first token's own state in the appended layer."""
POOLER_SCALE = 0.3
"""A pooler that was made for the first token starts anew: so small that its tanh is almost a straight line."""
MARK = "mean_pooling_layer"
"""In the configuration of a model whose last layer was appended; other libraries pass over it."""


def released_pooling(folder_or_name: str, model_config: Any, revision: str | None = None) -> Pooling:
    """What the released model says: sentence-transformers' `1_Pooling/config.json`, or its own configuration."""
    own = getattr(model_config, "classifier_pooling", None)
    if own is not None or has_mean_layer(model_config):
        return "first" if own == "cls" else "mean"
    found = _pooling_file(folder_or_name, revision)
    return "mean" if found.get("pooling_mode_mean_tokens") is True else "first"


def _pooling_file(folder_or_name: str, revision: str | None) -> dict[str, Any]:
    name = "1_Pooling/config.json"
    path: str | Path | None = Path(folder_or_name) / name
    if not Path(folder_or_name).is_dir():
        from transformers.utils import cached_file

        quietly = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
        path = cached_file(folder_or_name, name, revision=revision, _raise_exceptions_for_gated_repo=False, **quietly)
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8")) if path else {}
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def why_no_mean(model_config: Any) -> str:
    """Empty where this model can read the mean of its tokens, else the reason in words."""
    if hasattr(model_config, "classifier_pooling") or model_config.model_type in FAMILIES:
        return ""
    return f"no layer is known that gives a {model_config.model_type} model the mean of its tokens"


def has_mean_layer(model_config: Any) -> bool:
    return bool(getattr(model_config, MARK, False))


def set_pooling(model: Any, pooling: str) -> None:
    """Make the head read the mean of all tokens, or the first one; `auto` leaves the model as it was released."""
    config = model.config
    if pooling == "auto":
        return
    if hasattr(config, "classifier_pooling"):
        config.classifier_pooling = "mean" if pooling == "mean" else "cls"
        return
    if pooling == "first" and has_mean_layer(config):
        raise UsageError(
            "pooling is 'first', and this model was trained with the mean of its tokens.", "Leave --pooling out."
        )
    if pooling == "first" or has_mean_layer(config):
        return
    if reason := why_no_mean(config):
        raise UsageError(f"pooling is 'mean', and {reason}.", "Leave --pooling out, or say --pooling first.")
    append_mean_layer(model)


def append_mean_layer(model: Any) -> None:
    """One more layer of the model's own kind, whose first token is the normalised mean of all tokens.

    Its keys and its feed-forward are drawn from torch's global generator, like a new head.
    """
    import torch

    family, config = FAMILIES[model.config.model_type], model.config
    layers = model.base_model.get_submodule(family.layers)
    layer, names = copy.deepcopy(layers[-1]), family.names
    with torch.no_grad():
        for name in (names.query, names.key, names.value, names.out, names.up, names.down):
            _set(layer.get_submodule(name), None)
        for name in (names.norm1, names.norm2):
            layer.get_submodule(name).weight.fill_(1.0)
            layer.get_submodule(name).bias.zero_()
        width = layer.get_submodule(names.value).weight.shape[0]
        layer.get_submodule(names.value).weight.copy_(torch.eye(width) * MEAN_WEIGHT)
        layer.get_submodule(names.out).weight.copy_(torch.eye(width))
        # Not zero: else neither queries nor the feed-forward would ever have a gradient.
        for name in (names.key, names.up):
            layer.get_submodule(name).weight.normal_(std=getattr(config, "initializer_range", 0.02))
        pooler = getattr(model.base_model, "pooler", None)
        if pooler is not None:
            _set(pooler.dense, torch.eye(width) * POOLER_SCALE)
    layers.append(layer)
    config.num_hidden_layers = len(layers)
    setattr(config, MARK, True)


def _set(linear: Any, weight: torch.Tensor | None) -> None:
    linear.weight.zero_() if weight is None else linear.weight.copy_(weight)
    if linear.bias is not None:
        linear.bias.zero_()
