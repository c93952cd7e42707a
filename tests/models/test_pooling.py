"""Mean pooling: an appended layer or a setting, exact on every path, and known to other libraries."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import whet
from tests.conftest import random_tokens, small_model
from tests.training.test_run import settings, write_rows
from whet.config import ModelConfig, TrainConfig
from whet.data.tokens.batches import BatchOrder
from whet.engine.dispatch import choose_path
from whet.engine.losses import Loss
from whet.engine.network import Network, TokenBatches
from whet.engine.optimizer import make_adamw
from whet.engine.stepper import Stepper
from whet.errors import UsageError
from whet.models.pooling import append_mean_layer, has_mean_layer, released_pooling, set_pooling
from whet.models.pretrained import load_model
from whet.task import Task
from whet.tools.selftest.tiny_run import write_model
from whet.utils.device import Hardware

BINARY = Task("binary", ("no", "yes"))
FLOAT32 = Hardware(torch.device("cpu"), "float32", "")
FAMILIES = pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "electra"])


def with_mean(family: str, **sizes: Any) -> Any:
    model = small_model(family, width=64, **sizes)
    torch.manual_seed(0)
    append_mean_layer(model)
    return model


@FAMILIES
def test_the_head_reads_the_mean_of_all_tokens(family: str) -> None:
    plain, model = small_model(family, width=64).eval(), with_mean(family).eval()
    ids = torch.randint(5, 400, (1, 17), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        hidden, found = (each.base_model(ids)[0] for each in (plain, model))
    wanted = torch.nn.functional.layer_norm(30 * hidden.mean(dim=1) + hidden[:, 0], (64,))
    assert torch.allclose(found[:, 0], wanted, atol=1e-4)


def test_padding_does_not_count_in_the_mean() -> None:
    model = with_mean("bert").eval()
    ids, mask = torch.randint(5, 400, (1, 12), generator=torch.Generator().manual_seed(0)), torch.ones(1, 12)
    filled = torch.cat([ids, torch.zeros(1, 5, dtype=torch.int64)], dim=1)
    more = torch.cat([mask, torch.zeros(1, 5)], dim=1)
    with torch.no_grad():
        answers = [model(i, attention_mask=m).logits for i, m in ((ids, mask), (filled, more))]
    assert torch.allclose(*answers, atol=1e-5)


def losses(path: str, family: str) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Eight steps with a half contrastive loss, and the weights after them."""
    tokens = random_tokens(rows=20, types=family in ("bert", "electra"))
    loss, config = Loss(BINARY, contrastive=0.5), TrainConfig(batch_size=8)
    model, order = with_mean(family), BatchOrder(rows=20, batch_size=8, seed=0)
    if path == "fused":
        network, stepper = choose_path(model, loss, config, FLOAT32, [tokens], order=order)
    else:
        from whet.engine.dispatch import _loss_of

        network = Network(model, FLOAT32.device, packed=False)
        stepper = Stepper(model, _loss_of(network, loss), make_adamw(model, config), FLOAT32, 1.0, 42, 8)
    assert network.path == path
    feed, found = TokenBatches(tokens, order, network, loss), []
    for step in range(8):
        rows = order.at(step)
        stepper(step, feed, rows, rows, 1e-3)
        found.append(float(stepper.window.loss))
    return found, {name: tensor.clone() for name, tensor in stepper.tensors()["model"].items()}


@FAMILIES
def test_the_fused_path_trains_the_appended_layer_as_the_library_does(family: str) -> None:
    (padded, theirs), (fused, ours) = losses("padded", family), losses("fused", family)
    assert fused == pytest.approx(padded, rel=1e-4)
    assert ours.keys() == theirs.keys()
    for name, weights in ours.items():
        if ".2." in name and "key.bias" not in name and "k_lin.bias" not in name:  # the gradient of that is rounding
            assert torch.allclose(weights, theirs[name], atol=2e-4), name


def test_queries_and_the_feed_forward_of_the_layer_learn() -> None:
    before, after = dict(with_mean("bert").named_parameters()), losses("fused", "bert")[1]
    for part in ("attention.self.query", "attention.self.value", "output.dense", "intermediate.dense"):
        name = f"bert.encoder.layer.2.{part}.weight"
        assert not torch.equal(before[name], after[name])


def test_modern_models_have_a_setting_for_it() -> None:
    model = small_model("modernbert")
    for pooling, own in (("mean", "mean"), ("auto", "mean"), ("first", "cls")):
        set_pooling(model, pooling)
        assert model.config.classifier_pooling == own
    assert model.config.num_hidden_layers == 2


def test_the_layer_is_appended_once() -> None:
    model = small_model("bert", width=64)
    for _ in range(2):
        set_pooling(model, "mean")
    assert (model.config.num_hidden_layers, len(model.bert.encoder.layer)) == (3, 3)
    assert has_mean_layer(model.config)
    with pytest.raises(UsageError, match="was trained with the mean of its tokens"):
        set_pooling(model, "first")


def test_a_model_without_a_known_layer_is_refused() -> None:
    model = small_model("bert")
    model.config.model_type = "deberta-v2"
    set_pooling(model, "first")
    with pytest.raises(UsageError, match="no layer is known that gives a deberta-v2 model the mean"):
        set_pooling(model, "mean")


@pytest.mark.parametrize("content", [{"pooling_mode_mean_tokens": True}, {"pooling_mode_cls_token": True}, [], None])
def test_what_the_released_model_says_is_read(tmp_path: Path, content: Any) -> None:
    (tmp_path / "1_Pooling").mkdir()
    if content is not None:
        (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(content))
    wanted = "mean" if content == {"pooling_mode_mean_tokens": True} else "first"
    assert released_pooling(str(tmp_path), small_model("bert").config) == wanted
    modern = small_model("modernbert")
    assert released_pooling(str(tmp_path), modern.config) == "first"
    modern.config.classifier_pooling = "mean"
    assert released_pooling(str(tmp_path), modern.config) == "mean"


def test_the_same_seed_appends_the_same_layer(tiny_model_folder: Path) -> None:
    one, other = (
        load_model(str(tiny_model_folder), BINARY, ModelConfig(pooling="mean"), seed=3).model.state_dict()
        for _ in range(2)
    )
    assert all(torch.equal(weight, other[name]) for name, weight in one.items())


PIPED = """
import json, sys
sys.modules["whet"] = None  # importing it fails
from transformers import pipeline
found = pipeline("text-classification", model=sys.argv[1], device="cpu", top_k=None)(json.loads(sys.argv[2]))
print(json.dumps([{answer["label"]: answer["score"] for answer in each} for each in found]))
"""


@pytest.mark.parametrize("width", [pytest.param(32, marks=pytest.mark.slow), 64], ids=["general", "fused"])
def test_a_pipeline_without_whet_gives_the_same_answers(
    tmp_path: Path, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "model", width=width)
    source = write_rows(tmp_path / "reviews.csv")
    run = whet.fit(source, **settings(tmp_path / "model", pooling="mean", device="cpu"))
    assert json.loads((run.path / "environment.json").read_text())["path"] == ("fused" if width == 64 else "packed")
    texts = ["yes apple brick", "no cloud", "yes " + "drum eagle " * 4]
    done = subprocess.run(
        [sys.executable, "-c", PIPED, str(run.path / "model"), json.dumps(texts)],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    theirs = json.loads(done.stdout.splitlines()[-1])
    ours = whet.load(run.path, precision="float32").predict(texts)
    for one, other in zip(theirs, ours, strict=True):
        assert one.keys() == other.probabilities.keys()
        assert [one[label] for label in one] == pytest.approx([other.probabilities[label] for label in one], abs=1e-5)
