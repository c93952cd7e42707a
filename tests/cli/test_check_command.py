from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.data_files import as_csv, labelled, write
from whet.cli import main


def test_tables_fit_eighty_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels = [f"a rather long label with the number {number} in it" for number in range(15)]
    rows = labelled(300, labels)
    assert main(["check", str(write(tmp_path / "a.csv", as_csv([*rows, *rows[:9]])))]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "… 3 more" in out
    assert "duplicate" in out


def test_json_says_what_was_understood(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.csv", as_csv(labelled(100)))
    assert main(["check", str(path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["columns"] == {"text": "text", "pair": None, "label": "label"}
    assert facts["labels"] == ["bad", "good"]
    assert facts["findings"] == []


def test_findings_are_shown_before_the_refusal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.csv", as_csv(labelled(100)))
    assert main(["check", str(path), "--test", str(path)]) == 2
    captured = capsys.readouterr()
    assert "error    leak" in captured.out
    assert "--allow leak" in captured.err


def test_source_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check"]) == 2
    assert "whet check sample/pairs" in capsys.readouterr().err


def test_torch_and_transformers_stay_out() -> None:
    import subprocess
    import sys

    code = (
        "import sys; from whet.cli import main; main(['check', 'sample/pairs']); "
        "print({'torch', 'transformers'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "set()"


THAI = [("ร้านนี้ดีมาก" + "กขคง"[n % 4] * (n // 4 + 1), "ดี" if n % 2 else "แย่") for n in range(60)]


@pytest.mark.parametrize("command", ["check", "train"])
def test_thai_text_is_not_given_to_a_model_that_knows_none(
    command: str, tmp_path: Path, tiny_model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "thai.csv", as_csv(THAI))
    run = ["--run", str(tmp_path / "run")] if command == "train" else []
    assert main([command, str(path), "--model", str(tiny_model_folder), *run]) == 2
    said = capsys.readouterr().err
    assert "100% of the tokens are unknown" in said
    assert "--allow unknown-tokens" in said
    assert not (tmp_path / "run").exists()


def test_texts_that_are_too_long_are_found_by_check(
    tmp_path: Path, tiny_model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "a.csv", as_csv(labelled(100)))
    assert main(["check", str(path), "--model", str(tiny_model_folder), "--max-length", "8", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    finding = next(each for each in facts["findings"] if each["code"] == "too-long")
    assert "of the text is not read" in finding["message"]
    assert facts["tokens"]["max_length"] == 8
