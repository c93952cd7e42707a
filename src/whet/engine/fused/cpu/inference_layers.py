"""The pieces of a layer on the CPU where weights never change: packed once, with what follows inside the product.

oneDNN brings a weight into an order of its own before each product; here it does so once. GELU and the residual sum are
computed while a part of the product is still in the caches, which saves a pass over the hidden states for each.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from whet.engine.fused.architectures import Shape
from whet.engine.fused.cpu.layers import CpuLayerOps
from whet.engine.fused.encoder import Pair

aten = torch.ops.aten
USUAL_TOKENS = 2048
"""What a weight is packed for; any number of tokens can be multiplied with it."""


class Product(NamedTuple):
    """One that waits for what follows it."""

    x: Tensor
    weight: Tensor
    bias: Tensor


class CpuInferenceLayerOps(CpuLayerOps):
    """For prediction in bf16."""

    def __init__(self) -> None:
        super().__init__(seed=0)
        self._packed: dict[tuple[int, torch.Size], Tensor] = {}

    @staticmethod
    @functools.cache
    def available() -> bool:
        """Asked by doing it once: it goes by the processor, the build of torch and ONEDNN_MAX_CPU_ISA."""
        weight = torch.zeros(16, 16, dtype=torch.bfloat16)
        try:
            CpuInferenceLayerOps().linear(weight, weight, weight[0])
        except (AttributeError, RuntimeError):  # no such operation; not on this processor
            return False
        return True

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return self._product(self.project(x, weight, bias), "none", None)

    def project(self, x: Tensor, weight: Tensor, bias: Tensor) -> Any:
        """`activate` or `norm` computes it."""
        return Product(x, self._once(weight), self._once(bias))

    def activate(self, x: Any, bias: Tensor, shape: Shape) -> Tensor:
        return self._product(x, "gelu", shape.gelu)

    def norm(
        self, x: Any, bias: Tensor, residual: Tensor, weights: Pair, rate: float, shape: Shape, key: int
    ) -> tuple[Tensor, Any]:
        total = torch.ops.mkldnn._linear_pointwise.binary(x.x, residual, x.weight, x.bias, "add")
        return aten.native_layer_norm(total, [shape.hidden], *weights, shape.epsilon)[0], None

    def _product(self, product: Product, then: str, kind: str | None) -> Tensor:
        found: Tensor = torch.ops.mkldnn._linear_pointwise(*product, then, [], kind)
        return found

    def _once(self, weight: Tensor) -> Tensor:
        """A matrix in oneDNN's own order; a bias in the type of the products."""
        key = (weight.data_ptr(), weight.shape)
        if key not in self._packed:
            packed = torch.ops.mkldnn._reorder_linear_weight
            self._packed[key] = weight.bfloat16() if weight.dim() == 1 else packed(weight, USUAL_TOKENS)
        return self._packed[key]
