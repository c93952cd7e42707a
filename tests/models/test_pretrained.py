"""A model that cannot be had says so at once."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from whet.config import ModelConfig
from whet.data.readers import hub
from whet.errors import ArtifactError, EnvironmentFault
from whet.models.pretrained import load_config, load_model, load_tokenizer, save_model
from whet.task import Task


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A machine without a network; what is connected to is noted."""
    from huggingface_hub import constants

    tried: list[Any] = []

    def refuse(address: Any, *_: Any, **__: Any) -> None:
        tried.append(address)
        raise OSError("no network")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "_answers", {})
    monkeypatch.setattr(socket, "create_connection", refuse)
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    return tried


def test_without_a_network_the_hub_is_tried_once(attempts: list[Any]) -> None:
    for load in (load_tokenizer, load_config):
        with pytest.raises(EnvironmentFault, match=r"'no-such-model' cannot be loaded: .* Check the name"):
            load("no-such-model", ModelConfig())
    assert len(attempts) == 1


def test_a_local_folder_needs_no_network(attempts: list[Any], tiny_model_folder: Path) -> None:
    assert load_config(str(tiny_model_folder), ModelConfig()).model_type == "bert"
    with pytest.raises(ArtifactError, match=r"no model folder './nowhere'"):
        load_config("./nowhere", ModelConfig())
    assert attempts == []


def test_the_client_may_go_online_again_afterwards(attempts: list[Any]) -> None:
    from huggingface_hub import constants

    with hub.cache_only_without_network() as cut_off:
        assert cut_off
        assert constants.HF_HUB_OFFLINE
    assert not constants.HF_HUB_OFFLINE


def test_a_model_that_would_return_its_attention_can_be_saved(tiny_model_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_model_folder, tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "output_attentions": True}))
    loaded = load_model(str(tmp_path / "model"), Task("binary", ("no", "yes")), ModelConfig(), seed=1)
    save_model(loaded.model, None, tmp_path / "saved")
    assert (tmp_path / "saved" / "model.safetensors").is_file()


def test_a_revision_is_the_one_that_is_loaded(
    tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two revisions as the hub's client keeps them: one has another vocabulary size in its configuration."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    place = tmp_path / "models--someone--tiny"
    for digit, revision, width in (("a", "main", 32), ("b", "older", 64)):
        shutil.copytree(tiny_model_folder, place / "snapshots" / (digit * 40))
        file = place / "snapshots" / (digit * 40) / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"hidden_size": width}))
        (place / "refs").mkdir(exist_ok=True)
        (place / "refs" / revision).write_text(digit * 40)
    for revision, width in ((None, 32), ("older", 64)):
        assert load_config("someone/tiny", ModelConfig(model="someone/tiny", revision=revision)).hidden_size == width


def test_the_library_is_quiet_until_the_last_thread_is_done() -> None:
    from transformers.utils import logging as log

    from whet.models.pretrained import quiet

    before = log.get_verbosity()
    first, second = quiet(), quiet()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert log.get_verbosity() == log.ERROR
    second.__exit__(None, None, None)
    assert log.get_verbosity() == before
