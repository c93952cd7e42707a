from __future__ import annotations

from pathlib import Path

import pytest
import torch

from whet.config import make_config
from whet.errors import ArtifactError, UsageError
from whet.task import Task
from whet.tools.selftest.tiny_run import write_rows
from whet.training.setup import BackgroundModelLoader, read_examples

BINARY = Task("binary", ("no", "yes"))


def test_a_model_that_was_loaded_beside_is_the_same(tiny_model_folder: Path) -> None:
    config = make_config({"model": str(tiny_model_folder), "seed": 5})
    beside, alone = BackgroundModelLoader(config, BINARY), BackgroundModelLoader(config, BINARY)
    beside.start()
    found, expected = (each.loaded().model.state_dict() for each in (beside, alone))
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_what_is_wrong_with_a_model_is_said_by_whoever_asks_for_it() -> None:
    model = BackgroundModelLoader(make_config({"model": "./no-such-folder"}), BINARY)
    model.start()
    for ask in (model.loaded, model.check):
        with pytest.raises(ArtifactError, match="no model folder"):
            ask()


def test_a_metric_that_the_task_has_not_is_refused_with_the_data(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.csv", 40)
    config = make_config({"source": str(tmp_path / "rows.csv"), "metric": "pearson"})
    with pytest.raises(UsageError, match="'pearson', and a binary task has no such metric"):
        read_examples(config.data.source, config, lambda line: None)


def test_run_model_folder_and_pipeline_read_as_much_of_a_long_text(tmp_path: Path, tiny_model_folder: Path) -> None:
    from transformers import pipeline

    import whet

    write_rows(tmp_path / "rows.csv", 40)
    run = whet.fit(
        tmp_path / "rows.csv", model=tiny_model_folder, run=tmp_path / "run", epochs=1, max_length=12, device="cpu"
    )
    long = "yes " + "no apple brick cloud " * 8
    folder = str(run.path / "model")
    answers = [
        whet.load(path, device="cpu", precision="float32").predict([long])[0].probabilities
        for path in (run.path, folder)
    ]
    piped = pipeline("text-classification", model=folder, device="cpu", top_k=None)([long], truncation=True)
    answers.append({each["label"]: each["score"] for each in piped[0]})
    assert whet.load(folder, device="cpu").max_length == 12
    for answer in answers[1:]:
        assert answer == pytest.approx(answers[0], abs=1e-5)
