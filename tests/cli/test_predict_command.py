"""`whet predict` refuses what would lose data or mean something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from whet.cli import main


def test_the_file_that_is_read_is_not_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "new.csv"
    file.write_text("text\nhello\n")
    assert main(["predict", "run", str(file), "-o", str(file)]) == 2
    assert "both read and written" in capsys.readouterr().err
    assert file.read_text() == "text\nhello\n"


def test_a_missing_output_folder_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "run", "--text", "x", "-o", str(tmp_path / "nowhere" / "out.csv")]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_an_empty_text_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "run", "--text", " "]) == 2
    assert "--text is empty" in capsys.readouterr().err
