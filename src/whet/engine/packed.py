"""Attention without padding: the rows of a batch follow one another as one long row of tokens.

transformers allows registering an attention function by name, so the model stays the library's own. Two things differ
from a padded batch: attention must not cross rows, and the head must find what it reads of each row. The attention
function below does the first. A hook on the encoder's output, which keeps only the first token of each row, or the mean
of its tokens, does the second; every head of the families below reads nothing else. Families with relative positions
get both from `exact_attention`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from whet.engine.exact_attention import exact_attention, why_not_exact
from whet.models.families import PACKED, PACKED_MODULES, RELATIVE, position_shift

ATTENTION = "whet_packed"

MPNET_PADDING = 1
"""The padding token of MPNet's positions, whatever the configuration has."""
GRID_GRAIN = 8
"""The length of the attention grid on the CPU is a multiple of this: oneDNN compiles and keeps code per shape."""


@dataclass(frozen=True)
class Layout:
    """The positions of each row's tokens."""

    offsets: Tensor
    """int32 [rows + 1]: row i is tokens[offsets[i]:offsets[i + 1]]."""
    first: Tensor
    """int64 [rows]: the first token of each row."""
    slots: Tensor
    """int64 [tokens]: the slot of each token in the padded [rows × longest] grid."""
    longest: int
    mask: Tensor
    """bool [rows, 1, 1, longest]: True where the grid holds a token."""

    @property
    def rows(self) -> int:
        return int(self.first.shape[0])

    @cached_property
    def held(self) -> Tensor:
        """int64 [rows × longest]: the token in each slot of the grid; empty slots hold the index after the last
        token."""
        count = len(self.slots)
        held = torch.full((self.rows * self.longest,), count, device=self.slots.device)
        return held.index_copy_(0, self.slots, torch.arange(count, device=self.slots.device))


def make_layout(offsets: np.ndarray[Any, Any], device: torch.device, grain: int = 1) -> Layout:
    """Return the layout of rows with these offsets; the grid's length is a multiple of `grain`."""
    lengths = np.diff(offsets)
    longest = -(-int(lengths.max()) // grain) * grain
    position = np.arange(offsets[-1], dtype=np.int64) - np.repeat(offsets[:-1].astype(np.int64), lengths)
    slots = position + np.repeat(np.arange(len(lengths), dtype=np.int64) * longest, lengths)
    mask = np.arange(longest)[None, :] < lengths[:, None]
    return Layout(
        offsets=torch.from_numpy(offsets.astype(np.int32)).to(device, non_blocking=True),
        first=torch.from_numpy(offsets[:-1].astype(np.int64)).to(device, non_blocking=True),
        slots=torch.from_numpy(slots).to(device, non_blocking=True),
        longest=longest,
        mask=torch.from_numpy(mask[:, None, None, :]).to(device, non_blocking=True),
    )


def why_not_packed(model: Any) -> str:
    """Return why the model cannot be packed; empty if it can."""
    config = model.config
    if config.model_type not in PACKED:
        return f"{config.model_type} has no packed attention here"
    if config.model_type in RELATIVE and (reason := why_not_exact(model)):
        return reason
    if getattr(config, "conv_kernel_size", 0) > 0:
        return "its convolution reads the tokens beside each token"
    if config.model_type == "mpnet" and config.pad_token_id != MPNET_PADDING:
        return f"its padding token is {config.pad_token_id}, and MPNet counts positions by the token {MPNET_PADDING}"
    if getattr(config, "classifier_pooling", "cls") not in ("cls", "mean"):
        return f"its head reads the {config.classifier_pooling} of all tokens"
    if getattr(config, "is_decoder", False):
        return "it is a decoder"
    if getattr(config, "position_embedding_type", "absolute") != "absolute":
        return f"its positions are {config.position_embedding_type}"
    return ""


class PackedModel:
    """A library model that takes packed batches while this object exists."""

    def __init__(self, model: Any) -> None:
        from transformers import AttentionInterface

        AttentionInterface.register(ATTENTION, packed_attention)
        self.model = model
        self.shift = position_shift(model.config)
        self.relative = model.config.model_type in RELATIVE
        if self.relative:  # the encoder gives the first tokens by itself
            return
        encoder = getattr(model.base_model, PACKED_MODULES[model.config.model_type])
        if keep_what_heads_read not in encoder._forward_hooks.values():  # only once, however often the model is wrapped
            encoder.register_forward_hook(keep_what_heads_read)

    def __call__(self, inputs: dict[str, Tensor], layout: Layout) -> Tensor:
        """Return the logits of each row."""
        if self.relative:  # without a mask these models look for padding on the host
            inputs = inputs | {"attention_mask": torch.ones_like(inputs["input_ids"])}
        with _using(self.model.config, layout), exact_attention(self.model, layout):
            return self.model(**inputs).logits  # type: ignore[no-any-return]


@contextmanager
def _using(config: Any, layout: Layout) -> Iterator[None]:
    """Pack only this forward pass: the same model still takes padded batches elsewhere."""
    before = config._attn_implementation
    config._attn_implementation = ATTENTION
    _layouts.append(layout)
    _means.append(getattr(config, "classifier_pooling", "cls") == "mean")
    try:
        yield
    finally:
        _layouts.pop()
        _means.pop()
        config._attn_implementation = before


_layouts: list[Layout] = []
_means: list[bool] = []
"""For each layout whether the head reads the mean of a row's tokens, and not the first of them."""


def keep_what_heads_read(module: Any, args: Any, output: Any) -> Any:
    """Turn [1, tokens, width] into [rows, 1, width]: heads read it as the first token, or as the mean of one."""
    if not _layouts:
        return None
    hidden = output if hasattr(output, "shape") else output.last_hidden_state
    layout = _layouts[-1]
    kept = (_row_means(hidden[0], layout) if _means[-1] else hidden[0].index_select(0, layout.first)).unsqueeze(1)
    if hidden is output:
        return kept
    output.last_hidden_state = kept
    return output


def _row_means(tokens: Tensor, layout: Layout) -> Tensor:
    """Return the mean of each row's tokens, as a product: it adds in a fixed order on every device."""
    with torch.autocast(tokens.device.type, enabled=False):
        row = layout.slots // layout.longest
        inside = (row == torch.arange(layout.rows, device=row.device)[:, None]).float()
        return ((inside / inside.sum(dim=1, keepdim=True)) @ tokens.float()).to(tokens.dtype)


def packed_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention within each row of a packed batch; query, key and value are [1, heads, tokens, width]."""
    layout = _layouts[-1]
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    return _grid_attention(query, key, value, layout, scaling, dropout, sliding_window), None


def _grid_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: Layout,
    scaling: float,
    dropout: float,
    window: int | None,
) -> Tensor:
    """Pad inside attention only, where it is cheap; the rest of the layer stays packed."""
    queries, keys, values = (_to_grid(part, layout) for part in (query, key, value))
    mask = layout.mask
    if window is not None:
        place = torch.arange(layout.longest, device=mask.device)
        mask = mask & ((place[:, None] - place[None, :]).abs() < window)
    result = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, dropout_p=dropout, scale=scaling)
    rows, heads, longest, width = result.shape
    flat = result.transpose(1, 2).reshape(rows * longest, heads * width)
    return FromGrid.apply(flat, layout.slots).view(1, -1, heads, width)  # type: ignore[no-untyped-call,no-any-return]


def _to_grid(packed: Tensor, layout: Layout) -> Tensor:
    _, heads, tokens, width = packed.shape
    flat = packed[0].transpose(0, 1).reshape(tokens, heads * width)
    grid = ToGrid.apply(flat, layout.slots, layout.rows * layout.longest)  # type: ignore[no-untyped-call]
    return grid.view(layout.rows, layout.longest, heads, width).transpose(1, 2)  # type: ignore[no-any-return]


class ToGrid(torch.autograd.Function):
    """Scatter tokens into the padded grid; the gradient is the gather below instead of an index_add."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, slots: Tensor, size: int) -> Tensor:
        ctx.save_for_backward(slots)
        return tokens.new_zeros(size, tokens.shape[1]).index_copy_(0, slots, tokens)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (slots,) = ctx.saved_tensors
        return gradient.index_select(0, slots), None, None


class FromGrid(torch.autograd.Function):
    """Gather tokens out of the padded grid; padding gets a gradient of zero."""

    @staticmethod
    def forward(ctx: Any, grid: Tensor, slots: Tensor) -> Tensor:
        ctx.save_for_backward(slots)
        ctx.size = grid.shape[0]
        return grid.index_select(0, slots)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (slots,) = ctx.saved_tensors
        return gradient.new_zeros(ctx.size, gradient.shape[1]).index_copy_(0, slots, gradient), None
