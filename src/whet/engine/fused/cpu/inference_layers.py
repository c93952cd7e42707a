"""Layer operations on the CPU for fixed weights: packed once and fused with the operation that follows.

oneDNN reorders a weight before each product; here it is reordered once. GELU and the residual sum are computed while
the product is still in the caches, which saves one pass over the hidden states each.
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
"""Number of tokens that weights are packed for; products of any other size work too."""


class Product(NamedTuple):
    """A product that the following operation computes."""

    x: Tensor
    weight: Tensor
    bias: Tensor


class CpuInferenceLayerOps(CpuLayerOps):
    """Layer operations for prediction in bf16."""

    def __init__(self) -> None:
        super().__init__(seed=0)
        self._packed: dict[tuple[int, torch.Size], Tensor] = {}

    @staticmethod
    @functools.cache
    def available() -> bool:
        """Return whether the operation works, by a trial: that depends on the processor, torch's build and
        ONEDNN_MAX_CPU_ISA."""
        weight = torch.zeros(16, 16, dtype=torch.bfloat16)
        try:
            CpuInferenceLayerOps().linear(weight, weight, weight[0])
        except (AttributeError, RuntimeError):  # the operation is missing, or the processor does not support it
            return False
        return True

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return self._product(self.project(x, weight, bias), "none", None)

    def project(self, x: Tensor, weight: Tensor, bias: Tensor) -> Any:
        """Return an uncomputed product for `activate` or `norm`."""
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
        """Return a matrix in oneDNN's order, packed once, or a bias in the type of the products."""
        key = (weight.data_ptr(), weight.shape)
        if key not in self._packed:
            packed = torch.ops.mkldnn._reorder_linear_weight
            self._packed[key] = weight.bfloat16() if weight.dim() == 1 else packed(weight, USUAL_TOKENS)
        return self._packed[key]
