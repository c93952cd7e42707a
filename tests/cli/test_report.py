from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.run_folders import build_run
from whet.cli.report import report
from whet.errors import UsageError


def test_html_and_markdown_are_written_and_named(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run").path
    answer = CliRunner().invoke(report, [str(run)])
    assert answer.output.split() == [str(run / "report.html"), str(run / "report.md")]
    assert all(Path(name).is_file() for name in answer.output.split())


@pytest.mark.parametrize(("name", "opening"), [("mine.html", "<!doctype html>"), ("mine.md", "# run")])
def test_the_ending_says_what_is_wanted(tmp_path: Path, name: str, opening: str) -> None:
    CliRunner().invoke(report, [str(build_run(tmp_path / "run").path), "-o", str(tmp_path / name)])
    assert (tmp_path / name).read_text().startswith(opening)


def test_another_ending_is_refused(tmp_path: Path) -> None:
    answer = CliRunner().invoke(report, [str(build_run(tmp_path / "run").path), "-o", str(tmp_path / "mine.pdf")])
    assert answer.exit_code == 2
    assert "neither .html nor .md" in answer.output


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    answer = CliRunner().invoke(report, [str(tmp_path)])
    assert isinstance(answer.exception, UsageError)
    assert str(tmp_path) in str(answer.exception)
