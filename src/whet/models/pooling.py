"""Mean pooling: the head reads the mean of all tokens, in a model that every library can load.

The BERT family has no such setting, so an extra layer of the same kind is appended. Its queries are zero, so every
token attends to all tokens equally, and the first token, which the head reads, becomes their normalised mean. The
saved folder is an ordinary model with one more layer. ModernBERT and similar models have a setting for it, which is
used.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from whet.errors import UsageError
from whet.models.decoders import reads_last_token
from whet.models.families import FAMILIES

if TYPE_CHECKING:
    import torch

Pooling = Literal["first", "mean"]

MEAN_WEIGHT = 30.0
"""Weight of the mean relative to the first token's own state in the appended layer."""
POOLER_SCALE = 0.3
"""Scale of a new pooler: so small that tanh is almost linear. The released pooler was trained for the first token."""
MARK = "mean_pooling_layer"
"""Marks a model with an appended layer in its configuration; other libraries ignore it."""


def released_pooling(folder_or_name: str, model_config: Any, revision: str | None = None) -> Pooling:
    """Return the pooling of the released model: sentence-transformers' `1_Pooling/config.json`, or its own
    configuration."""
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
    """Return why this model cannot use mean pooling; empty if it can."""
    if hasattr(model_config, "classifier_pooling") or model_config.model_type in FAMILIES:
        return ""
    return f"no layer is known that gives a {model_config.model_type} model the mean of its tokens"


def has_mean_layer(model_config: Any) -> bool:
    return bool(getattr(model_config, MARK, False))


def set_pooling(model: Any, pooling: str) -> None:
    """Make the head read the mean of all tokens, or the first one; `auto` keeps the model as released."""
    config = model.config
    if pooling == "auto":
        return
    if hasattr(config, "classifier_pooling"):
        config.classifier_pooling = "mean" if pooling == "mean" else "cls"
        return
    if reads_last_token(type(model)):
        raise UsageError(
            f"pooling is {pooling!r}, and the head of a {config.model_type} model reads the last token.",
            "Leave --pooling out.",
        )
    if pooling == "first" and has_mean_layer(config):
        raise UsageError(
            "pooling is 'first', and this model was trained with the mean of its tokens.", "Leave --pooling out."
        )
    if pooling == "first" or has_mean_layer(config):
        return
    if reason := why_no_mean(config):
        raise UsageError(f"pooling is 'mean', and {reason}.", "Leave --pooling out, or use --pooling first.")
    append_mean_layer(model)


def refuse_frozen_mean_layer(model_config: Any, pooling: str) -> None:
    """Refuse a new layer in a model whose layers do not train."""
    if pooling == "mean" and not (hasattr(model_config, "classifier_pooling") or has_mean_layer(model_config)):
        raise UsageError(
            "pooling is 'mean', which appends a layer to train, and with --lora the layers stay as they are.",
            "Leave one of them out.",
        )


def append_mean_layer(model: Any) -> None:
    """Append a layer of the model's kind whose first token is the normalised mean of all tokens.

    Its keys and its feed-forward weights are drawn from torch's global generator, like a new head.
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
        # Not zero, or neither the queries nor the feed-forward would ever have a gradient.
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
