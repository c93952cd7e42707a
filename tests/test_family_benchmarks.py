"""The benchmarks over families of models: every family, as a tiny model, through the real `whet bench`."""

from __future__ import annotations

import argparse
import csv
import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from whet.config import Config, make_config
from whet.errors import EnvironmentFault
from whet.tools.bench import contenders, loops
from whet.tools.bench.benchmark import Contender

WHET = Contender("whet", False, "auto")
# Importing DeBERTa does this in torch 2.13.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 400,
}
TINY_SHAPES: dict[str, dict[str, Any]] = {
    "DistilBERT": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "vocab_size": 400},
    "DeBERTa-v3-base": {**TINY, "pooler_hidden_size": 32},
    "ALBERT-base": {**TINY, "embedding_size": 16},
    "EuroBERT-210m": {**TINY, "num_key_value_heads": 4},
    "Qwen3-0.6B, LoRA": {**TINY, "num_key_value_heads": 2, "head_dim": 8},
}


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return loaded("family_models", monkeypatch)


def loaded(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module(name)


PATHS = {"DeBERTa-v3-base": "packed", "MPNet-base": "packed"}
FAMILIES = (
    "BERT-base",
    "DistilBERT",
    "BERT-large",
    "RoBERTa-base",
    "XLM-R-base",
    "ModernBERT-base",
    "DeBERTa-v3-base",
    "MPNet-base",
    "ALBERT-base",
    "EuroBERT-210m",
    "Qwen3-0.6B, LoRA",
)


@pytest.fixture
def config(family: str, models: ModuleType, tmp_path: Path) -> Config:
    """The settings of a benchmark with a tiny model of this family."""
    from transformers import CONFIG_MAPPING

    if models.FAMILIES[family][0] not in CONFIG_MAPPING:
        pytest.skip("the installed transformers does not have this family")
    models.write_model(tmp_path / "model", family, small=True, **TINY_SHAPES.get(family, TINY))
    models.write_pairs(tmp_path / "pairs.csv", TINY["vocab_size"], rows=40)
    settings = {"source": str(tmp_path / "pairs.csv"), "model": str(tmp_path / "model"), "recipe": "course"}
    return make_config({**settings, "batch_size": 8, "device": "cpu"})


def test_no_family_is_forgotten_here(models: ModuleType) -> None:
    assert list(models.FAMILIES) == list(FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_timed_with_path_reason_and_memory(family: str, config: Config, tmp_path: Path) -> None:
    for make in (lambda: contenders.whet_trainer(config, WHET, str(tmp_path)), lambda: loops.loop(config, WHET)):
        answers = make()
        assert answers["turn"](1) > 0
        assert answers["memory"]() > 0
        assert np.isfinite(answers["losses"]()).all()
        path, why = answers["path"](), answers["why"]()
        assert path == "fused" or why, path
        assert path == PATHS.get(family, path)
        assert "(" not in path
        assert answers["preparing"]() >= 0


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_stands_beside_the_stock_library(
    family: str, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = argparse.Namespace(steps=1, turns=1, rows=16, float32=True)
    for name in ("families", "loop"):
        benchmark = loaded(name, monkeypatch)
        found = {"family": family, **benchmark.measure(config, given, [])}
        for part in set(found) - {"family"}:
            assert all(row["peak_mb"] > 0 for row in found[part]["contenders"].values())
            assert found[part].get("losses", {}).get("whet", {}).get("largest_difference", 0) < 0.01
            assert found[part].get("same_labels", 1) >= 0.9
        assert all(len(line) <= 80 for line in [*benchmark.HEAD.splitlines(), *benchmark.lines_of(found)])


def test_lengths_are_those_of_mrpc(models: ModuleType, tmp_path: Path) -> None:
    about = models.about_rows()
    assert about["mean"] == pytest.approx(53, abs=1)
    assert about["95%"] == pytest.approx(74, abs=2)
    assert about["longest"] == 103
    models.write_pairs(tmp_path / "pairs.csv", 400)
    with (tmp_path / "pairs.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    counts = [len(row["sentence1"].split()) + len(row["sentence2"].split()) + 3 for row in rows]
    assert counts == models.row_lengths().tolist()


def test_time_bounds_the_study_and_a_failure_does_not_end_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = loaded("family_study", monkeypatch)
    monkeypatch.setattr("results.FOLDER", tmp_path)
    monkeypatch.setattr(study, "machine", lambda: {"device": "CPU", "small": True})
    monkeypatch.setattr(study, "Worker", lambda patience: None)
    monkeypatch.setattr(study, "write_model", lambda folder, family, **sizes: None)
    clock = [0.0]
    monkeypatch.setattr(study.time, "monotonic", lambda: clock[0])

    def measure(config: Config, given: argparse.Namespace, own: object) -> dict[str, Any]:
        clock[0] += 50
        if clock[0] == 100:
            raise EnvironmentFault("A contender died.")
        return {"figure": clock[0]}

    given = study.parser_of("", ["BERT-base", "DistilBERT", "BERT-large", "MPNet-base"], 3.0).parse_args([])
    study.study("studied", given, 3, measure, lambda each: [f"{each['family']} {each['figure']}"])
    found = json.loads((tmp_path / "studied-cpu.json").read_text(encoding="utf-8"))
    told = [each.get("figure", each.get("error")) for each in found["families"]]
    assert told == [50, "A contender died.", 150, "left out, because 3 minutes were nearly over"]
