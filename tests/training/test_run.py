"""A whole run with a tiny model: what it leaves behind, that it repeats itself to the bit, that it can be loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import whet
from whet.cli import main
from whet.errors import DataError, EnvironmentFault, UsageError
from whet.records import End, Evaluation, Start, without_timings
from whet.runs.folder import RunFolder

WORDS = ["apple", "brick", "cloud", "drum", "eagle", "flute", "grape", "house", "iron", "jelly"]


def write_rows(path: Path, rows: int = 60) -> Path:
    """Texts whose label stands in their first word."""
    rng = np.random.default_rng(0)
    lines = ["text,label"]
    for index in range(rows):
        label = ("bad", "good")[index % 2]
        lines.append(f"{'yes' if label == 'good' else 'no'} {' '.join(rng.choice(WORDS, 4))} {index},{label}")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_rows(tmp_path / "reviews.csv")


def settings(model: Path, **changes: Any) -> dict[str, Any]:
    chosen = {"model": str(model), "epochs": 2, "batch_size": 8, "learning_rate": 1e-3, "evaluations": 3}
    return {**chosen, "precision": "float32", **changes}


@pytest.fixture
def run(source: Path, tiny_model_folder: Path) -> whet.Run:
    return whet.fit(source, **settings(tiny_model_folder))


def test_a_run_leaves_a_complete_folder(run: whet.Run) -> None:
    assert run.path == Path("runs/reviews-001")
    names = {entry.name for entry in run.path.iterdir()}
    assert names >= {"config.toml", "data.json", "environment.json", "records.jsonl", "checkpoints", "model"}
    assert "predictions.parquet" in names


def test_records_tell_the_whole_story(run: whet.Run) -> None:
    assert isinstance(run.records[0], Start)
    assert isinstance(run.records[-1], End)
    evaluations = [record for record in run.records if isinstance(record, Evaluation)]
    assert [record.split for record in evaluations] == ["validation"] * 3 + ["test"]
    assert evaluations[0].probe_loss is not None


def test_metrics_are_those_of_the_best_step(run: whet.Run) -> None:
    best = max(r.metrics["accuracy"] for r in run.records if isinstance(r, Evaluation) and r.split == "validation")
    assert run.metrics["accuracy"] == best
    assert 0 <= run.metrics["test_accuracy"] <= 1


def test_two_runs_with_one_seed_are_equal_to_the_bit(source: Path, tiny_model_folder: Path) -> None:
    first = whet.fit(source, **settings(tiny_model_folder))
    second = whet.fit(source, **settings(tiny_model_folder))
    assert second.path.name == "reviews-002"
    files = [run.path / "model" / "model.safetensors" for run in (first, second)]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert list(map(_story, first.records)) == list(map(_story, second.records))


def _story(record: Any) -> dict[str, Any]:
    return without_timings(record)


def test_another_seed_trains_another_model(source: Path, tiny_model_folder: Path) -> None:
    first = whet.fit(source, **settings(tiny_model_folder))
    second = whet.fit(source, **settings(tiny_model_folder, seed=7))
    files = [run.path / "model" / "model.safetensors" for run in (first, second)]
    assert files[0].read_bytes() != files[1].read_bytes()


def test_transformers_loads_the_model_and_predicts_the_same(run: whet.Run) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

    folder = str(run.path / "model")
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = "yes apple brick cloud"
    with torch.no_grad():
        expected = model(**tokenizer(text, return_tensors="pt")).logits.softmax(-1)[0]
    ours = run.predict(text)
    assert list(ours.probabilities) == ["bad", "good"]
    # bf16, where the machine has it, is good to about two digits.
    np.testing.assert_allclose(list(ours.probabilities.values()), expected.numpy(), atol=1e-2)
    exact = whet.load(run.path, precision="float32").predict(text)
    np.testing.assert_allclose(list(exact.probabilities.values()), expected.numpy(), atol=1e-5)
    (theirs,) = pipeline("text-classification", folder)(text)
    assert theirs["label"] == ours.label
    assert theirs["score"] == pytest.approx(exact.probability, abs=1e-5)


def test_predictions_come_back_in_input_order(run: whet.Run) -> None:
    texts = ["no " + "drum " * (index % 7) + "apple" for index in range(20)]
    together = run.predict(texts)
    alone = [run.predict(text) for text in texts]
    for one, other in zip(together, alone, strict=True):
        assert one.probability == pytest.approx(other.probability, abs=1e-2)


def test_a_loaded_run_predicts_like_the_run(run: whet.Run) -> None:
    assert whet.load(run.path).predict("yes apple") == run.predict("yes apple")


def test_a_run_keeps_the_temperature_of_its_validation_rows_with_the_model(run: whet.Run) -> None:
    from whet.metrics.calibration import usable_temperature
    from whet.runs.decisions import read_decisions
    from whet.runs.report.mistakes import read_answers

    answers = read_answers(run.folder, "validation", "binary", run.folder.data["labels"])
    assert answers is not None
    found = read_decisions(run.folder.model)
    temperature, why = usable_temperature("binary", answers.logits, answers.labels)
    assert found.temperature == pytest.approx(temperature, rel=1e-5)
    assert found.calibrated_on == {"split": "validation", "rows": len(answers.labels), "why": why}
    run.folder.refuse_changed_model()
    assert "whet.json" in run.folder.read_json("model.sums.json")


def test_patience_stops_early(source: Path, tiny_model_folder: Path) -> None:
    run = whet.fit(source, **settings(tiny_model_folder, learning_rate=1e-9, patience=1, evaluations=6))
    assert run.records[-1].reason == "patience"
    assert run.records[-1].step < run.records[0].total_steps


def test_evaluations_come_every_so_many_steps(source: Path, tiny_model_folder: Path) -> None:
    run = whet.fit(source, **settings(tiny_model_folder, eval_every=3, max_steps=7))
    found = [record.step for record in run.records if isinstance(record, Evaluation) and record.split == "validation"]
    assert found == [3, 6, 7]


def test_a_dry_run_says_what_training_would_take_and_leaves_nothing(
    source: Path, tiny_model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(source), "--model", str(tiny_model_folder), "--dry-run"]) == 0
    assert "steps" in capsys.readouterr().err
    assert not Path("runs").exists()


def test_the_settings_of_a_run_are_written_out(run: whet.Run, tiny_model_folder: Path) -> None:
    config = RunFolder.open(run.path).config
    assert config.train.learning_rate == 1e-3
    assert config.model.model == str(tiny_model_folder)


def test_running_a_finished_folder_again_changes_nothing(source: Path, tiny_model_folder: Path) -> None:
    first = whet.fit(source, run="here", **settings(tiny_model_folder))
    before = (first.path / "records.jsonl").read_bytes()
    whet.fit(source, run="here", **settings(tiny_model_folder))
    assert (first.path / "records.jsonl").read_bytes() == before


def test_a_folder_with_foreign_files_is_left_alone(source: Path, tiny_model_folder: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "mine"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("precious")
    with pytest.raises(EnvironmentFault, match="holds something else"):
        whet.fit(source, run=foreign, **settings(tiny_model_folder))
    assert [entry.name for entry in foreign.iterdir()] == ["thesis.txt"]


def test_a_setting_that_does_not_exist_names_the_nearest(source: Path) -> None:
    with pytest.raises(UsageError, match="learning_rate"):
        whet.fit(source, learning_rat=1e-5)


def test_a_missing_source_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere"):
        whet.fit(tmp_path / "nowhere.csv")


@pytest.mark.parametrize("task", ["multiclass", "multilabel", "regression"])
def test_every_task_trains_and_is_scored(task: str, tmp_path: Path, monkeypatch: Any, tiny_model_folder: Path) -> None:
    monkeypatch.chdir(tmp_path)
    labels = {
        "multiclass": lambda i: "abc"[i % 3],
        "multilabel": lambda i: ["x", "y"][: i % 3],
        "regression": lambda i: (i % 7) / 3,
    }[task]
    rows = [{"text": f"{WORDS[i % 10]} {WORDS[i % 7]} number {i}", "label": labels(i)} for i in range(60)]
    Path("rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    run = whet.fit("rows.jsonl", **settings(tiny_model_folder))
    main = {"multiclass": "accuracy", "multilabel": "micro_f1", "regression": "pearson"}[task]
    assert main in run.metrics
    assert run.folder.data["task"] == task
    assert run.predict(["apple brick"])[0].label is not None


def test_other_settings_for_a_finished_run_are_refused(source: Path, tiny_model_folder: Path) -> None:
    whet.fit(source, run="here", **settings(tiny_model_folder))
    with pytest.raises(UsageError, match="learning_rate was"):
        whet.fit(source, run="here", **settings(tiny_model_folder, learning_rate=2e-3))


def test_a_run_that_could_not_start_leaves_no_folder(source: Path, tiny_model_folder: Path) -> None:
    with pytest.raises(UsageError, match="nonsense"):
        whet.fit(source, **settings(tiny_model_folder, metric="nonsense"))
    assert not list(Path("runs").glob("*"))


def test_a_pair_for_a_model_of_single_texts_is_refused(run: whet.Run) -> None:
    with pytest.raises(UsageError, match="trained on single texts"):
        run.predict("one", "two")


def test_the_name_of_a_flag_is_a_setting_too(source: Path) -> None:
    from whet.config import make_config

    assert make_config({"lr": 1e-3}).train.learning_rate == 1e-3


def test_a_run_leaves_no_model_in_memory(tmp_path: Path, tiny_model_folder: Path) -> None:
    import gc

    from whet.engine.network import Network

    source = tmp_path / "rows.csv"
    source.write_text("text,label\n" + "".join(f"{('no', 'yes')[i % 2]} {i},{i % 2}\n" for i in range(40)))

    def networks() -> int:
        return sum(
            isinstance(found, Network) for found in gc.get_objects() if type(found).__module__ == "whet.engine.network"
        )

    gc.collect()
    before = networks()
    gc.disable()
    try:
        whet.fit(source, model=str(tiny_model_folder), run=str(tmp_path / "run"), max_steps=1)
        assert networks() == before
    finally:
        gc.enable()
