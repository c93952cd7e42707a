"""A model's parameters in flat buffers: float32 masters and moments, compute weights, gradients.

There are two groups. *Matrices* (the layers' weights, the embeddings) have gradients in the compute type. *Small*
ones (biases, norms, the head) have float32 gradients and are computed in float32. In each group the elements with
decay come first, so an update is one pass with one boundary. The module's parameters become views of the masters, so
`state_dict`, saving and the library's own forward pass see the current float32 weights.

The buffers hold only the rows of the word embedding that the data uses. The others have no gradient, and AdamW
without decay leaves them unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whet.models.families import FAMILIES, Family

ALIGN = 64
"""Every tensor starts at a multiple of this many elements, so that vector loads are aligned."""


@dataclass
class Group:
    """Tensors that one pass updates."""

    device: torch.device
    compute_type: torch.dtype
    gradient_type: torch.dtype
    places: dict[str, tuple[int, torch.Size]] = field(default_factory=dict)
    size: int = 0
    decays_until: int = 0
    computes_until: int = 0
    """Elements up to here have a compute copy; the embeddings after them are read in float32."""

    def add(self, name: str, shape: torch.Size) -> None:
        self.places[name] = (self.size, shape)
        self.size += -(-shape.numel() // ALIGN) * ALIGN

    def allocate(self, training: bool) -> None:
        def zeros(kind: torch.dtype, size: int = self.size) -> Tensor:
            return torch.zeros(size, dtype=kind, device=self.device)

        same = self.compute_type == torch.float32
        trained = self.size if training else 0
        self.masters_from = 0 if training or same else self.computes_until
        """Start of the masters: prediction keeps none for the matrices of the layers."""
        self.master = zeros(torch.float32, self.size - self.masters_from)
        self.first, self.second = zeros(torch.float32, trained), zeros(torch.float32, trained)
        self.gradient = zeros(self.gradient_type, trained)
        self.compute = self.master if same else zeros(self.compute_type, self.computes_until)

    def view(self, buffer: Tensor, name: str) -> Tensor:
        start, shape = self.places[name]
        return buffer[start : start + shape.numel()].view(shape)

    def current(self, name: str) -> Tensor:
        """The float32 master, or the compute weight if there is none."""
        start, shape = self.places[name]
        if start < self.masters_from:
            return self.view(self.compute, name)
        start -= self.masters_from
        return self.master[start : start + shape.numel()].view(shape)

    def joined(self, buffer: Tensor, names: list[str]) -> Tensor:
        """Neighbouring tensors as one view: query, key and value as one product."""
        start, shape = self.places[names[0]]
        rows = sum(self.places[name][1][0] for name in names)
        return buffer[start : start + rows * shape[1:].numel()].view(rows, *shape[1:])

    def refresh(self) -> None:
        """Write the compute weights from the masters."""
        if self.compute is not self.master and not self.masters_from:
            self.compute.copy_(self.master[: self.computes_until])


@dataclass(frozen=True)
class Layer:
    """Views of one layer's compute weights and gradients."""

    weights: dict[str, Tensor]
    gradients: dict[str, Tensor]


class FlatModel:
    """A classifier whose parameters live in two flat groups."""

    def __init__(
        self, model: Any, device: torch.device, compute_type: torch.dtype, used: Any, decay: bool, training: bool = True
    ) -> None:
        self.model, self.device, self.training = model, device, training
        self.family: Family = FAMILIES[model.config.model_type]
        self.prefix = model.base_model_prefix + "."
        self.named: dict[str, torch.nn.Parameter] = dict(model.named_parameters())
        self.word = self.prefix + "embeddings.word_embeddings.weight"
        rows = self.named[self.word].shape[0]
        # Decay changes every row, so every row is kept.
        self.used = np.arange(rows) if decay or used is None else np.asarray(used)
        self.new_id = np.full(rows, -1, dtype=np.int64)  # a row that was not announced raises an error
        self.new_id[self.used] = np.arange(len(self.used))
        self.matrices = Group(device, compute_type, compute_type)
        self.small = Group(device, torch.float32, torch.float32)
        self._lay_out()
        self._make_parameters_views()
        self.layers = [self._layer(index) for index in range(len(self._layer_names()))]

    def groups(self) -> Iterator[Group]:
        yield self.matrices
        yield self.small

    def weight(self, name: str) -> Tensor:
        """Return a float32 master by its name in the base model."""
        return self._group(self.prefix + name).current(self.prefix + name)

    def gradient(self, name: str) -> Tensor:
        group = self._group(self.prefix + name)
        return group.view(group.gradient, self.prefix + name)

    def has(self, name: str) -> bool:
        return self.prefix + name in self.named

    def words_from(self, row: int) -> range:
        """Return the slice of the word embedding from this row on, in the group of the matrices."""
        start, shape = self.matrices.places[self.word]
        return range(start + row * shape[1], start + shape.numel())

    def words_with_moments(self) -> int:
        """Return the index after the last row of the word embedding that ever had a gradient."""
        matrices = self.matrices
        first, second = (matrices.view(buffer, self.word) for buffer in (matrices.first, matrices.second))
        rows = torch.nonzero((first != 0).any(1) | (second != 0).any(1))
        return int(rows[-1]) + 1 if len(rows) else 0

    def write_back(self) -> None:
        """Write word rows into the module's embedding; every other parameter is a view."""
        if len(self.used) == self.named[self.word].shape[0]:
            return
        rows = torch.from_numpy(self.used).to(self.named[self.word].device)
        with torch.no_grad():
            self.named[self.word].data[rows] = self.matrices.current(self.word).to(self.named[self.word].device)

    def sync_to_module(self) -> None:
        """Make every weight of the module current and on the device."""
        self.write_back()
        self.named[self.word].data = self.named[self.word].data.to(self.device)

    def release(self) -> None:
        """Give every parameter its own memory again, with the trained values."""
        self.sync_to_module()
        for parameter in self.named.values():
            parameter.data, parameter.grad = parameter.data.clone(), None

    def load_from_module(self) -> None:
        """Read the weights that were loaded into the module: the inverse of `sync_to_module`."""
        if len(self.used) < self.named[self.word].shape[0]:
            rows = torch.from_numpy(self.used).to(self.named[self.word].device)
            with torch.no_grad():
                self.matrices.current(self.word).copy_(self.named[self.word].data[rows])
        for group in self.groups():
            group.refresh()

    def zero_head(self) -> None:
        """Zero the gradients that autograd adds to."""
        for parameter in self.head:
            assert parameter.grad is not None
            parameter.grad.zero_()

    def moments(self) -> dict[str, Tensor]:
        """Return AdamW's moments by parameter name."""
        found = {}
        for group in self.groups():
            for name in group.places:
                found[f"{name}:exp_avg"] = group.view(group.first, name)
                found[f"{name}:exp_avg_sq"] = group.view(group.second, name)
        return found

    def _lay_out(self) -> None:
        matrices, small = self.matrices, self.small
        for layer in self._layer_names():
            for name in layer:
                matrices.add(f"{name}.weight", self.named[f"{name}.weight"].shape) if not _is_norm(name) else None
        matrices.computes_until = matrices.size
        word = self.named[self.word].shape
        matrices.add(self.word, torch.Size((len(self.used), word[1])))
        for name in ("embeddings.position_embeddings.weight", "embeddings.token_type_embeddings.weight"):
            if self.has(name):
                matrices.add(self.prefix + name, self.named[self.prefix + name].shape)
        matrices.decays_until = matrices.size
        rest = [name for name in self.named if name not in matrices.places]
        decaying = [name for name in rest if self.named[name].dim() > 1]
        for name in decaying:
            small.add(name, self.named[name].shape)
        small.decays_until = small.size
        ordered = [f"{name}.bias" for layer in self._layer_names() for name in layer if not _is_norm(name)]
        for name in [*ordered, *(name for name in rest if name not in decaying and name not in ordered)]:
            small.add(name, self.named[name].shape)
        small.computes_until = small.size
        matrices.allocate(self.training)
        small.allocate(self.training)

    def _make_parameters_views(self) -> None:
        """Copy the weights in and make the module's parameters views of the masters."""
        with torch.no_grad():
            for name, parameter in self.named.items():
                view = self._group(name).current(name)
                if name == self.word and len(self.used) < parameter.shape[0]:
                    view.copy_(parameter.data[torch.from_numpy(self.used)])
                    # The parameter may lie in the model's mapped file, all of which it would keep in memory.
                    parameter.data = parameter.data.clone()
                    continue
                view.copy_(parameter.data)
                parameter.data = view
        head = [name for name in self.named if not name.startswith(self.prefix) or "pooler" in name]
        self.head = [self.named[name] for name in head]
        if self.training:
            # Autograd adds the head's gradients into these views.
            for name in head:
                self.named[name].grad = self.small.view(self.small.gradient, name)
        for group in self.groups():
            group.refresh()

    def _layer(self, index: int) -> Layer:
        names = self._layer_names()[index]
        query, key, value, out, norm1, up, down, norm2 = names
        weights: dict[str, Tensor] = {}
        gradients: dict[str, Tensor] = {}
        matrices, small = self.matrices, self.small
        for short, members in (("qkv", [query, key, value]), ("out", [out]), ("up", [up]), ("down", [down])):
            full = [f"{member}.weight" for member in members]
            biases = [f"{member}.bias" for member in members]
            weights[short] = matrices.joined(matrices.compute, full)
            weights[f"{short}_bias"] = small.joined(small.master, biases)
            if self.training:
                gradients[short] = matrices.joined(matrices.gradient, full)
                gradients[f"{short}_bias"] = small.joined(small.gradient, biases)
        for short, member in (("norm1", norm1), ("norm2", norm2)):
            for kind in ("weight", "bias"):
                weights[f"{short}_{kind}"] = small.view(small.master, f"{member}.{kind}")
                if self.training:
                    gradients[f"{short}_{kind}"] = small.view(small.gradient, f"{member}.{kind}")
        return Layer(weights, gradients)

    def _layer_names(self) -> list[tuple[str, ...]]:
        names = self.family.names
        parts = (names.query, names.key, names.value, names.out, names.norm1, names.up, names.down, names.norm2)
        layers = self.model.base_model.get_submodule(self.family.layers)
        return [
            tuple(f"{self.prefix}{self.family.layers}.{index}.{part}" for part in parts) for index in range(len(layers))
        ]

    def _group(self, name: str) -> Group:
        return self.matrices if name in self.matrices.places else self.small


def _is_norm(name: str) -> bool:
    return name.endswith(("LayerNorm", "layer_norm"))
