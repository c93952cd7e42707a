"""Runs with adapters: what they leave, what resumes them, and what they refuse."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, pipeline

from tests.decoder_models import write_decoder
from tests.test_processes import curve, start
from tests.test_processes import finished as finished_process
from tests.training.test_records_after_a_kill import Run
from whet.cli import main
from whet.config import Config, make_config
from whet.errors import ArtifactError, UsageError
from whet.inference.predictor import Predictor
from whet.models.pretrained import save_model
from whet.records import Part, Save, Step
from whet.runs.folder import RunFolder
from whet.task import Task
from whet.tools.selftest.tiny_run import differences, run_contents, train_arguments, write_model, write_rows
from whet.training.checkpoints import CheckpointFolder
from whet.training.recipe import follow_recipe, resolve_lora
from whet.training.run import dry_run

BINARY = Task("binary", ("bad", "good"))
ADAPTERS: dict[str, Any] = {"lora": True, "lora_rank": 2}


class AdaptedRun(Run):
    """The same small run with adapters."""

    def __init__(self, home: Path, run: Path, model: str = "bert", **settings: Any) -> None:
        super().__init__(home, run)
        self.settings |= {**ADAPTERS, "model": str(home / model), **settings}

    @property
    def checkpoints(self) -> CheckpointFolder:
        return CheckpointFolder(self.run / "checkpoints")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lora")
    write_model(folder / "bert")
    write_decoder(folder / "qwen3")
    write_rows(folder / "rows.csv", 40)
    return folder


@pytest.fixture(scope="module", params=["bert", "qwen3"])
def finished(request: pytest.FixtureRequest, home: Path) -> AdaptedRun:
    run = AdaptedRun(home, home / f"run-{request.param}", request.param)
    run()
    return run


# --- what a run leaves ----------------------------------------------------------------------------------------------


def test_only_adapters_and_head_have_changed(finished: AdaptedRun, home: Path) -> None:
    base = AutoModel.from_pretrained(finished.settings["model"]).state_dict()
    shipped = load_file(finished.run / "model" / "model.safetensors")
    encoder = {name.partition(".")[2]: weight for name, weight in shipped.items()}
    frozen = [name for name in base if "norm" in name.lower() or "embed" in name]
    assert frozen
    assert all(torch.equal(encoder[name], base[name]) for name in frozen)
    matrices = [name for name in base if "layer" in name and base[name].dim() == 2 and name not in frozen]
    assert matrices
    assert not any(torch.equal(encoder[name], base[name]) for name in matrices)
    assert all(np.linalg.matrix_rank((encoder[name] - base[name]).numpy(), tol=1e-5) <= 2 for name in matrices)


def test_a_pipeline_and_whet_answer_as_the_run_has_measured(finished: AdaptedRun) -> None:
    rows = pq.read_table(finished.run / "predictions.parquet").to_pydict()
    answers = pipeline("text-classification", model=str(finished.run / "model"), top_k=None, function_to_apply="none")
    for text, expected in zip(rows["text"], answers(rows["text"], batch_size=4), strict=True):
        found = {each["label"]: each["score"] for each in expected}
        place = rows["text"].index(text)
        assert [found["bad"], found["good"]] == pytest.approx(rows["logits"][place], abs=1e-4)
    ours = Predictor(finished.run, precision="float32").logits(rows["text"])
    np.testing.assert_allclose(ours, rows["logits"], atol=1e-4)


def test_the_adapter_on_its_base_is_the_merged_model(finished: AdaptedRun) -> None:
    import peft

    settings = {"pad_token_id": 2} if "qwen3" in finished.settings["model"] else {}
    loaded = peft.AutoPeftModelForSequenceClassification.from_pretrained(finished.run / "adapter", **settings)
    merged = loaded.merge_and_unload().state_dict()
    shipped = load_file(finished.run / "model" / "model.safetensors")
    assert merged.keys() == shipped.keys()
    assert all(torch.allclose(merged[name], weight, atol=1e-6) for name, weight in shipped.items())


def test_a_checkpoint_holds_what_trains(finished: AdaptedRun) -> None:
    found = finished.checkpoints.load(finished.checkpoints.steps()[-1])
    head = "score" if "qwen3" in finished.settings["model"] else "classifier"
    assert all("lora_" in name or head in name or "pooler" in name for name in found.tensors["model"])
    assert len(found.values["frozen"]) == 64
    assert RunFolder(finished.run).environment["packages"]["peft"] == version("peft")


def test_the_disk_that_is_asked_for_is_that_of_small_checkpoints(home: Path) -> None:
    def mb(**settings: Any) -> float:
        run = AdaptedRun(home, home / "dry", **settings)
        return dry_run(run.settings["source"], make_config(run.settings), lambda line: None).disk_mb

    assert mb(lora_rank=1, lora_targets="query") < mb() < mb(lora=False, lora_rank=16)


# --- resuming -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind, step", [(Step, 12), (Save, 5)])
def test_a_killed_run_ends_like_an_undisturbed_one(
    kind: Any, step: int, finished: AdaptedRun, home: Path, tmp_path: Path
) -> None:
    run = AdaptedRun(home, tmp_path / "run", Path(finished.settings["model"]).name)
    run.killed_at(kind, step)
    run()
    expected = run_contents(finished.run)
    assert "adapter/adapter_model.safetensors" in expected["files"]
    assert differences(expected, run_contents(run.run)) == []


def test_a_base_that_has_changed_is_refused(home: Path, tmp_path: Path) -> None:
    write_model(tmp_path / "bert")
    run = AdaptedRun(home, tmp_path / "run", model=str(tmp_path / "bert"))
    run.killed_at(Save, 5)
    base = AutoModel.from_pretrained(tmp_path / "bert")
    with torch.no_grad():
        base.embeddings.word_embeddings.weight[7, 0] += 0.01
    save_model(base, None, tmp_path / "bert")
    with pytest.raises(ArtifactError, match=r"are not those that the run .* was started with"):
        run()


# --- folds, seeds, averages -----------------------------------------------------------------------------------------

PARTS = [{"folds": 2, "average": 0.9, "epochs": 1}, {"seeds": 2, "epochs": 1}]


@pytest.mark.parametrize("settings", PARTS, ids=["folds", "seeds"])
def test_a_run_of_parts_resumes_exactly(settings: dict[str, Any], home: Path, tmp_path: Path) -> None:
    whole, killed = (AdaptedRun(home, tmp_path / name, **settings) for name in ("whole", "killed"))
    whole()
    killed.killed_at(Part, 0)
    killed()
    assert differences(run_contents(whole.run), run_contents(killed.run)) == []
    assert (whole.run / "adapter" / "adapter_config.json").is_file()


# --- settings -------------------------------------------------------------------------------------------------------


def recipe(**settings: Any) -> Config:
    return follow_recipe(make_config({"recipe": "auto", **settings}), 128, BINARY, 768)[0]


def test_adapters_train_at_ten_times_the_rate() -> None:
    assert recipe(**ADAPTERS).train.learning_rate == pytest.approx(10 * recipe().train.learning_rate)
    assert recipe(**ADAPTERS, lr=1e-3).train.learning_rate == 1e-3
    course = make_config({"recipe": "course", **ADAPTERS})
    assert resolve_lora(course).train.learning_rate == pytest.approx(5e-4)
    assert resolve_lora(make_config({"recipe": "course"})).train.learning_rate == 5e-5


@pytest.mark.parametrize(
    "flags, said",
    [
        (["--lora", "--lora-targets", "quary"], "lora_targets is 'quary'"),
        (["--lora", "--lora-rank", "0"], "lora_rank is 0"),
        (["--lora", "--lora-rank", "400"], "lora_rank is 400"),
        (["--lora-alpha", "8"], "lora_alpha is 8.0, and has no effect without --lora"),
        (["--lora", "--lora-dropout", "1"], "lora_dropout is 1.0"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(
    flags: list[str], said: str, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main([*train_arguments(home / "rows.csv", home / "bert", tmp_path / "run"), *flags])
    assert code == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_split_model_takes_no_adapters() -> None:
    with pytest.raises(UsageError, match="nearly all weights stay as they are"):
        resolve_lora(make_config({**ADAPTERS, "shard": True}))


# --- several processes ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_processes_train_the_adapters_as_one_does(home: Path, tmp_path: Path) -> None:
    write_model(tmp_path / "model", width=64, dropout=0.0)
    arguments = train_arguments(home / "rows.csv", tmp_path / "model", tmp_path / "one", lora=True, lora_rank=4)
    arguments += ["--lora-dropout", "0"]
    assert main(arguments) == 0
    code, _, err = finished_process(start([*arguments, "--run", str(tmp_path / "two"), "--processes", "2"]))
    assert code == 0, err
    one, two = (RunFolder.open(tmp_path / name) for name in ("one", "two"))
    np.testing.assert_allclose(curve(two.records()), curve(one.records()), rtol=1e-3, atol=1e-5)
    assert (two.adapter / "adapter_model.safetensors").is_file()
