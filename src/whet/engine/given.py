"""Checks a model and an optimizer from a user's code for everything that the engine would ignore."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import chain
from typing import Any

import torch
from torch.nn.modules import module as torch_module
from torch.optim import optimizer as torch_optimizer

from whet.data.tokens.table import Tokens
from whet.engine.fused.architectures import shape_of, why_not_fused
from whet.engine.packed import keep_what_heads_read, why_not_packed
from whet.engine.regression_head import keeps_numbers_exact
from whet.models.families import position_shift, recomputes_activations, token_types

PEFT_MODULES = ("peft.peft_model", "peft.tuners.lora.", "peft.utils.other")
"""The wrapper of the model, adapters, and the copy of the head that is trained."""
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def why_not_model(model: Any) -> str:
    """Return what fused and packed steps would ignore in this model; empty for nothing."""
    reason = _why_not_kind(model) or why_not_packed(model) or why_not_as_it_is(model)
    if not reason and not why_not_fused(model) and not _has_its_dropout(model):
        return "the model drops out at other rates than its configuration has"
    return reason


def why_not_as_it_is(model: Any, *, adapters: bool = False) -> str:
    """Return what steps would ignore that compute the library's own modules, for example as graphs.

    With `adapters` a model may have LoRA's modules of PEFT.
    """
    adapted = adapters and type(model).__name__ == "PeftModelForSequenceClassification"
    if reason := _why_not_kind(model.get_base_model() if adapted else model):
        return reason
    known = ("torch.nn.", "transformers.", *(PEFT_MODULES if adapted else ()))
    if any(getattr(torch_module, f"_global{name}", None) for name in HOOKS):
        return "torch has hooks for all modules"
    for module in model.modules():
        foreign = [hook for name in HOOKS for hook in getattr(module, name).values()]
        if any(hook is not keep_what_heads_read for hook in foreign) or hasattr(module, "parametrizations"):
            return "the model has hooks"
        if not type(module).__module__.startswith(known):
            return f"a part of the model is a {type(module).__module__}.{type(module).__name__}"
        if "forward" in vars(module) and not _is_known_forward(module):
            return "the forward method of a module was replaced"
    return _why_not_parameters(list(model.parameters())) or _why_not_settings(model)


def _why_not_kind(model: Any) -> str:
    kind = type(model)
    if not kind.__module__.startswith("transformers.models.") or not kind.__name__.endswith(
        "ForSequenceClassification"
    ):
        return f"the model is a {kind.__name__}"
    return ""


def _is_known_forward(module: Any) -> bool:
    """Return whether accelerate or the engine has replaced the forward."""
    return hasattr(module, "_original_forward") or keeps_numbers_exact(module)


def _why_not_parameters(parameters: Sequence[Any]) -> str:
    for parameter in parameters:
        if parameter.dtype != torch.float32:
            return f"weights are {str(parameter.dtype).removeprefix('torch.')}"
        if _hooked(parameter):
            return "a parameter has a hook"
    if len({parameter.data_ptr() for parameter in parameters}) < len(parameters):
        return "weights are tied"
    return ""


def _why_not_settings(model: Any) -> str:
    if getattr(model, "is_quantized", False) or getattr(model, "hf_device_map", None) is not None:
        return "the model is quantised or spread over devices"
    if recomputes_activations(model):
        return "the model recomputes activations"
    if model.config.output_hidden_states or model.config.output_attentions:
        return "the model is to give hidden states or attentions"
    return ""


def _has_its_dropout(model: Any) -> bool:
    """Return whether the encoder's modules have the rates of the configuration, which fused layers read."""
    shape = shape_of(model)
    for name, module in model.base_model.named_modules():
        if isinstance(module, torch.nn.Dropout):
            attends = name.endswith(("attention.self.dropout", "attention.dropout"))
            if module.p != (shape.attention_dropout if attends else shape.dropout):
                return False
    return True


def _hooked(parameter: Any) -> bool:
    return bool(parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None))


def fusable(model: Any, device: torch.device, bf16: bool) -> bool:
    """Return whether fused layers can train this model here; else it is packed, and torch's optimizer updates it."""
    if any(not parameter.requires_grad for parameter in model.parameters()) or why_not_fused(model):
        return False
    return device.type == "cpu" or (device.type == "cuda" and bf16 and find_spec("triton") is not None)


def why_not_adamw(optimizer: Any, model: Any, *, fused: bool, everywhere: bool = False) -> str:
    """Return what the engine would ignore in this optimizer; with `fused` for an update by the engine itself.

    With `everywhere` that update can also decay every parameter.
    """
    if type(optimizer) is not torch.optim.AdamW:
        return f"the optimizer is {type(optimizer).__name__}"
    hooks = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
    if any(hooks) or torch_optimizer._global_optimizer_pre_hooks or torch_optimizer._global_optimizer_post_hooks:
        return "the optimizer has hooks"
    if not inspect.unwrap(optimizer.step).__module__.startswith("torch."):
        return "the optimizer's step was replaced"
    groups = optimizer.param_groups
    if any(group["amsgrad"] or group["maximize"] or group["differentiable"] for group in groups):
        return "AdamW with amsgrad, maximize or differentiable"
    if len({(float(group["lr"]), tuple(group["betas"]), group["eps"]) for group in groups}) > 1:
        return "the optimizer's groups differ in more than weight decay"
    if not groups[0]["eps"] > 0 or not all(0 <= beta < 1 for beta in groups[0]["betas"]):
        return "AdamW's betas or epsilon are unusual"
    names = {id(each): name for name, each in model.named_parameters() if each.requires_grad}
    # torch leaves frozen parameters alone, which get no gradient.
    found = [names.get(id(each)) for group in groups for each in group["params"] if each.requires_grad]
    if sorted(map(str, found)) != sorted(names.values()):
        return "the optimizer holds other parameters than the model trains"
    decays = {group["weight_decay"] for group in groups} - {0.0}
    decaying = {names.get(id(each)) for group in groups for each in group["params"] if group["weight_decay"]}
    matrices = {name for name, each in model.named_parameters() if each.dim() > 1}
    fitting = [matrices, set(names.values())] if everywhere else [matrices]
    if fused and (len(decays) > 1 or (decays and decaying not in fitting)):
        return "weight decay is not on all matrices and nothing else"
    states = [state for state in optimizer.state.values() if state]
    if len({float(state["step"]) for state in states}) > 1 or len(states) not in (0, len(names)):
        return "parameters have had different numbers of steps"
    return ""


def why_not_tokens(config: Any, tokens: Tokens, width: int) -> str:
    """Return why the library's forward would refuse these rows or compute them differently; empty for no reason.

    `width` is that of the widest batch, with padding.
    """
    shift = position_shift(config)
    if not tokens.lengths.all():
        return "a row is empty"
    limit = getattr(config, "max_position_embeddings", None)
    if limit is not None and width + shift > limit:
        return "a batch is wider than the model's positions"
    vocabulary = getattr(config, "vocab_size", None)
    if vocabulary is None:
        return "the model's configuration does not say how many tokens it knows"
    if tokens.ids.min() < 0 or tokens.ids.max() >= vocabulary:
        return "a token is none of the model's"
    if shift and (tokens.ids == config.pad_token_id).any():
        return "a row has the padding token inside"
    kinds = token_types(config)
    if tokens.types is not None and kinds and (tokens.types.min() < 0 or tokens.types.max() >= kinds):
        return "a token type is none of the model's"
    return ""


class Watch:
    """Remembers a model and its optimizer, to notice later changes; cheap enough for every step."""

    def __init__(self, model: Any, optimizer: Any) -> None:
        self.optimizer = optimizer
        self.rule = _rule(optimizer)
        modules = self.modules = list(model.modules())
        self.rates = [(module, name, rate) for module in modules for name, rate in _rates(module)]
        self.parameters = list(model.parameters())
        # The dictionaries of a module stay the same objects, so looking them up once is enough.
        everywhere = [getattr(torch_module, f"_global{name}", {}) for name in HOOKS]
        self._hooked = [*everywhere, *(vars(module)[name] for module in modules for name in HOOKS)]
        self._owned = [vars(module)[kind] for module in modules for kind in ("_modules", "_parameters")]
        self._attributes = [vars(module) for module in modules]
        self.hooks, self.forwards, self.parts = self._hooks(), self._forwards(), list(self._parts())
        self.places = self._places()

    def changed(self) -> str:
        """Return which change of the optimizer the engine cannot follow; empty for none."""
        groups = self.optimizer.param_groups
        if len({float(group["lr"]) for group in groups}) > 1:
            return "the optimizer's groups have different rates"
        if _rule(self.optimizer) != self.rule:
            return "the optimizer's settings have changed"
        return ""

    def model_changed(self) -> str:
        """Return which change of the model the engine cannot follow; empty for none."""
        if self._hooks() != self.hooks or any(map(_hooked, self.parameters)):
            return "the model has hooks"
        if self._forwards() != self.forwards:
            return "the forward method of a module was replaced"
        parts = list(self._parts())
        if len(parts) != len(self.parts) or not all(map(operator.is_, parts, self.parts)):
            return "a part of the model was replaced"
        if any(getattr(module, name) != rate for module, name, rate in self.rates):
            return "the rate of a dropout was changed"
        return "" if self._places() == self.places else "weights were frozen or have another place"

    def _hooks(self) -> int:
        return sum(map(len, self._hooked))

    def _forwards(self) -> int:
        return sum("forward" in attributes for attributes in self._attributes)

    def _parts(self) -> Iterator[Any]:
        return chain.from_iterable(owned.values() for owned in self._owned)

    def _places(self) -> list[tuple[int, bool]]:
        return [(each.data_ptr(), each.requires_grad) for each in self.parameters]


def _rates(module: Any) -> Iterator[tuple[str, float]]:
    """Return a module's rates of dropout: of torch's own module, and numbers that the library gives to attention."""
    if isinstance(module, torch.nn.Dropout):
        yield "p", module.p
    yield from ((name, value) for name, value in vars(module).items() if "drop" in name and isinstance(value, float))


def _rule(optimizer: Any) -> list[Any]:
    return [
        (tuple(group["betas"]), group["eps"], group["weight_decay"], group["amsgrad"], len(group["params"]))
        for group in optimizer.param_groups
    ]
