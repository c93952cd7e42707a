from __future__ import annotations

from pathlib import Path

import pytest
import torch

from whet.config import make_config
from whet.data.columns import Task
from whet.errors import ArtifactError
from whet.prepare import ModelBeside

BINARY = Task("binary", ("no", "yes"))


def test_a_model_that_was_loaded_beside_is_the_same(tiny_model_folder: Path) -> None:
    config = make_config({"model": str(tiny_model_folder), "seed": 5})
    beside, alone = ModelBeside(config, BINARY), ModelBeside(config, BINARY)
    beside.start()
    found, expected = (each.loaded().model.state_dict() for each in (beside, alone))
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_what_is_wrong_with_a_model_is_said_by_whoever_asks_for_it() -> None:
    model = ModelBeside(make_config({"model": "./no-such-folder"}), BINARY)
    model.start()
    for ask in (model.loaded, model.check):
        with pytest.raises(ArtifactError, match="no model folder"):
            ask()
