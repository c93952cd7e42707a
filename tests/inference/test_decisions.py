"""Decisions are chosen on a run's validation rows, kept with its model, and followed by every answer."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.inference.serving.models import save_run
from tests.run_folders import build_run
from whet.cli import main
from whet.errors import ArtifactError, UsageError
from whet.inference.decisions import decide, read_logits
from whet.metrics.scores import predicted, probabilities
from whet.runs.decisions import FILE, Decisions, read_decisions
from whet.runs.folder import SUMS, RunFolder, sums_of
from whet.task import Task

BINARY = Task("binary", ("different", "same"))
LOGITS = np.random.default_rng(0).normal(0, 2, (50, 2))


def proven_run(path: Path, **settings: Any) -> RunFolder:
    folder = build_run(path, rows=300, **settings)
    folder.write_json(SUMS, sums_of(folder.model))
    return folder


def test_without_decisions_logits_are_read_as_they_are() -> None:
    read = read_logits(BINARY, LOGITS, Decisions())
    assert read.answers.tolist() == predicted("binary", LOGITS).tolist()
    assert read.chances.tolist() == probabilities("binary", LOGITS).tolist()
    assert (read.abstain, read.candidates) == (None, None)


def test_a_temperature_changes_chances_and_no_answer() -> None:
    read = read_logits(BINARY, LOGITS, Decisions(temperature=2.5))
    assert read.answers.tolist() == predicted("binary", LOGITS).tolist()
    assert read.chances.tolist() == probabilities("binary", LOGITS / 2.5).tolist()


def test_a_threshold_decides_for_its_label_against_the_rest() -> None:
    several, logits = Task("multiclass", ("a", "b", "c")), np.log([[0.5, 0.2, 0.3], [0.1, 0.3, 0.6], [0.3, 0.2, 0.5]])
    read = read_logits(several, logits, Decisions(thresholds={"c": 0.55}))
    assert [several.labels[k] for k in read.answers] == ["a", "c", "a"]
    read = read_logits(several, logits, Decisions(thresholds={"c": 0.25}))
    assert [several.labels[k] for k in read.answers] == ["c", "c", "c"]


def test_several_labels_have_a_threshold_each() -> None:
    task, logits = Task("multilabel", ("a", "b")), np.zeros((1, 2))
    assert read_logits(task, logits, Decisions(thresholds={"a": 0.6})).answers.tolist() == [[0, 1]]
    assert read_logits(task, logits, Decisions(thresholds={"a": 0.4, "b": 0.6})).answers.tolist() == [[1, 0]]


def test_unsure_rows_abstain_and_sets_are_sorted_by_chance() -> None:
    several, logits = Task("multiclass", ("a", "b", "c")), np.log([[0.1, 0.3, 0.6], [0.9, 0.05, 0.05]])
    read = read_logits(several, logits, Decisions(confidence=0.8, limit=0.75))
    assert read.abstain is not None
    assert read.abstain.tolist() == [True, False]
    assert read.candidates == [["c", "b"], ["a"]]
    number = read_logits(Task("regression", ()), np.array([[2.0]]), Decisions(limit=0.5))
    assert number.candidates == [[1.5, 2.5]]


@pytest.mark.parametrize("goal", ["precision>=0.8", "recall>=0.9", "f1", "cost=fp:1,fn:10"])
def test_a_goal_is_kept_with_what_to_expect_and_proven(tmp_path: Path, goal: str) -> None:
    folder = proven_run(tmp_path / "run")
    found = decide(folder.path, goal=goal)
    assert list(found.thresholds) == ["same"]
    for name in ("precision", "recall"):
        expected = found.expected["goal"]["same"][name]
        assert 0 <= expected["low"] <= expected["value"] <= expected["high"] <= 1
    assert read_decisions(folder.model) == found
    folder.refuse_changed_model()
    assert folder.read_json(SUMS) == sums_of(folder.model)


def test_decisions_are_added_to_those_there_are_and_taken_back(tmp_path: Path) -> None:
    folder = proven_run(tmp_path / "run")
    decide(folder.path, goal="recall>=0.9", positive="different")
    decide(folder.path, abstain=0.2)
    found = decide(folder.path, coverage=0.9)
    assert found.goal == "recall>=0.9"
    assert list(found.thresholds) == ["different"]
    assert found.confidence is not None
    assert found.limit is not None
    assert set(found.expected) == {"goal", "abstain", "coverage"}
    assert main(["decide", str(folder.path), "--clear"]) == 0
    assert read_decisions(folder.model) == Decisions(found.temperature, found.calibrated_on)


def test_several_labels_and_numbers_are_decided_for(tmp_path: Path) -> None:
    several = decide(proven_run(tmp_path / "several", task="multilabel").path, goal="f1", abstain=0.5, coverage=0.8)
    assert set(several.thresholds) == {"a", "b", "c"}
    number = decide(proven_run(tmp_path / "number", task="regression").path, coverage=0.9)
    assert number.limit is not None
    assert number.temperature == 1.0


@pytest.mark.parametrize(
    ("task", "settings", "match"),
    [
        ("binary", {"goal": "f1", "positive": "sme"}, "no label 'sme'. Did you mean 'same'"),
        ("binary", {"positive": "same"}, "there is no --goal"),
        ("binary", {"abstain": 0.0001}, "No confidence keeps the error to 0.0001"),
        ("binary", {"coverage": 0.999}, "at least 999 rows"),
        ("multiclass", {"goal": "f1"}, "Name it with --positive"),
        ("multilabel", {"goal": "f1", "positive": "a"}, "each label has its own threshold"),
        ("regression", {"goal": "f1"}, "predicts a number"),
        ("regression", {"abstain": 0.1}, "predicts a number"),
    ],
)
def test_what_cannot_be_decided_is_said_and_nothing_is_written(
    tmp_path: Path, task: str, settings: dict[str, Any], match: str
) -> None:
    folder = proven_run(tmp_path / "run", task=task)
    with pytest.raises(UsageError, match=match):
        decide(folder.path, **settings)
    assert not (folder.model / FILE).exists()


def test_a_run_without_predictions_and_a_changed_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no predictions on labelled validation rows"):
        decide(build_run(tmp_path / "bare", predictions=False).path, goal="f1")
    folder = proven_run(tmp_path / "run")
    (folder.model / "config.json").write_text('{"other": 1}')
    with pytest.raises(ArtifactError, match="not the file that the run has written"):
        decide(folder.path, goal="f1")


DAMAGED = ["{", "[]", '{"format": 2}', '{"format": 1, "strange": 1}', '{"format": 1, "temperature": 0}']


@pytest.mark.parametrize("content", [*DAMAGED, '{"format": 1, "thresholds": {"a": "x"}}'])
def test_a_damaged_file_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    with pytest.raises(ArtifactError, match="whet decide"):
        read_decisions(tmp_path)


def test_predict_follows_the_decisions_and_raw_leaves_the_calibration_out(
    tmp_path: Path, tiny_model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import pyarrow.parquet as pq

    folder = save_run(tmp_path / "run", tiny_model_folder, labels=("bad", "good", "odd"))
    decisions = Decisions(0.25, thresholds={"odd": 0.0}, confidence=0.99, limit=0.9)
    (folder / "model" / FILE).write_text(decisions.to_json())
    (tmp_path / "rows.csv").write_text("review\nyes apple\nno brick\n")
    assert main(["predict", str(folder), str(tmp_path / "rows.csv"), "--json", "--device", "cpu"]) == 0
    calibrated = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert main(["predict", str(folder), str(tmp_path / "rows.csv"), "--json", "--raw", "--device", "cpu"]) == 0
    raw = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for one, other in zip(calibrated, raw, strict=True):
        assert (one["label"], one["abstain"]) == ("odd", True)
        assert set(one["candidates"]) <= {"bad", "good", "odd"}
        log_odds = [np.log(each["p(good)"] / each["p(bad)"]) for each in (one, other)]
        assert log_odds[0] == pytest.approx(4 * log_odds[1], rel=1e-3)
    output = tmp_path / "out.parquet"
    assert main(["predict", str(folder), str(tmp_path / "rows.csv"), "-o", str(output), "--device", "cpu"]) == 0
    assert pq.read_table(output)["candidates"].to_pylist() == [each["candidates"] for each in calibrated]


def test_the_command_tells_what_to_expect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = proven_run(tmp_path / "run")
    flags = ["--goal", "recall>=0.9", "--positive", "same", "--abstain", "0.2", "--coverage", "0.9"]
    assert main(["decide", str(folder.path), *flags]) == 0
    said = capsys.readouterr().out
    for part in ("temperature", "goal           recall>=0.9: 'same' from p = ", "answered, error", "labels a set"):
        assert part in said
    assert main(["decide", str(folder.path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {"format": 1, **dataclasses.asdict(read_decisions(folder.model))}
