"""Every task through every door: train, evaluate, predict, and transformers' pipeline, with scores computed anew.

The data is so small and the model so random that no score means anything; what is held is that all of them agree.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics as sk

import whet
from tests.data_files import as_csv, write
from whet.cli import main
from whet.config import DataConfig
from whet.inference.evaluate import evaluate_model
from whet.metrics.scores import score

WORDS = ("apple", "brick", "cloud", "drum", "eagle", "flute", "grape", "house", "iron", "jelly")
TOPICS = ("food", "money", "sport")
CLASSES = {"binary": ("no", "yes"), "multiclass": ("bad", "fair", "good")}
SPELLINGS = ("lists", "cells", "written", "columns")
KINDS = ("binary", "multiclass", *(f"multilabel {spelling}" for spelling in SPELLINGS), "regression")
SETTINGS: dict[str, Any] = {"epochs": 3, "batch_size": 8, "learning_rate": 0.01, "evaluations": 2, "device": "cpu"}
SETTINGS |= {"precision": "float32", "validation_share": 0.2, "test_share": 0.2}
TRAINED_IN_FLOAT32, ANSWERED_IN_BF16 = 2e-4, 0.05


@dataclass(frozen=True)
class Case:
    """Rows of one task, spelled in one way."""

    kind: str
    pairs: bool

    @property
    def task(self) -> str:
        return self.kind.split()[0]

    @property
    def labels(self) -> tuple[str, ...]:
        return TOPICS if self.task == "multilabel" else CLASSES.get(self.task, ())

    def rows(self, count: int = 60) -> list[dict[str, Any]]:
        chosen, found = random.Random(1), []
        for number in range(count):
            on = [topic for place, topic in enumerate(TOPICS) if (number + place) % 3 == 0 or number % 7 == place]
            first = {"multilabel": " ".join(on), "regression": "good " * (number % 5)}
            label = self.labels[number % len(self.labels)] if self.labels else ""
            words = f"{first.get(self.task, label)} {' '.join(chosen.choices(WORDS, k=4))} {number}".strip()
            row: dict[str, Any] = {"text": words}
            if self.pairs:
                row["pair"] = f"another {' '.join(chosen.choices(WORDS, k=3))}"
            found.append(row | self._label(number, label, on))
        return found

    def _label(self, number: int, label: str, on: list[str]) -> dict[str, Any]:
        spelled: dict[str, dict[str, Any]] = {
            "lists": {"label": on},
            "cells": {"label": "|".join(on)},
            "written": {"label": json.dumps(on)},
            "columns": {topic: int(topic in on) for topic in TOPICS},
        }
        if self.task == "multilabel":
            return spelled[self.kind.split()[1]]
        return {"label": number % 5 + number / 100 if self.task == "regression" else label}

    def flags(self) -> dict[str, Any]:
        found = {"text": "text", "label": ",".join(TOPICS) if self.kind.endswith("columns") else "label"}
        return found | ({"pair": "pair"} if self.pairs else {})

    def write(self, folder: Path) -> Path:
        rows = self.rows()
        if self.kind.endswith("lists"):
            return write(folder / "rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        return write(folder / "rows.csv", as_csv([row.values() for row in rows], header=list(rows[0])))

    def truth(self) -> Any:
        """Labels as numbers, in the order of the rows."""
        rows = self.rows()
        if self.task == "multilabel":
            of = {"lists": list, "cells": lambda cell: cell.split("|"), "written": json.loads}
            spelling = self.kind.split()[1]
            if spelling == "columns":
                return np.array([[row[topic] for topic in TOPICS] for row in rows])
            return np.array([[int(topic in of[spelling](row["label"])) for topic in TOPICS] for row in rows])
        if self.task == "regression":
            return np.array([row["label"] for row in rows], np.float32)
        return np.array([self.labels.index(row["label"]) for row in rows])


ALL = [Case(kind, pairs) for kind in KINDS for pairs in (False, True)]
FAST = {
    ("cli", Case("binary", False)), ("cli", Case("multilabel columns", True)), ("cli", Case("regression", False)),
    ("fit", Case("multiclass", True)), ("fit", Case("multilabel lists", False)),
    ("trainer", Case("binary", True)), ("trainer", Case("regression", False)),
    ("estimator", Case("multiclass", False)), ("estimator", Case("binary", True)),
}  # fmt: skip


def cases(door: str) -> list[Any]:
    """All of them; those that the fast suite leaves out are marked slow."""
    marks = {case: () if (door, case) in FAST else pytest.mark.slow for case in ALL}
    return [
        pytest.param(case, marks=marks[case], id=f"{case.kind}{' pairs' if case.pairs else ''}".replace(" ", "-"))
        for case in ALL
    ]


def sklearn_scores(task: str, logits: Any, truth: Any) -> dict[str, float]:
    """whet's metrics as scikit-learn and scipy compute them."""
    logits = np.asarray(logits, np.float64)
    if task == "regression":
        said = logits.reshape(-1)
        return {
            "pearson": float(np.corrcoef(truth, said)[0, 1]),
            "spearman": float(stats.spearmanr(truth, said).statistic),
            "mse": sk.mean_squared_error(truth, said),
            "mae": sk.mean_absolute_error(truth, said),
            "r2": sk.r2_score(truth, said),
        }
    if task == "multilabel":
        said = (logits >= 0).astype(int)
        return {
            "micro_f1": sk.f1_score(truth, said, average="micro", zero_division=0),
            "macro_f1": sk.f1_score(truth, said, average="macro", zero_division=0),
            "exact_match": sk.accuracy_score(truth, said),
            "average_precision": sk.average_precision_score(truth, logits, average="macro"),
        }
    said = logits.argmax(axis=1)
    found = {"accuracy": sk.accuracy_score(truth, said), "matthews": sk.matthews_corrcoef(truth, said)}
    if task == "multiclass":
        averages = {
            f"{name}_f1": sk.f1_score(truth, said, average=name, zero_division=0) for name in ("macro", "weighted")
        }
        return found | averages
    return found | {
        "f1": sk.f1_score(truth, said, zero_division=0),
        "precision": sk.precision_score(truth, said, zero_division=0),
        "recall": sk.recall_score(truth, said, zero_division=0),
        "roc_auc": sk.roc_auc_score(truth, logits[:, 1] - logits[:, 0]),
    }


def scores_of_the_file(case: Case, run: whet.Run) -> None:
    """The run's scores are those of the predictions that it wrote."""
    table = pq.read_table(run.path / "predictions.parquet")
    assert ("probability" in table.column_names) == (case.task != "regression")
    for split, prefix in (("validation", ""), ("test", "test_")):
        rows = [row for row in table.to_pylist() if row["split"] == split]
        expected = sklearn_scores(case.task, [row["logits"] for row in rows], np.array([row["label"] for row in rows]))
        assert {name: run.metrics[prefix + name] for name in expected} == pytest.approx(expected, abs=1e-6)


def piped(case: Case, folder: Path, rows: Sequence[dict[str, Any]]) -> Any:
    """What transformers makes of the saved model: [rows, labels] in the order of the labels, or numbers."""
    import transformers

    pipe = transformers.pipeline("text-classification", str(folder), device="cpu")
    texts = [{"text": row["text"], "text_pair": row["pair"]} if case.pairs else row["text"] for row in rows]
    function = {"multilabel": "sigmoid", "regression": "none"}.get(case.task, "softmax")
    answers = [pipe(text, top_k=None, truncation=True, function_to_apply=function) for text in texts]
    if case.task == "regression":
        return np.array([[each["score"] for each in answer] for answer in answers])
    named = [{each["label"]: each["score"] for each in answer} for answer in answers]
    return np.array([[row[label] for label in case.labels] for row in named])


def said_by(case: Case, predictions: Sequence[whet.Prediction]) -> Any:
    if case.task == "regression":
        return np.array([[each.label] for each in predictions])
    return np.array([[each.probabilities[label] for label in case.labels] for each in predictions])


def labels_follow(case: Case, predictions: Sequence[whet.Prediction]) -> None:
    """The label is that of the largest probability; several labels are those from a half on."""
    for each in predictions:
        if case.task == "multilabel":
            assert each.label == [label for label in case.labels if each.probabilities[label] >= 0.5]
        elif case.task != "regression":
            assert each.label == max(each.probabilities, key=lambda name: each.probabilities[name])


@pytest.mark.parametrize("case", cases("cli"))
def test_a_task_by_the_command_line(
    case: Case, tiny_model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, run, out = str(case.write(tmp_path)), str(tmp_path / "run"), tmp_path / "out.jsonl"
    given = [f"--{name}={value}" for name, value in case.flags().items()]
    given += [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
    assert main(["train", source, "--model", str(tiny_model_folder), "--run", run, "--quiet", *given]) == 0
    scores_of_the_file(case, whet.Run(run))
    capsys.readouterr()
    assert main(["evaluate", run, source, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["splits"]["test"]
    predictor = whet.load(run, device="cpu")  # in the precision of the command
    logits = predictor.logits(
        [row["text"] for row in case.rows()], [r["pair"] for r in case.rows()] if case.pairs else None
    )
    expected = sklearn_scores(case.task, logits, case.truth())
    assert {name: each["value"] for name, each in found["metrics"].items()} == pytest.approx(
        expected, abs=1e-6, nan_ok=True
    )
    assert main(["predict", run, source, "-o", str(out), "--device", "cpu"]) == 0
    written = [json.loads(line) for line in out.read_text().splitlines()]
    own = "predicted" if "label" in case.rows()[0] else "label"
    names = [own] if case.task == "regression" else [f"p({label})" for label in case.labels]
    answers = np.array([[row[name] for name in names] for row in written])
    near = ANSWERED_IN_BF16 if predictor.hardware.bf16 else TRAINED_IN_FLOAT32
    np.testing.assert_allclose(answers, piped(case, Path(run) / "model", case.rows()), atol=near)


@pytest.mark.parametrize("case", cases("fit"))
def test_a_task_by_fit(case: Case, tiny_model_folder: Path, tmp_path: Path) -> None:
    rows = case.rows()
    run = whet.fit(rows, model=str(tiny_model_folder), run=str(tmp_path / "run"), **case.flags(), **SETTINGS)
    scores_of_the_file(case, run)
    predictor = whet.load(run.path, device="cpu", precision="float32")
    assert predictor.task.labels == case.labels
    predictions = predictor.predict(rows)
    labels_follow(case, predictions)
    np.testing.assert_allclose(
        said_by(case, predictions), piped(case, run.path / "model", rows), atol=TRAINED_IN_FLOAT32
    )
    pairs = [row["pair"] for row in rows] if case.pairs else None
    logits = predictor.logits([row["text"] for row in rows], pairs)
    found = evaluate_model(predictor, rows, DataConfig(source="rows", **case.flags()))["test"]
    expected = sklearn_scores(case.task, logits, case.truth())
    assert {name: each["value"] for name, each in found["metrics"].items()} == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("case", cases("trainer"))
def test_a_task_by_the_trainer(case: Case, tiny_model_folder: Path, tmp_path: Path) -> None:
    import datasets
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model_folder)
    rows, truth = case.rows(), case.truth()
    inputs = tokenizer([row["text"] for row in rows], [row["pair"] for row in rows] if case.pairs else None)
    labels = truth.astype(np.float32 if case.task in ("multilabel", "regression") else np.int64)
    table = datasets.Dataset.from_dict({**inputs, "labels": labels.tolist()})
    kinds = {"multilabel": "multi_label_classification", "regression": "regression"}
    model = AutoModelForSequenceClassification.from_pretrained(
        tiny_model_folder,
        num_labels=len(case.labels) or 1,
        problem_type=kinds.get(case.task, "single_label_classification"),
        **(
            {"id2label": dict(enumerate(case.labels)), "label2id": {n: k for k, n in enumerate(case.labels)}}
            if case.labels
            else {}
        ),
    )
    trainer = whet.Trainer(
        model=model,
        args=whet.TrainingArguments(
            str(tmp_path / "out"), max_steps=6, learning_rate=0.01, use_cpu=True, bf16=False, report_to="none"
        ),
        train_dataset=table,
        eval_dataset=table,
        processing_class=tokenizer,
        compute_metrics=lambda found: score(case.task, found.predictions, found.label_ids),
    )
    trainer.train()
    found = trainer.evaluate()
    logits = trainer.predict(table).predictions
    expected = sklearn_scores(case.task, logits, truth)
    assert {name: found[f"eval_{name}"] for name in expected} == pytest.approx(expected, abs=1e-5)
    trainer.save_model(str(tmp_path / "saved"))
    predictor = whet.load(tmp_path / "saved", device="cpu", precision="float32")
    predictions = predictor.predict(
        [row["text"] for row in rows], [row["pair"] for row in rows] if case.pairs else None
    )
    labels_follow(case, predictions)
    answers = piped(case, tmp_path / "saved", rows)
    np.testing.assert_allclose(said_by(case, predictions), answers, atol=TRAINED_IN_FLOAT32)


@pytest.mark.parametrize("case", [case for case in cases("estimator") if case.values[0].task in CLASSES])
def test_a_task_by_the_estimator(case: Case, tiny_model_folder: Path, tmp_path: Path) -> None:
    """`TextClassifier` has one label a row; the other tasks are refused (tests/adapters/test_sklearn.py)."""
    rows, names = case.rows(), np.array(case.labels)
    X = [[row["text"], row["pair"]] if case.pairs else row["text"] for row in rows]
    y = names[case.truth()]
    model = whet.TextClassifier(model=str(tiny_model_folder), run=str(tmp_path / "run"), **SETTINGS).fit(X, y)
    scores_of_the_file(case, whet.Run(tmp_path / "run"))
    said = model.predict(X)
    assert model.score(X, y) == pytest.approx(sk.accuracy_score(y, said))
    predictor = whet.load(tmp_path / "run", device="cpu", precision="float32")
    predictions = predictor.predict(X if case.pairs else [row["text"] for row in rows])
    labels_follow(case, predictions)
    assert said.tolist() == [each.label for each in predictions]
    places = [case.labels.index(name) for name in model.classes_]
    shares = np.array([[each.probabilities[label] for label in case.labels] for each in predictions])
    np.testing.assert_allclose(model.predict_proba(X), shares[:, places], atol=1e-6)
    found = evaluate_model(predictor, rows, DataConfig(source="rows", **case.flags()))["test"]
    expected = sklearn_scores(case.task, predictor.logits(*columns(case, rows)), case.truth())
    assert {name: each["value"] for name, each in found["metrics"].items()} == pytest.approx(expected, abs=1e-6)
    raw = predictor.predict(X if case.pairs else [row["text"] for row in rows], raw=True)
    np.testing.assert_allclose(
        said_by(case, raw), piped(case, tmp_path / "run" / "model", rows), atol=TRAINED_IN_FLOAT32
    )


def columns(case: Case, rows: list[dict[str, Any]]) -> tuple[list[str], list[str] | None]:
    return [row["text"] for row in rows], [row["pair"] for row in rows] if case.pairs else None


# --- order ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["multilabel columns", "multilabel lists", "multiclass"])
def scored(request: pytest.FixtureRequest, tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A case, its predictor with a random head, and the scores of its rows as they stand."""
    from whet.config import ModelConfig
    from whet.models.pretrained import load_model, load_tokenizer, save_model
    from whet.task import Task

    case = Case(request.param, pairs=False)
    folder = tmp_path_factory.mktemp("order")
    loaded = load_model(str(tiny_model_folder), Task(case.task, case.labels), ModelConfig(), seed=3)
    save_model(loaded.model, load_tokenizer(str(tiny_model_folder), ModelConfig()), folder)
    predictor = whet.load(folder, device="cpu", precision="float32")
    return case, predictor, evaluated(case, predictor, case.rows(24), case.flags()["label"])


def evaluated(case: Case, predictor: whet.Predictor, rows: list[dict[str, Any]], label: str) -> dict[str, float]:
    found = evaluate_model(predictor, rows, DataConfig(source="rows", text="text", label=label))["test"]
    return {name: each["value"] for name, each in found["metrics"].items()}


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.randoms(use_true_random=False))
def test_the_order_of_columns_rows_and_labels_changes_no_score(scored: Any, seed: random.Random) -> None:
    case, predictor, expected = scored
    rows = case.rows(24)
    seed.shuffle(rows)
    names = list(rows[0])
    seed.shuffle(names)
    rows = [{name: row[name] for name in names} for row in rows]
    topics = list(TOPICS)
    seed.shuffle(topics)
    if case.kind.endswith("lists"):
        rows = [{**row, "label": sorted(row["label"], key=topics.index)} for row in rows]
    label = ",".join(topics) if case.kind.endswith("columns") else "label"
    assert evaluated(case, predictor, rows, label) == pytest.approx(expected, abs=1e-9)
