"""DeBERTa and MPNet with the replaced attention compute what the library computes, padded and packed."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.conftest import random_tokens, small_model
from whet.data.tokens.batches import pad
from whet.data.tokens.table import Tokens, Truncation
from whet.engine.exact_attention import exact_attention, why_not_exact
from whet.engine.given import why_not_model
from whet.engine.network import Batch, Network, to_device
from whet.engine.packed import why_not_packed

# Importing DeBERTa does this in torch 2.13.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")

CPU = torch.device("cpu")
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "mpnet": ("mpnet", {}),
    "deberta-v3": ("deberta-v2", {}),
    "own projections of positions": ("deberta-v2", {"share_att_key": False}),
    "content to position": ("deberta-v2", {"pos_att_type": ["c2p"]}),
    "position to content": ("deberta-v2", {"pos_att_type": "p2c", "share_att_key": False}),
    "no terms of positions": ("deberta-v2", {"pos_att_type": []}),
    "no buckets": ("deberta-v2", {"position_buckets": -1}),
    "few distances": ("deberta-v2", {"position_buckets": -1, "max_relative_positions": 10}),
    "buckets with gaps": ("deberta-v2", {"position_buckets": 24, "max_relative_positions": 30}),
    "more buckets than distances": ("deberta-v2", {"position_buckets": 256}),
    "positions as read": ("deberta-v2", {"norm_rel_ebd": "none"}),
    "positions and types in the input": ("deberta-v2", {"position_biased_input": True, "type_vocab_size": 2}),
    "no relative attention": ("deberta-v2", {"relative_attention": False}),
    "a convolution": ("deberta-v2", {"conv_kernel_size": 3, "conv_act": "gelu"}),
}
FAMILIES = ("deberta-v2", "mpnet")
Ways = dict[str, Callable[[], torch.Tensor]]


def padded(model: Any, tokens: Any, rows: Any = None) -> Batch:
    rows = np.arange(len(tokens)) if rows is None else rows
    return to_device(pad(tokens, rows, pad_id=model.config.pad_token_id), CPU)


def ways_of(model: Any, tokens: Any) -> Ways:
    """Every way to compute the logits of these rows by the replaced attention."""
    batch, network = padded(model, tokens), Network(model, CPU)

    def whole() -> torch.Tensor:
        with exact_attention(model):
            return model(**batch.inputs).logits  # type: ignore[no-any-return]

    ways: Ways = {"padded": whole, "padded, first tokens": lambda: network.logits(batch)}
    if network.is_packed:
        ways["packed"] = lambda: network.logits(network.collate(tokens, np.arange(len(tokens))))
    return ways


def gradients(model: Any, logits: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    logits.square().sum().backward()  # type: ignore[no-untyped-call]
    return {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}


def of_lengths(*lengths: int) -> Tokens:
    ids = np.random.default_rng(0).integers(5, 400, sum(lengths)).astype(np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Tokens(ids, offsets, None, np.zeros(len(lengths), np.int64), Truncation(), "lengths")


@pytest.mark.parametrize("name", list(MODELS))
def test_logits_and_gradients_are_the_librarys(name: str) -> None:
    family, settings = MODELS[name]
    model = small_model(family, initializer_range=0.2, **settings).train()
    tokens = random_tokens(6, types=settings.get("type_vocab_size", 0) > 0)
    expected = model(**padded(model, tokens).inputs).logits
    own = gradients(model, expected)
    for compute in ways_of(model, tokens).values():
        logits = compute()
        torch.testing.assert_close(logits, expected, rtol=1e-5, atol=2e-6)
        found = gradients(model, logits)
        assert found.keys() == own.keys()
        for each, gradient in found.items():
            torch.testing.assert_close(gradient, own[each], rtol=1e-4, atol=1e-5, msg=each)


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_of_every_length(family: str) -> None:
    model = small_model(family, initializer_range=0.2, dropout=0.5).eval()
    for lengths in [(1,), (1, 1, 1), (2, 1), (7, 8, 9), *((length, 3) for length in range(15, 36, 6)), (1, 64)]:
        tokens = of_lengths(*lengths)
        with torch.no_grad():
            expected = model(**padded(model, tokens).inputs).logits
            for compute in ways_of(model, tokens).values():
                torch.testing.assert_close(compute(), expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("lengths", "settings"),
    [
        pytest.param((530, 12), {}, id="longer than any table"),
        pytest.param((16, 3), {"max_relative_positions": 10}, id="as many rows as distances, and some are skipped"),
    ],
)
def test_rows_of_unusual_lengths(lengths: tuple[int, ...], settings: dict[str, Any]) -> None:
    model = small_model("deberta-v2", initializer_range=0.2, layers=1, **settings).eval()
    tokens = of_lengths(*lengths)
    with torch.no_grad():
        expected = model(**padded(model, tokens).inputs).logits
        for compute in ways_of(model, tokens).values():
            torch.testing.assert_close(compute(), expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_outside_of_the_context_the_model_is_the_librarys(family: str) -> None:
    model = small_model(family)
    with exact_attention(model):
        encoder = vars(model.base_model.encoder)
        outer = encoder["forward"]
        with exact_attention(model, first_token_only=True):
            assert encoder["forward"] is not outer
        assert encoder["forward"] is outer
    Network(model, CPU).logits(padded(model, of_lengths(3, 2)))
    assert not any("forward" in vars(module) or module._forward_hooks for module in model.modules())
    assert why_not_model(model) == ""
    assert pickle.dumps(model)


@pytest.mark.parametrize("family", FAMILIES)
def test_without_asking_for_less_every_token_is_returned(family: str) -> None:
    model, tokens = small_model(family).eval(), of_lengths(5, 3)
    inputs = padded(model, tokens).inputs
    with torch.no_grad(), exact_attention(model):
        found = model.base_model(**inputs).last_hidden_state
    expected = model.base_model(**inputs).last_hidden_state
    kept = inputs["attention_mask"].bool()
    torch.testing.assert_close(found[kept], expected[kept], rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_two_steps_with_the_same_seed_are_equal_to_the_bit(family: str) -> None:
    model, tokens = small_model(family, dropout=0.2).train(), random_tokens(6, types=False)
    for compute in ways_of(model, tokens).values():
        torch.manual_seed(1)
        first = gradients(model, compute())
        torch.manual_seed(1)
        second = gradients(model, compute())
        assert all(torch.equal(first[name], second[name]) for name in first)
        third = gradients(model, compute())
        assert not all(torch.equal(first[name], third[name]) for name in first)


@pytest.mark.parametrize(
    ("family", "name"), [("deberta-v2", "pos_dropout"), ("deberta-v2", "dropout"), ("mpnet", "dropout")]
)
def test_dropout_has_the_rate_of_its_module(family: str, name: str) -> None:
    """At a rate of 1 the library's result does not depend on chance, either."""
    model, tokens = small_model(family, initializer_range=0.2).train(), random_tokens(6, types=False)
    before = model(**padded(model, tokens).inputs).logits
    for layer in model.base_model.encoder.layer:
        inner = layer.attention.self if family == "deberta-v2" else layer.attention.attn
        inner.get_submodule(name).p = 1.0
    expected = model(**padded(model, tokens).inputs).logits
    assert not torch.allclose(before, expected, atol=1e-4)
    for compute in ways_of(model, tokens).values():
        torch.testing.assert_close(compute(), expected, rtol=1e-5, atol=2e-6)


class NoHostNumbers(TorchDispatchMode):
    """Fails at what a CUDA graph cannot hold: numbers read from the device or written to it, and unknown shapes."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in ("_local_scalar_dense", "lift_fresh", "nonzero", "index", "gather", "scatter_add"), name
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_can_be_captured_after_one_of_its_length(family: str) -> None:
    model, tokens = small_model(family, dropout=0.1).train(), of_lengths(40, 12)
    network = Network(model, CPU)
    batches = [network.collate(tokens, np.arange(2))]
    if family == "deberta-v2":  # the library's own mask of MPNet looks whether anything is masked, but in no capture
        batches.append(padded(model, tokens))
    for batch in batches:
        gradients(model, network.logits(batch))
        with NoHostNumbers():
            gradients(model, network.logits(batch))


@pytest.mark.parametrize("family", FAMILIES)
def test_bf16_is_as_close_to_float32_as_the_librarys(family: str) -> None:
    model = small_model(family, layers=4, width=64, initializer_range=0.1).train()
    tokens = random_tokens(8, types=False)

    def flat(logits: torch.Tensor) -> torch.Tensor:
        return torch.cat([each.flatten() for each in gradients(model, logits.float()).values()])

    exact = flat(model(**padded(model, tokens).inputs).logits)
    for compute in ways_of(model, tokens).values():
        with torch.autocast("cpu", torch.bfloat16):
            logits = compute()
        assert torch.cosine_similarity(flat(logits), exact, dim=0) > 0.999


def test_scores_of_any_size_stay_numbers() -> None:
    model, tokens = small_model("deberta-v2").train(), random_tokens(6, types=False)
    for layer in model.base_model.encoder.layer:
        with torch.no_grad():
            layer.attention.self.query_proj.weight.normal_(std=30)
            layer.attention.self.key_proj.weight.normal_(std=30)
    for compute in ways_of(model, tokens).values():
        with torch.autocast("cpu", torch.bfloat16):
            logits = compute()
        assert logits.isfinite().all()
        assert all(each.isfinite().all() for each in gradients(model, logits.float()).values())


def hooked_attention(model: Any) -> None:
    module = model.base_model.encoder.layer[0].attention.self
    module.forward = module.forward


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda model: setattr(model.config, "output_hidden_states", True), "hidden states"),
        (lambda model: model.gradient_checkpointing_enable(), "recomputes activations"),
        (lambda model: setattr(model.base_model, "z_steps", 2), "several times"),
        (hooked_attention, "was replaced"),
        (lambda model: setattr(model.base_model, "encoder", torch.nn.Identity()), "its encoder is a Identity"),
    ],
)
def test_what_is_not_replaced_says_why(change: Callable[[Any], None], reason: str) -> None:
    model = small_model("deberta-v2")
    assert why_not_exact(model) == ""
    change(model)
    assert reason in why_not_exact(model)
    assert why_not_packed(model) == why_not_exact(model)
    before = [dict(vars(module)) for module in model.modules()]
    with exact_attention(model):
        assert [dict(vars(module)) for module in model.modules()] == before


def test_other_families_are_left_alone() -> None:
    model = small_model("bert")
    assert why_not_exact(model) == "the attention of bert is the library's own"
    with exact_attention(model):
        assert not any("forward" in vars(module) for module in model.modules())


@pytest.mark.parametrize(
    ("family", "settings", "reason"),
    [
        ("deberta-v2", {"conv_kernel_size": 3}, "its convolution reads the tokens beside each token"),
        ("mpnet", {"pad_token_id": 0}, "its padding token is 0, and MPNet counts positions by the token 1"),
    ],
)
def test_what_cannot_be_packed_says_why(family: str, settings: dict[str, Any], reason: str) -> None:
    assert why_not_packed(small_model(family, **settings)) == reason


@pytest.mark.parametrize("family", FAMILIES)
def test_features_are_those_of_the_first_tokens(family: str) -> None:
    model, tokens = small_model(family).eval(), random_tokens(6, types=False)
    network, batch = Network(model, CPU), padded(model, tokens)
    expected = model.base_model(**batch.inputs).last_hidden_state[:, 0]
    for each in (batch, network.collate(tokens, np.arange(6))):
        logits, features = network.logits_and_features(each)
        torch.testing.assert_close(features, expected, rtol=1e-5, atol=2e-6)
        torch.testing.assert_close(logits, model(**batch.inputs).logits, rtol=1e-5, atol=2e-6)


def test_a_copy_of_a_model_in_use_is_independent() -> None:
    model = small_model("deberta-v2")
    other = copy.deepcopy(model)
    with exact_attention(model):
        assert not any("forward" in vars(module) for module in other.modules())
