"""A training step and a network on the fast path, with the interface of the general ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whet.config import TrainConfig
from whet.data.batches import pack
from whet.data.tokens import Tokens
from whet.engine.devices import Hardware
from whet.engine.feed import Batch, Network, Rows
from whet.engine.fused.adamw import AdamW, norm_of_gradients, update_on_cpu
from whet.engine.fused.encoder import Encoder, Inputs
from whet.engine.fused.encoder_cpu import CpuEncoder
from whet.engine.fused.families import shape_of
from whet.engine.fused.flat import FlatModel
from whet.engine.fused.pieces_cpu import CpuPieces
from whet.engine.fused.pieces_cpu_frozen import FrozenCpuPieces
from whet.engine.packed import GRID_GRAIN, Layout, make_layout
from whet.engine.step import LossOf, Stepper
from whet.engine.tensors import Groups, model_tensors
from whet.errors import ArtifactError


class FusedNetwork(Network):
    """Logits by the hand-written encoder and the library's own head."""

    def __init__(
        self,
        model: Any,
        hardware: Hardware,
        used: Any = None,
        *,
        decay: bool = False,
        seed: int = 0,
        most: tuple[int, int] = (0, 0),
        training: bool = True,
    ) -> None:
        """`most`: the most rows and tokens of a batch to train on."""
        super().__init__(model, hardware.device)
        kind = torch.bfloat16 if hardware.bf16 else torch.float32
        self.flat = FlatModel(model, hardware.device, kind, used, decay, training)
        self.shift = self._packed.shift if self._packed else 0
        self.pieces: Any = CpuPieces(seed)
        if hardware.device.type == "cpu" and hardware.bf16 and not training and FrozenCpuPieces.available():
            self.pieces = FrozenCpuPieces()
        if hardware.device.type == "cuda":
            from whet.engine.fused.pieces_cuda import CudaPieces, partial_elements

            room = partial_elements(shape_of(model).hidden, *most) if training else 0
            self.pieces = CudaPieces(self.flat.small, room)
        self.encoder = self._make_encoder(training)
        self.add = False
        self.why = ""
        self.words_seen = 0
        """Rows of the word embedding up to here may have had a gradient; those behind never did. Kept on the CPU."""
        self.settle: Callable[[], None] = lambda: None
        """Finishes an update that is still to be done, before the weights are read."""

    def _make_encoder(self, training: bool) -> Encoder:
        kind: type[Encoder] = CpuEncoder if self.device.type == "cpu" else Encoder
        if self.device.type == "cuda" and not training:
            from whet.engine.fused.replay import ReplayedEncoder as kind
        return kind(self.flat, shape_of(self.model), self.pieces)

    def _place(self) -> None:
        """Weights go straight into the flat buffers, so there are never two copies on the device."""
        for module in self.model.modules():
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, buffer.to(self.device))

    def load_weights(self, tensors: Mapping[str, Tensor]) -> None:
        super().load_weights(tensors)
        self.flat.read_in()

    def hand_back(self) -> None:
        self.settle()
        self.flat.hand_back()

    @property
    def path(self) -> str:
        return "fused"

    def logits(self, batch: Batch) -> Tensor:
        return head_logits(self.model, self._hidden(batch))

    def logits_and_features(self, batch: Batch) -> tuple[Tensor, Tensor]:
        hidden = self._hidden(batch)
        return head_logits(self.model, hidden), hidden[:, 0]

    def _hidden(self, batch: Batch) -> Tensor:
        training = self.model.training and torch.is_grad_enabled()
        self.settle()
        if training and self.device.type == "cpu":
            self.words_seen = max(self.words_seen, int(batch.inputs["input_ids"].max()) + 1)
        return self.encoder.first_hidden(self._inputs(batch), training=training, add=self.add)

    def collate(self, tokens: Tokens, rows: Rows) -> Batch:
        packed = pack(tokens, rows)
        inputs = {
            "input_ids": self.flat.new_id[packed.input_ids],
            "position_ids": packed.position_ids + self.shift,
        }
        if packed.token_type_ids is not None:
            inputs["token_type_ids"] = packed.token_type_ids
        grain = 1
        if self.device.type == "cpu":
            inputs, grain = {name: _in_bucket(array) for name, array in inputs.items()}, GRID_GRAIN
        tensors = {name: torch.from_numpy(array).to(self.device) for name, array in inputs.items()}
        labels = None if packed.labels is None else torch.from_numpy(packed.labels).to(self.device)
        return Batch(tensors, labels, make_layout(packed.cu_seqlens, self.device, grain))

    def _inputs(self, batch: Batch) -> Inputs:
        layout = batch.layout
        assert isinstance(layout, Layout)
        return Inputs(
            batch.inputs["input_ids"],
            batch.inputs["position_ids"],
            batch.inputs.get("token_type_ids"),
            layout.offsets,
            layout.first,
            layout.longest,
            layout,
        )


def bucket(tokens: int) -> int:
    """So many tokens rounded up, to at most sixteen sizes between one power of two and the next.

    oneDNN builds and keeps code for every shape of a product: with a shape a step that is 10 MB a step.
    """
    grain = max(16, 1 << max(0, tokens.bit_length() - 5))
    return -(-tokens // grain) * grain


def _in_bucket(array: Any) -> Any:
    """With zeros behind the tokens, one at least: no row has them, no token asks for them, their gradient is zero."""
    return np.pad(array, (0, bucket(len(array) + 1) - len(array)))


def head_logits(model: Any, hidden: Tensor) -> Tensor:
    """The library's own head on [rows, 1, width], with the encoder's output put in its place."""
    base = model.base_model
    if getattr(base, "pooler", None) is not None:
        return model.classifier(model.dropout(base.pooler(hidden)))  # type: ignore[no-any-return]
    if hasattr(model, "pre_classifier"):
        pooled = torch.relu(model.pre_classifier(hidden[:, 0]))
        return model.classifier(model.dropout(pooled))  # type: ignore[no-any-return]
    return model.classifier(hidden)  # type: ignore[no-any-return]


def _for_other_rows(moments: Tensor, before: Any, now: Any) -> Tensor:
    _, there, here = np.intersect1d(before, now, assume_unique=True, return_indices=True)
    found = torch.zeros(len(now), moments.shape[1], dtype=moments.dtype)
    found[torch.from_numpy(here)] = moments[torch.from_numpy(there)]
    return found


class FusedStepper(Stepper):
    """The general step with flat gradients and a flat update."""

    def __init__(self, network: FusedNetwork, loss_of: LossOf, config: TrainConfig, hardware: Hardware) -> None:
        self.network, self.rule = network, AdamW.of(config)
        self._embeddings_of_others = False
        """Whether the sum over processes touched rows of the embeddings that this one did not."""
        super().__init__(
            model=network.model,
            loss_of=loss_of,
            optimizer=None,  # type: ignore[arg-type]  # the update is written out in `_update`
            hardware=hardware,
            clip=config.clip,
            seed=config.seed,
            micro_rows=config.batch_size,
        )

    def backward(self, batch: Batch, weight: float, *, step: int = 0, micro: int = 0) -> Tensor:
        self.network.add = micro > 0
        # Beyond any number of micro-batches, so that every process drops its own.
        self.network.pieces.step, self.network.pieces.micro = step, micro + (self.rank << 32)
        loss = self.loss_of(batch) / weight
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def sum_gradients(self, summed: Callable[[Sequence[Tensor]], None], *, computed: bool) -> None:
        flat = self.network.flat
        if not computed:  # what is left of the step before
            for group in flat.groups():
                group.gradient.zero_()
        summed([group.gradient for group in flat.groups()])
        self._embeddings_of_others = True

    def zero(self) -> None:
        """Matrices are overwritten by the next step; what autograd adds to, and embedding rows, are zeroed."""
        flat = self.network.flat
        flat.zero_head()
        self.network.pieces.clean()
        if self._embeddings_of_others:
            flat.matrices.gradient[flat.matrices.computes_until :].zero_()
            self._embeddings_of_others = False

    def tensors(self) -> Groups:
        flat = self.network.flat
        flat.write_back()
        moments = flat.moments()
        moments["rows"] = torch.from_numpy(flat.used)
        return {"model": model_tensors(self.model), "optimizer": moments}

    def load(self, groups: Mapping[str, Mapping[str, Tensor]]) -> None:
        if "optimizer" not in groups:
            self.network.load_weights(groups["model"])
            return
        flat, saved = self.network.flat, groups["optimizer"]
        if "rows" not in saved:
            raise ArtifactError("The checkpoint does not say which vocabulary rows it holds.")
        rows, own = saved["rows"].cpu().numpy(), flat.moments()
        for name in own.keys() ^ (saved.keys() - {"rows"}):
            raise ArtifactError(f"The checkpoint and this model differ in the optimizer state of {name!r}.")
        self.network.load_weights(groups["model"])
        same_rows = np.array_equal(rows, flat.used)
        for name, tensor in own.items():
            if name.startswith(f"{flat.word}:") and not same_rows:
                # Other data, which the user accepted: rows that were not used before have no moments yet.
                tensor.copy_(_for_other_rows(saved[name], rows, flat.used))
            else:
                tensor.copy_(saved[name])
        self.network.words_seen = flat.words_with_moments()

    def _update(self, step: int, loss: Tensor, rate: float) -> None:
        idle = self._idle()
        norm = norm_of_gradients(self.network.flat, idle)
        good = self.note(step, loss, norm)
        if bool(good):
            scale = min(1.0, self.clip / (float(norm) + 1e-6)) if self.clip > 0 else 1.0
            update_on_cpu(self.network.flat, self.rule, step + 1, rate, scale, idle)
        self.zero()

    def _idle(self) -> range:
        """Rows of the word embedding that nothing can change: no gradient so far, no decay, no other process."""
        if self.rule.weight_decay > 0 or self.synchronized is not None:
            return range(0)
        return self.network.flat.words_from(self.network.words_seen)
