"""The model card says what the model is, and nothing in it can become markup."""

from __future__ import annotations

from pathlib import Path

from whet.config import make_config
from whet.records import Baselines, Evaluation, Start
from whet.runs.folder import RunFolder
from whet.runs.report.model_card import model_card


def a_run(path: Path, label: str = "good") -> RunFolder:
    run = RunFolder.create(path, make_config({"source": "x.csv"}))
    run.write_json("data.json", {"task": "binary", "labels": ["bad", label], "fingerprint": "abc", "max_length": 64})
    run.append(
        Start(
            step=0,
            total_steps=9,
            steps_per_epoch=3,
            task="binary",
            labels=["bad", label],
            rows={"validation": 10},
            prior={},
            metric="accuracy",
            higher_is_better=True,
            majority={"label": label, "metric": "accuracy", "value": 0.6},
        )
    )
    run.append(
        Evaluation(step=9, epoch=3.0, split="validation", loss=0.4, metrics={"accuracy": 0.8}, rows=10, best=True)
    )
    return run


def test_the_card_has_score_majority_and_fingerprint(tmp_path: Path) -> None:
    card = model_card(a_run(tmp_path / "run"))
    assert "| validation | 10 | accuracy 0.8000 |" in card
    assert "Always answering 'good' scores accuracy 0.6000." in card
    assert "abc" in card


def test_a_label_cannot_become_markup(tmp_path: Path) -> None:
    card = model_card(a_run(tmp_path / "run", label="<script>|x"))
    assert "<script>" not in card


def test_the_card_has_the_simpler_answers(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    sentence = "accuracy on 10 rows: fine-tuned .800, TF-IDF .700."
    run.append(Baselines(step=9, split="validation", metric="accuracy", rows=10, value=0.8, sentence=sentence))
    assert f"Beside simpler answers to the same validation rows: {sentence}" in model_card(run)
