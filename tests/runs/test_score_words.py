"""How scores are told, on the terminal, in the report, in the model card and by `whet evaluate`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.run_folders import build_run
from whet.api import Run
from whet.cli.terminal import show_result
from whet.runs import score_words as words
from whet.runs.report.content import read_report
from whet.runs.report.model_card import model_card
from whet.runs.verdict.judge import curve_data


@pytest.mark.parametrize(
    "value, shown",
    [
        (3.4351423253615696, "3.435"), (0.0, "0"), (-12.5, "-12.5"), (0.000123456, "0.0001235"), (350123.4, "350,123"),
        (1.5e-9, "1.500e-09"), (float("nan"), "not finite"),
    ],
)  # fmt: skip
def test_a_number_has_the_digits_that_count(value: float, shown: str) -> None:
    assert words.number(value) == shown


def test_errors_have_the_digits_of_the_labels_and_shares_four_decimals() -> None:
    assert (words.score("mse", 0.00001234), words.score("accuracy", 0.5)) == ("1.234e-05", "0.5000")


def test_f1_of_two_classes_names_its_class_and_of_more_it_does_not() -> None:
    assert words.metric_of("f1", "binary", ["no", "yes"]) == "f1 of 'yes'"
    assert words.metric_of("accuracy", "binary", ["no", "yes"]) == "accuracy"
    assert words.metric_of("macro_f1", "multiclass", ["a", "b", "c"]) == "macro_f1"


def test_many_labels_of_a_constant_answer_are_counted() -> None:
    assert words.answer([f"label {n}" for n in range(500)]).endswith("'label 5' and 494 more")
    assert words.answer([]) == "none of the labels"


def result(tmp_path: Path, capsys: pytest.CaptureFixture[str], task: str) -> str:
    show_result(Run(build_run(tmp_path / "run", task=task).path))
    return capsys.readouterr().out


def test_a_regression_is_told_beside_a_constant_prediction(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = result(tmp_path, capsys, "regression")
    constant = next(line for line in out.splitlines() if line.startswith("constant"))
    assert "mse " in constant
    assert "mae " in constant
    assert constant.endswith(", the mean of the training labels)")
    assert "majority" not in out
    assert "commonest answer" not in out
    assert all(f"{metric} " in out.splitlines()[0] for metric in ("pearson", "mse", "mae"))


def test_beside_its_baselines_a_regression_still_has_the_constant_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    show_result(Run(build_run(tmp_path / "run", task="regression", baselines=True).path))
    out = capsys.readouterr().out
    assert next(line for line in out.splitlines() if line.startswith("constant")).count("mse ") == 1
    assert "constant prediction" in out
    assert "commonest" not in out


def test_a_verdict_on_a_regression_speaks_of_a_constant_prediction(tmp_path: Path) -> None:
    seen = curve_data(build_run(tmp_path / "run", task="regression").records())
    assert seen.constant == "constant prediction"
    assert seen.answer.startswith("always predicting ")


def test_the_class_of_f1_is_named_in_result_report_and_card(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = result(tmp_path, capsys, "binary")
    assert "f1 of 'same' 0." in out.splitlines()[0]
    folder = Run(tmp_path / "run").folder
    assert "F1 of 'same'" in {score.words for score in read_report(folder).scores.table}
    assert "f1 of 'same' " in model_card(folder)
