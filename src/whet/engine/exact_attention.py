"""DeBERTa-v2, DeBERTa-v3 and MPNet with the attention of `relative_attention`, for the duration of a forward pass.

The library's attention of these families reads relative positions with an index for every pair of tokens in every
layer, projects all vectors of positions however short the rows are, makes tables on the host in every step, and needs
padding. Here the forward methods of a model's encoder and of its attention modules are replaced while
`exact_attention(model)` is open; outside of it the model is the library's own. All other modules are called as they
are: layers, norms, feed-forward parts, embeddings and heads.

What depends on a length alone is made at the first forward pass of that length on a device, and kept. A CUDA graph
may be captured after one ordinary pass of the same length.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whet.engine.relative_attention import (
    Attend,
    Expand,
    Grid,
    PackedRows,
    TableBias,
    attend_from_first,
    grid_of_mask,
    grid_of_packed,
)
from whet.models.families import recomputes_activations

LEAST_REACH = 512
"""Tables of distances reach at least as far, and else to the next power of two, so that there are few of them."""


def why_not_exact(model: Any) -> str:
    """Return why the model keeps the library's attention; empty if it is replaced."""
    forwards = _FORWARDS.get(model.config.model_type)
    if forwards is None:
        return f"the attention of {model.config.model_type} is the library's own"
    encoder = encoder_of(model)
    if type(encoder).__name__ != forwards.encoder or not type(encoder).__module__.startswith("transformers.models."):
        return f"its encoder is a {type(encoder).__name__}"
    if model.config.output_hidden_states or model.config.output_attentions:
        return "the model is to give hidden states or attentions"
    if recomputes_activations(model):
        return "the model recomputes activations"
    if getattr(model.base_model, "z_steps", 0) > 1:
        return "its last layer is applied several times"
    if any("forward" in vars(module) and not _is_ours(module.forward) for module, _ in _parts(encoder, forwards)):
        return "the forward method of a module was replaced"
    return ""


def encoder_of(model: Any) -> Any:
    """Return the encoder of a model, also inside an adapter of peft; None if it has none."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return getattr(inner.base_model, "encoder", None)


@contextmanager
def exact_attention(model: Any, packed: PackedRows | None = None, *, first_token_only: bool = False) -> Iterator[None]:
    """Compute forward passes within this context by the replaced attention; other models are left alone.

    With `packed` the passes take packed batches of these rows. With that, or with `first_token_only`, the encoder
    returns the first token of each row alone, [rows, 1, width], which is all that the heads of these families read;
    the last layer is computed for these tokens only.
    """
    if why_not_exact(model):
        yield
        return
    asked = Asked(packed, first_token_only or packed is not None)
    replaced = _parts(encoder_of(model), _FORWARDS[model.config.model_type])
    before = [vars(module).get("forward") for module, _ in replaced]
    for module, forward in replaced:
        module.forward = types.MethodType(functools.partial(forward, asked), module)
    try:
        yield
    finally:
        for (module, _), earlier in zip(replaced, before, strict=True):
            if earlier is None:
                del module.forward
            else:
                module.forward = earlier


@dataclass(frozen=True)
class Asked:
    """What a forward pass is given and asked for."""

    packed: PackedRows | None
    first_token_only: bool

    def grid(self, mask: Tensor, heads: int) -> Grid:
        return grid_of_mask(mask, heads) if self.packed is None else grid_of_packed(self.packed, heads)


@dataclass(frozen=True)
class Forwards:
    """The forward methods of a family, the class of its encoder, and the attention module of a layer."""

    encoder: str
    encode: Callable[..., Any]
    attention: str
    attend: Callable[..., Any]


def _parts(encoder: Any, forwards: Forwards) -> list[tuple[Any, Callable[..., Any]]]:
    """Return the modules whose forward is replaced, and by what."""
    modules = [(layer.get_submodule(forwards.attention), forwards.attend) for layer in encoder.layer]
    return [(encoder, forwards.encode), *modules]


def _is_ours(forward: Any) -> bool:
    replaced = getattr(getattr(forward, "__func__", None), "func", None)
    return any(replaced in (each.encode, each.attend) for each in _FORWARDS.values())


def _rate(dropout: torch.nn.Dropout) -> float:
    return dropout.p if dropout.training else 0.0


def _first_tokens(hidden: Tensor, grid: Grid) -> Tensor:
    return FirstTokens.apply(hidden.reshape(-1, hidden.shape[-1]), grid.first)  # type: ignore[no-untyped-call,no-any-return]


class FirstTokens(torch.autograd.Function):
    """Gather the first token of each row; the gradient is a copy instead of an index_add."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, first: Tensor) -> Tensor:
        ctx.save_for_backward(first)
        ctx.count = len(hidden)
        return hidden.index_select(0, first)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (first,) = ctx.saved_tensors
        return gradient.new_zeros(ctx.count, gradient.shape[1]).index_copy_(0, first, gradient), None


# Distances ----------------------------------------------------------------------------------------------


def reach_of(length: int) -> int:
    """Return how far the table for this length reaches."""
    return max(LEAST_REACH, 1 << (length - 1).bit_length())


@functools.cache
def deberta_rows(buckets: int, most: int, span: int, reach: int) -> Tensor:
    """Return the row of the position table for each distance (query minus key) from -reach to reach - 1."""
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    with torch.inference_mode(False):
        distances = torch.arange(-reach, reach)
        if buckets > 0 and most > 0:
            distances = make_log_bucket_position(distances, buckets, most).long()
        return (distances + span).clamp(0, 2 * span - 1)


@functools.cache
def mpnet_rows(reach: int) -> Tensor:
    """Return the same for MPNet's table of biases."""
    from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

    with torch.inference_mode(False):
        return MPNetEncoder.relative_position_bucket(-torch.arange(-reach, reach))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Expansion:
    """Turns rows of a position table into one row for each distance of a length."""

    index: Tensor
    one_hot: Tensor

    def __call__(self, rows: Tensor) -> Tensor:
        return Expand.apply(rows, self.index, self.one_hot)  # type: ignore[no-untyped-call,no-any-return]


@functools.cache
def _expansion(rows: Callable[..., Tensor], settings: tuple[int, ...], count: int, device: torch.device) -> Expansion:
    """Return the expansion of a table with `count` rows to all distances of `rows(*settings)`."""
    index = rows(*settings)
    with torch.inference_mode(False):
        return Expansion(index.to(device), torch.nn.functional.one_hot(index, count).float().to(device))


# DeBERTa ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Relative:
    """What the layers share: the grid, and how the rows of the position table become distances."""

    grid: Grid
    expansion: Expansion | None


def _deberta_encoder(
    asked: Asked, self: Any, hidden_states: Tensor, attention_mask: Tensor, *args: Any, **kwargs: Any
) -> Any:
    from transformers.modeling_outputs import BaseModelOutput

    grid = asked.grid(attention_mask.bool(), self.layer[0].attention.self.num_attention_heads)
    table, expansion = _deberta_positions(self, grid.length)
    shared, hidden = Relative(grid, expansion), hidden_states
    for number, layer in enumerate(self.layer):
        convolves = number == 0 and self.conv is not None
        if asked.first_token_only and number + 1 == len(self.layer) and not convolves:
            first = _first_tokens(hidden, grid)
            hidden = layer(hidden, shared, query_states=first, rel_embeddings=table)[0][:, None]
        else:
            hidden = layer(hidden, shared, rel_embeddings=table)[0]
        if convolves:
            hidden = self.conv(hidden_states, hidden, attention_mask)
    return BaseModelOutput(last_hidden_state=hidden, hidden_states=(hidden,))


def _deberta_positions(encoder: Any, length: int) -> tuple[Tensor | None, Expansion | None]:
    """Return the rows of the position table that this length reads, and their expansion if some are read twice."""
    if not encoder.relative_attention:
        return None, None
    table = encoder.rel_embeddings.weight
    span = len(table) // 2
    settings = (encoder.position_buckets, encoder.max_relative_positions, span, reach_of(length))
    first, last, each_once = _deberta_range(*settings, length)
    read = table[first : last + 1]
    if "layer_norm" in encoder.norm_rel_ebd:
        read = encoder.LayerNorm(read)
    if each_once:
        return read, None
    whole = _expansion(deberta_rows, settings, len(table), table.device)
    places = slice(settings[-1] - length, settings[-1] + length)
    return read, Expansion(whole.index[places] - first, whole.one_hot[places, first : last + 1])


@functools.cache
def _deberta_range(buckets: int, most: int, span: int, reach: int, length: int) -> tuple[int, int, bool]:
    """Return the first and last row that a length reads, and whether each is read by one distance."""
    rows = deberta_rows(buckets, most, span, reach)[reach - length : reach + length]
    first, last = int(rows[0]), int(rows[-1])
    return first, last, torch.equal(rows, torch.arange(first, last + 1))


def _deberta_attention(
    asked: Asked,
    self: Any,
    hidden_states: Tensor,
    attention_mask: Relative,
    output_attentions: bool = False,
    query_states: Tensor | None = None,
    relative_pos: Tensor | None = None,
    rel_embeddings: Tensor | None = None,
) -> tuple[Tensor, None]:
    grid, expansion = attention_mask.grid, attention_mask.expansion
    hidden = hidden_states.reshape(-1, hidden_states.shape[-1])
    queries = hidden if query_states is None else query_states
    compute: Callable[..., Tensor] = Attend.apply if query_states is None else attend_from_first
    terms = [kind for kind in ("c2p", "p2c") if kind in self.pos_att_type]
    scale = (self.attention_head_size * (1 + len(terms))) ** -0.5
    query, key, pos_key, pos_query = _deberta_projections(self, queries, hidden, rel_embeddings, terms)
    if expansion is not None:
        pos_key, pos_query = (part if part is None else expansion(part) for part in (pos_key, pos_query))
    result = compute(query, key, self.value_proj(hidden), pos_key, pos_query, None, grid, scale, _rate(self.dropout))
    return result.view(*(hidden_states if query_states is None else query_states).shape[:-1], -1), None


def _deberta_projections(
    self: Any, queries: Tensor, hidden: Tensor, table: Tensor | None, terms: list[str]
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Return query, key, and the vectors of the positions as keys and as queries."""
    if table is None or not terms:
        return self.query_proj(queries), self.key_proj(hidden), None, None
    table = self.pos_dropout(table)
    key_positions, query_positions = (table if kind in terms else None for kind in ("c2p", "p2c"))
    if self.share_att_key:
        query, pos_query = _together(self.query_proj, queries, query_positions)
        key, pos_key = _together(self.key_proj, hidden, key_positions)
        return query, key, pos_key, pos_query
    return (
        self.query_proj(queries),
        self.key_proj(hidden),
        None if key_positions is None else self.pos_key_proj(key_positions),
        None if query_positions is None else self.pos_query_proj(query_positions),
    )


def _together(project: Any, tokens: Tensor, positions: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Project tokens and positions by one product, which gives one gradient of the weights."""
    if positions is None:
        return project(tokens), None
    both = project(torch.cat([tokens, positions.to(tokens.dtype)]))
    return both.split([len(tokens), len(positions)])  # type: ignore[no-any-return]


# MPNet --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Biased:
    """What the layers share: the grid, and whether this is the last layer, asked for the first tokens alone."""

    grid: Grid
    from_first: bool = False


def _mpnet_encoder(
    asked: Asked, self: Any, hidden_states: Tensor, attention_mask: Tensor | None = None, *args: Any, **kwargs: Any
) -> Any:
    from transformers.modeling_outputs import BaseModelOutput

    grid = asked.grid(_mpnet_mask(attention_mask, hidden_states), self.n_heads)
    bias = _mpnet_bias(self.relative_attention_bias.weight, grid.length)
    hidden = hidden_states
    for number, layer in enumerate(self.layer):
        from_first = asked.first_token_only and number + 1 == len(self.layer)
        hidden = layer(hidden, Biased(grid, from_first), bias)[0]
    return BaseModelOutput(last_hidden_state=hidden)


def _mpnet_bias(table: Tensor, length: int) -> Tensor:
    """Return the scores [heads, length, length] of the distances."""
    reach = reach_of(length)
    whole, places = _expansion(mpnet_rows, (reach,), len(table), table.device), slice(reach - length, reach + length)
    scores = Expansion(whole.index[places], whole.one_hot[places])(table)
    return TableBias.apply(scores.t())  # type: ignore[no-untyped-call,no-any-return]


def _mpnet_mask(mask: Tensor | None, hidden: Tensor) -> Tensor:
    """Return a mask [rows, length], True for tokens, from what the library made of it for every pair of tokens."""
    if mask is None:
        return torch.ones(hidden.shape[:2], dtype=torch.bool, device=hidden.device)
    return mask[:, 0, 0] if mask.dtype == torch.bool else mask[:, 0, 0] == 0


def _mpnet_attention(
    asked: Asked,
    self: Any,
    hidden_states: Tensor,
    attention_mask: Biased,
    position_bias: Tensor,
    output_attentions: bool = False,
    **kwargs: Any,
) -> tuple[Tensor]:
    """Replace `MPNetAttention`: its residual is that of the tokens that are asked for."""
    grid, inner = attention_mask.grid, self.attn
    hidden = hidden_states.reshape(-1, hidden_states.shape[-1])
    from_first = attention_mask.from_first
    queries = _first_tokens(hidden, grid) if from_first else hidden
    compute: Callable[..., Tensor] = attend_from_first if from_first else Attend.apply
    scale, rate = inner.attention_head_size**-0.5, _rate(inner.dropout)
    result = compute(inner.q(queries), inner.k(hidden), inner.v(hidden), None, None, position_bias, grid, scale, rate)
    output: Tensor = self.LayerNorm(self.dropout(inner.o(result)) + queries)
    return (output[:, None] if from_first else output.view_as(hidden_states),)


_FORWARDS = {
    "deberta-v2": Forwards("DebertaV2Encoder", _deberta_encoder, "attention.self", _deberta_attention),
    "mpnet": Forwards("MPNetEncoder", _mpnet_encoder, "attention", _mpnet_attention),
}
