"""Chooses which of the engine's paths trains a model: the fastest that computes the same training."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whet.config import TrainConfig
from whet.data.tokens.batches import BatchOrder, pack
from whet.data.tokens.table import Tokens
from whet.distributed.group import DistributedContext
from whet.engine.captured.modernbert_limits import why_not_fast
from whet.engine.captured.network import CapturedNetwork, ModernBertNetwork, why_not_captured
from whet.engine.fused.architectures import why_not_fused
from whet.engine.losses import Loss
from whet.engine.network import Batch, Network
from whet.engine.optimizer import make_adamw
from whet.engine.regression_head import keep_numbers_exact
from whet.engine.stepper import Stepper
from whet.models.lora import has_adapters, hold_as_bf16
from whet.utils.device import Hardware

CHUNK = 10_000_000
LOOK_AHEAD = 1_000_000
ALONE = DistributedContext()


def choose_path(
    model: Any,
    loss: Loss,
    config: TrainConfig,
    hardware: Hardware,
    tokens: Sequence[Tokens],
    ranks: DistributedContext = ALONE,
    order: BatchOrder | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    every_word: bool = False,
) -> tuple[Network, Stepper]:
    """Return a network and the stepper that trains it.

    `tokens` are all the rows of the run, with the training rows first; `order` is the order of those. `optimizer` is
    used if the path does not compute the update itself; with `every_word` it trains the whole vocabulary.
    """
    keep_numbers_exact(model)
    network, stepper = _choose_path(model, loss, config, hardware, tokens, ranks, order, optimizer, every_word)
    if ranks.world > 1:
        stepper.rank, stepper.world, stepper.synchronized = ranks.rank, ranks.world, ranks.sum_in_place
    if config.average:
        stepper.keep_average(config.average)
    return network, stepper


def _choose_path(
    model: Any,
    loss: Loss,
    config: TrainConfig,
    hardware: Hardware,
    tokens: Sequence[Tokens],
    ranks: DistributedContext,
    order: BatchOrder | None,
    optimizer: torch.optim.Optimizer | None,
    every_word: bool,
) -> tuple[Network, Stepper]:
    if config.shard:
        return _sharded(model, loss, config, hardware, ranks)
    reason = why_not_fused(model) or _why_not_here(hardware)
    if not reason:
        from whet.engine.fused.network import FusedNetwork
        from whet.engine.fused.stepper import FusedStepper

        # Only an update on one CPU process without decay can skip words that have not occurred yet.
        alone = hardware.device.type == "cpu" and config.weight_decay == 0 and ranks.world == 1
        used = None if every_word else used_ids(tokens, model.config.vocab_size, order if alone else None)
        room = (config.batch_size, max_tokens(tokens[0], config.batch_size))
        fused = FusedNetwork(model, hardware, used, decay=config.weight_decay > 0, seed=config.seed, most=room)
        if hardware.device.type == "cuda":
            from whet.engine.fused.cuda.graph_stepper import GraphStepper

            least = short_batch_tokens(tokens[0].row_lengths, order, config.batch_size, ranks.world)
            return fused, GraphStepper(fused, loss, config, hardware, least=min(least, room[1]))
        return fused, FusedStepper(fused, _loss_of(fused, loss), config, hardware)
    if has_adapters(model) and hardware.device.type == "cuda" and hardware.bf16:
        hold_as_bf16(model)
    if hardware.device.type == "cuda":
        if not (against := why_not_captured(model)):
            return _captured(model, loss, config, hardware, tokens[0], ranks, order, optimizer, reason)
        reason = f"{reason}; {against}"
    network = Network(model, hardware.device)
    network.why = "; ".join(filter(None, (reason, network.why_padded)))
    settings = _stepper_settings(network, loss, config, hardware)
    return network, Stepper(**settings | ({"optimizer": optimizer} if optimizer is not None else {}))


def _captured(
    model: Any,
    loss: Loss,
    config: TrainConfig,
    hardware: Hardware,
    tokens: Tokens,
    ranks: DistributedContext,
    order: BatchOrder | None,
    optimizer: torch.optim.Optimizer | None,
    reason: str,
) -> tuple[Network, Stepper]:
    from whet.engine.captured.batches import Format, InARow, Rectangle, shortest_row
    from whet.engine.captured.stepper import CapturedStepper

    rows = config.batch_size if order is None else min(config.batch_size, order.batch_size // ranks.world)
    by_chance = order is not None and order.kind == "random"
    if _modernbert_is_fused(model, hardware):
        network: CapturedNetwork = ModernBertNetwork(model, hardware.device)
        form: Format = InARow(short_batch_tokens(tokens.row_lengths, order, config.batch_size, ranks.world))
    else:
        network = CapturedNetwork(model, hardware.device, reason)
        form = Rectangle(model.config, shortest_row(tokens.row_lengths, rows) if by_chance else 0)
    return network, CapturedStepper(
        network,
        _loss_of(network, loss),
        config,
        hardware,
        make_adamw(network.model, config) if optimizer is None else optimizer,
        form=form,
    )


def _modernbert_is_fused(model: Any, hardware: Hardware) -> bool:
    return hardware.device.type == "cuda" and not (why_not_fast(model) or _why_not_here(hardware))


def _sharded(
    model: Any, loss: Loss, config: TrainConfig, hardware: Hardware, ranks: DistributedContext
) -> tuple[Network, Stepper]:
    from whet.engine.sharded import ShardedStepper, shard_model

    plain = type(model)
    network = Network(shard_model(model, hardware, ranks), hardware.device)
    network.why = "; ".join(filter(None, ("its weights are split over the processes (--shard)", network.why_padded)))
    return network, ShardedStepper(ranks, plain, **_stepper_settings(network, loss, config, hardware))


def _stepper_settings(network: Network, loss: Loss, config: TrainConfig, hardware: Hardware) -> dict[str, Any]:
    return {
        "model": network.model,
        "loss_of": _loss_of(network, loss),
        "optimizer": make_adamw(network.model, config),
        "hardware": hardware,
        "clip": config.clip,
        "seed": config.seed,
        "micro_rows": config.batch_size,
    }


def choose_network(model: Any, hardware: Hardware) -> Network:
    """Return the fastest network for prediction alone, without memory for gradients or moments."""
    keep_numbers_exact(model)
    if _modernbert_is_fused(model, hardware):
        return ModernBertNetwork(model, hardware.device)
    reason = why_not_fused(model) or _why_not_here(hardware)
    if reason:
        network = Network(model, hardware.device)
        network.why = "; ".join(filter(None, (reason, network.why_padded)))
        return network
    from whet.engine.fused.network import FusedNetwork

    return FusedNetwork(model, hardware, training=False)


def used_ids(tokens: Sequence[Tokens], vocabulary: int, order: BatchOrder | None = None) -> np.ndarray[Any, Any]:
    """Return every token id that occurs, read in pieces because a large table is mapped from disk.

    If the training order is given, ids are sorted by their first use within the look-ahead; ids without use come
    last.
    """
    seen = np.zeros(vocabulary, dtype=bool)
    for table in tokens:
        for start in range(0, len(table.ids), CHUNK):
            seen[table.ids[start : start + CHUNK]] = True
    found = np.flatnonzero(seen)
    if order is None:
        return found
    ids, where = np.unique(_ids_in_training_order(tokens[0], order), return_index=True)
    early = ids[np.argsort(where)]
    return np.concatenate([early, np.setdiff1d(found, early, assume_unique=True)])


def _ids_in_training_order(tokens: Tokens, order: BatchOrder) -> np.ndarray[Any, Any]:
    """Return about `LOOK_AHEAD` token ids of the first epoch in training order."""
    parts, count = [np.zeros(0, dtype=np.int64)], 0
    for index in range(order.steps_per_epoch):
        parts.append(pack(tokens, tokens.rows_of(order.batch(0, index))).input_ids)
        count += len(parts[-1])
        if count > LOOK_AHEAD:
            break
    return np.concatenate(parts)


def max_tokens(tokens: Tokens, rows: int) -> int:
    """Return the total length of the longest rows of the table: an upper bound for any batch of that many rows."""
    lengths = tokens.row_lengths
    longest = np.partition(lengths, -min(rows, len(lengths)))[-rows:]
    return int(longest.sum()) + 256


def short_batch_tokens(lengths: np.ndarray[Any, Any], order: BatchOrder | None, batch_size: int, world: int) -> int:
    """Return a length that about one batch in twenty falls below; 0 if batches are not drawn at random."""
    if order is None or order.kind != "random":
        return 0
    rows = min(batch_size, order.batch_size // world)
    return max(0, int(rows * lengths.mean() - 1.65 * rows**0.5 * lengths.std()))


def _why_not_here(hardware: Hardware) -> str:
    """Return why this device cannot run the fused layers; empty if it can."""
    if hardware.device.type == "cpu":
        return ""
    if hardware.device.type != "cuda":
        return f"fused layers do not run on {hardware.device.type}"
    if not hardware.bf16:
        return "fused layers on a GPU compute in bf16, and float32 was asked for"
    if find_spec("triton") is None:
        return "the package triton is not installed"
    return ""


def _loss_of(network: Network, loss: Loss) -> Any:
    def total(batch: Batch) -> Tensor:
        assert isinstance(batch.labels, torch.Tensor)
        if loss.contrastive:
            logits, features = network.logits_and_features(batch)
            return loss.total(logits, batch.labels, features, batch.share)
        return loss.total(network.logits(batch), batch.labels, share=batch.share)

    return total
