"""LoRA: small matrices beside the linear layers of the encoder train, and the pretrained weights stay as they are.

PEFT makes the layers, inside the library's own model, so every other part of whet sees an ordinary classifier. The
head, and a pooler before it, train in full, like PEFT's `modules_to_save`.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whet.config import ALL_LINEAR, LoraConfig
from whet.errors import UsageError, missing_extra, nearest

if TYPE_CHECKING:
    import torch
    from torch import Tensor

ADAPTER = "default"
"""PEFT's name for a model's only adapter."""
POOLER = "pooler"
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"


def require_peft(lora: LoraConfig) -> None:
    """Raise if adapters are asked for and PEFT is not installed; it is not imported here."""
    if lora.lora and find_spec("peft") is None:
        raise missing_extra("peft", "lora", "--lora")


def add_adapters(model: Any, lora: LoraConfig) -> None:
    """Freeze the model, and add adapters to its linear layers. Torch's global generator draws their first values."""
    require_peft(lora)
    from peft import LoraConfig as PeftConfig
    from peft import inject_adapter_in_model
    from transformers.pytorch_utils import Conv1D

    heads = _heads(model)
    layers = dict(_linear_layers(model, heads))
    targets = _chosen(layers, lora, model.config.model_type)
    _refuse_large_rank(lora.lora_rank, {name: layers[name] for name in targets})
    settings = PeftConfig(
        task_type="SEQ_CLS",
        r=lora.lora_rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.lora_dropout,
        target_modules=_shortened(targets, [name for name, _ in model.named_modules()]),
        fan_in_fan_out=isinstance(layers[targets[0]], Conv1D),
    )
    inject_adapter_in_model(settings, model, ADAPTER)
    settings.modules_to_save = heads  # set after the injection, or PEFT would copy each of these modules
    for name in heads:
        model.get_submodule(name).requires_grad_(True)


def has_adapters(model: Any) -> bool:
    """Return whether adapters were added to this model."""
    return ADAPTER in getattr(model, "peft_config", ())


def _heads(model: Any) -> list[str]:
    """Return the modules that train in full: all outside the encoder, and its pooler, which may be new, too."""
    encoder = model.base_model
    beside = [name for name, child in model.named_children() if child is not encoder]
    pooler = [f"{model.base_model_prefix}.{POOLER}"] if getattr(encoder, POOLER, None) is not None else []
    return sorted(name for name in (*beside, *pooler) if any(True for _ in model.get_submodule(name).parameters()))


def _linear_layers(model: Any, heads: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield the linear modules of the encoder's repeated layers, by name."""
    import torch
    from transformers.pytorch_utils import Conv1D

    for name, module in model.named_modules():
        in_head = any(name == head or name.startswith(f"{head}.") for head in heads)
        if isinstance(module, torch.nn.Linear | Conv1D) and not in_head and _within_layer(name) != name:
            yield name, module


def _within_layer(name: str) -> str:
    """Return the part of a module's name after the number of its layer; the whole name if it has none."""
    parts = name.split(".")
    number = next((place for place, part in enumerate(parts) if part.isdecimal()), -1)
    return ".".join(parts[number + 1 :])


def _chosen(layers: dict[str, Any], lora: LoraConfig, kind: str) -> list[str]:
    """Return the full names of the layers that get adapters."""
    if not layers:
        raise UsageError(f"--lora is set, and this {kind} model has no linear layers to adapt.", "Leave --lora out.")
    if lora.lora_targets == (ALL_LINEAR,):
        return list(layers)
    for wanted in lora.lora_targets:
        if not any(_is_named(name, wanted) for name in layers):
            raise UsageError(
                f"lora_targets is {wanted!r}, and no linear layer of this {kind} model has that name.",
                nearest(wanted, {name.rpartition(".")[2] for name in layers} | {ALL_LINEAR}),
            )
    return [name for name in layers if any(_is_named(name, wanted) for wanted in lora.lora_targets)]


def _is_named(name: str, wanted: str) -> bool:
    return name == wanted or name.endswith(f".{wanted}")


def _refuse_large_rank(rank: int, targets: dict[str, Any]) -> None:
    smallest = min(targets, key=lambda name: min(targets[name].weight.shape))
    rows, columns = targets[smallest].weight.shape
    if rank > min(rows, columns):
        raise UsageError(
            f"lora_rank is {rank}, and {smallest} is a matrix of {rows} × {columns}.",
            f"It must be at most {min(rows, columns)}.",
        )


def _shortened(targets: Sequence[str], modules: Sequence[str]) -> list[str]:
    """Return the targets without the numbers of their layers, unless other modules have such a name, too."""
    short = sorted({_within_layer(name) for name in targets})
    found = [name for name in modules if any(_is_named(name, each) for each in short)]
    return short if len(found) == len(targets) and all(short) else list(targets)


# Weights ------------------------------------------------------------------------------------------------------------


def frozen_names(model: torch.nn.Module) -> frozenset[str]:
    """Return the names of the parameters that do not train because the model has adapters; none without adapters."""
    if not has_adapters(model):
        return frozenset()
    return frozenset(name for name, parameter in model.named_parameters() if not parameter.requires_grad)


def frozen_count(model: torch.nn.Module) -> int:
    """Return how many numbers the frozen parameters have."""
    names = frozen_names(model)
    return sum(parameter.numel() for name, parameter in model.named_parameters() if name in names)


def frozen_checksum(model: torch.nn.Module) -> str:
    """Return a SHA-256 of the frozen weights as float32, the same on every device."""
    parameters = dict(model.named_parameters())
    names = sorted(frozen_names(model))

    def digest(name: str) -> bytes:
        values = parameters[name].detach().float().cpu().contiguous().numpy()
        found = hashlib.sha256(f"{name} {values.shape}\n".encode())
        found.update(values.data)
        return found.digest()

    with ThreadPoolExecutor() as pool:  # hashing lets other threads run
        return hashlib.sha256(b"".join(pool.map(digest, names))).hexdigest()


def hold_as_bf16(model: torch.nn.Module) -> None:
    """Hold frozen matrices in bf16 where that loses nothing, as for a model that was released in bf16.

    Autocast rounds them to bf16 for every product anyway, so this changes no result and halves their memory.
    """
    import torch

    for module in model.modules():
        weight = getattr(module, "weight", None)
        if not isinstance(module, torch.nn.Linear) or weight is None or weight.requires_grad:
            continue
        rounded = weight.detach().to(torch.bfloat16)
        if torch.equal(rounded.float(), weight.detach().float()):
            module.weight = torch.nn.Parameter(rounded, requires_grad=False)


def merged(model: Any) -> Any:
    """Return the model without adapters and with their updates in its weights: float32, on the host.

    It shares the memory of weights that stay as they are.
    """
    import torch
    from peft.tuners.lora import LoraLayer

    kept = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    found = copy.deepcopy(model, kept)  # these tensors count as copied already
    del found.peft_config
    for name, layer in list(found.named_modules()):
        if isinstance(layer, LoraLayer):
            plain = layer.get_base_layer()
            with torch.no_grad():
                weight = plain.weight.float() + layer.get_delta_weight(ADAPTER).float()
            plain.weight = torch.nn.Parameter(weight)
            parent, _, child = name.rpartition(".")
            setattr(found.get_submodule(parent), child, plain)
    for module in found.modules():
        for tensors in (module._parameters, module._buffers):
            tensors.update({name: _on_host(tensor) for name, tensor in tensors.items() if tensor is not None})
    return found


def _on_host(tensor: Tensor) -> Tensor:
    import torch

    plain = tensor.detach().to("cpu", torch.float32 if tensor.is_floating_point() else tensor.dtype)
    return torch.nn.Parameter(plain, requires_grad=plain.is_floating_point()) if _is_parameter(tensor) else plain


def _is_parameter(tensor: Tensor) -> bool:
    import torch

    return isinstance(tensor, torch.nn.Parameter)


def save_adapter(model: Any, folder: Path, base: str, revision: str | None) -> None:
    """Save what trained as a folder that PEFT loads on top of the model `base`."""
    from whet.utils.safetensors_files import save_tensors

    folder.mkdir(parents=True)
    settings = copy.copy(model.peft_config[ADAPTER])
    settings.base_model_name_or_path, settings.revision, settings.inference_mode = base, revision, True
    settings.save_pretrained(folder)
    path = folder / CONFIG
    content = json.loads(path.read_text(encoding="utf-8"))
    # PEFT keeps these names in a set, whose order differs from process to process.
    ordered = {name: sorted(value) if _is_names(value) else value for name, value in content.items()}
    path.write_text(json.dumps(ordered, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    trained = {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}
    save_tensors({_peft_name(name): tensor.detach() for name, tensor in trained.items()}, folder / WEIGHTS)


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _peft_name(name: str) -> str:
    """Return the name of a trained parameter in PEFT's files."""
    return f"base_model.model.{name.replace(f'.{ADAPTER}.', '.')}"
