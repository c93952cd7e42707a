"""Simpler answers beside the trained model: the same rows, the pretrained weights, and never worth a run."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import whet.training.baselines as made
from whet.api import Run
from whet.config import ModelConfig, make_config
from whet.engine.embeddings import embed_texts
from whet.errors import Interrupted
from whet.metrics.linear_models import frozen_predictions, out_of_fold, pair_features, tfidf_predictions
from whet.metrics.scores import accuracy, score
from whet.models.pretrained import load_model, load_tokenizer
from whet.records import Baselines, End, Resume, replay
from whet.task import Task
from whet.tools.selftest.tiny_run import differences, run_contents, write_model
from whet.training.run import train_run
from whet.utils.device import choose_hardware
from whet.utils.text import markdown_escaped

WORDS = ["apple", "brick", "cloud", "drum", "eagle", "flute", "grape", "house", "iron", "jelly"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Singles and pairs, whose label stands in their words most of the time."""
    folder = tmp_path_factory.mktemp("baselines")
    write_model(folder / "model", 16)
    rng = np.random.default_rng(0)
    for name, rows in (("train", 36), ("validation", 14), ("test", 12)):
        for kind in ("single", "pair"):
            (folder / kind).mkdir(exist_ok=True)
            with open(folder / kind / f"{name}.csv", "w") as file:
                file.write("text,label\n" if kind == "single" else "first,second,label\n")
                for row in range(rows):
                    word = ("yes", "no")[int(rng.random() < 0.8) ^ (row % 2)]
                    texts = [f"{word} {' '.join(rng.choice(WORDS, 3))} {row}", f"{rng.choice(WORDS)} {row} {name}"]
                    file.write(",".join([*texts[: 1 + (kind == "pair")], ("bad", "good")[row % 2]]) + "\n")
    return folder


def train(home: Path, run: Path, source: str = "single", **settings: Any) -> Run:
    config = make_config(
        {
            "source": str(home / source),
            "model": str(home / "model"),
            "run": str(run),
            "recipe": "course",
            "epochs": 1,
            "batch_size": 12,
            "learning_rate": 0.01,
            "evaluations": 2,
            "precision": "float32",
            **settings,
        }
    )
    return Run(train_run(config.data.source, config).path)


@pytest.fixture(scope="module")
def single(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(home, tmp_path_factory.mktemp("single") / "run")


def columns(path: Path) -> dict[str, list[str]]:
    lines = [line.split(",") for line in path.read_text().splitlines()]
    return {name: list(values) for name, values in zip(lines[0], zip(*lines[1:], strict=True), strict=True)}


def features(home: Path, texts: list[str]) -> Any:
    """What the weights on the disk make of the texts."""
    name, config, hardware = str(home / "model"), ModelConfig(), choose_hardware("cpu", "float32")
    model = load_model(name, Task("binary", ("bad", "good")), config, seed=0).model
    return embed_texts(model, load_tokenizer(name, config), texts, hardware, 64)


def values(record: Baselines) -> dict[str, float]:
    return {each["name"]: each["value"] for each in record.baselines}


def classes(labels: list[str]) -> Any:
    return np.array([("bad", "good").index(label) for label in labels])


def test_both_splits_have_the_model_beside_three_simpler_answers(single: Run) -> None:
    assert list(single.baselines) == ["validation", "test"]
    for split, prefix in (("validation", ""), ("test", "test_")):
        record = single.baselines[split]
        assert set(values(record)) == {"frozen", "TF-IDF", "commonest"}
        assert record.value == single.metrics[f"{prefix}accuracy"]
        assert record.rows == {"validation": 14, "test": 12}[split]
        assert record.left_out == []
    assert isinstance(single.records[-1], End)


def test_they_are_trained_on_the_training_rows_and_read_the_pretrained_weights(single: Run, home: Path) -> None:
    given, asked = columns(home / "single" / "train.csv"), columns(home / "single" / "test.csv")
    labels, truth = classes(given["label"]), classes(asked["label"])
    words = tfidf_predictions("binary", 2, given["text"], None, labels, asked["text"])
    frozen = frozen_predictions("binary", 2, features(home, given["text"]), labels, features(home, asked["text"]))
    content = json.loads((single.path / "baselines.json").read_text())["test"]["baselines"]
    scores = {each["name"]: each["scores"] for each in content}
    assert scores["TF-IDF"] == pytest.approx(score("binary", words, truth))
    assert scores["frozen"] == pytest.approx(score("binary", frozen, truth))


def test_the_file_has_every_score_and_the_sentence(single: Run) -> None:
    content = json.loads((single.path / "baselines.json").read_text())
    assert content["test"]["sentence"] == single.baselines["test"].sentence
    assert set(content["test"]["baselines"][0]["scores"]) >= {"accuracy", "f1", "roc_auc"}
    assert markdown_escaped(single.baselines["test"].sentence) in (single.path / "model" / "README.md").read_text()


def test_pairs_are_compared_by_their_texts(home: Path, tmp_path: Path) -> None:
    run = train(home, tmp_path / "run", "pair", pair="second", text="first")
    given, asked = columns(home / "pair" / "train.csv"), columns(home / "pair" / "test.csv")
    own, other = (
        pair_features(features(home, each["first"]), features(home, each["second"])) for each in (given, asked)
    )
    frozen = frozen_predictions("binary", 2, own, classes(given["label"]), other)
    assert values(run.baselines["test"])["frozen"] == accuracy(classes(asked["label"]), frozen.argmax(axis=1))


def test_folds_hold_out_the_same_rows_from_the_baselines(home: Path, tmp_path: Path) -> None:
    run = train(home, tmp_path / "run", "single/train.csv", folds=3)
    table = pq.read_table(run.path / "predictions.parquet")
    texts, labels, folds = (table[name].to_pylist() for name in ("text", "label", "fold"))

    def fit(train: Any, held: Any) -> Any:
        own, others = ([texts[row] for row in rows] for rows in (train, held))
        return tfidf_predictions("binary", 2, own, None, np.array(labels)[train], others)

    expected = out_of_fold(fit, folds).argmax(axis=1)
    record = run.baselines["validation"]
    assert (record.rows, record.out_of_fold) == (36, True)
    assert values(record)["TF-IDF"] == accuracy(labels, expected)
    assert record.value == accuracy(labels, table["predicted"].to_pylist())


def test_long_data_is_sampled_and_says_so(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(made, "EVALUATED_ROWS", 5)
    monkeypatch.setattr(made, "MIN_TOKENS", 500)
    monkeypatch.setattr(made, "MAX_TOKENS", 500)
    run = train(home, tmp_path / "run")
    record = run.baselines["test"]
    taken = {each["name"]: each["trained_on"] for each in record.baselines}
    assert (record.rows, record.of_rows, record.train_rows) == (5, 12, 36)
    assert 0 < taken["frozen"] < 36
    assert taken["TF-IDF"] is None
    assert " on 5 of 12 rows: " in record.sentence
    assert run.metrics["test_accuracy"] * 12 == pytest.approx(round(run.metrics["test_accuracy"] * 12))


def test_a_baseline_that_fails_is_left_out_and_named(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Any, asked: Any) -> Any:
        raise MemoryError("no room for the second model\nat all")

    monkeypatch.setattr(made._Made, "_frozen", fails)
    run = train(home, tmp_path / "run")
    record = run.baselines["test"]
    assert isinstance(run.records[-1], End)
    assert set(values(record)) == {"TF-IDF", "commonest"}
    assert record.left_out == ["frozen: no room for the second model"]


def test_a_run_that_was_interrupted_in_them_ends_like_any_other(
    single: Run, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stops(self: Any, asked: Any) -> Any:
        raise Interrupted("Interrupted.", "Run it again.")

    with monkeypatch.context() as patched:
        patched.setattr(made._Made, "_tfidf", stops)
        with pytest.raises(Interrupted):
            train(home, tmp_path / "run")
    assert not (tmp_path / "run" / "baselines.json").exists()
    assert differences(run_contents(single.path), run_contents(train(home, tmp_path / "run").path)) == []


def test_without_labelled_rows_to_measure_there_are_none(home: Path, tmp_path: Path) -> None:
    run = train(home, tmp_path / "run", "single/train.csv", validation_share=0, test_share=0)
    assert run.baselines == {}
    assert not (run.path / "baselines.json").exists()


def test_what_is_made_again_after_a_resume_is_there_once(single: Run) -> None:
    own = [record for record in single.records if isinstance(record, Baselines)]
    again = [*single.records, Resume(step=3, path=""), *own]
    assert [record for record in replay(again) if isinstance(record, Baselines)] == own
    later = [dataclasses.replace(record, split="other") for record in own]
    assert [r.split for r in replay([*again, *later]) if isinstance(r, Baselines)] == [
        *single.baselines,
        *["other"] * 2,
    ]
