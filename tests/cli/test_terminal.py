"""Sentences fit the terminal they are shown on, and stay whole elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from tests.run_folders import build_run
from whet.api import Run
from whet.cli.compare import compare
from whet.cli.terminal import Terminal, show_result

termios = pytest.importorskip("termios")
SENTENCE = "The words of this sentence go on until they do not fit into a narrow line any more."


@pytest.fixture(autouse=True)
def _nothing_set_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("TERM", "xterm")


def shown(what: Callable[[], object], columns: int = 50) -> list[str]:
    """The lines that a real terminal of this width is sent."""
    reading, writing = os.openpty()
    termios.tcsetwinsize(writing, (24, columns))
    os.set_blocking(reading, False)
    with open(writing, "w", encoding="utf-8") as stream:
        with redirect_stdout(stream), redirect_stderr(stream):
            what()
        stream.flush()
        text = os.read(reading, 65536).decode()
    os.close(reading)
    return text.replace("\r\n", "\n").splitlines()


def test_a_line_that_stays_is_cut_between_words() -> None:
    lines = shown(lambda: Terminal().say(SENTENCE))
    assert len(lines) == 2
    assert max(map(len, lines)) <= 50
    assert lines[1].startswith("  ")
    assert " ".join(line.strip() for line in lines) == SENTENCE


def test_a_path_is_not_cut() -> None:
    path = "a-long-name/" * 8
    assert f"  {path}" in shown(lambda: Terminal().say(f"It is in {path}"))


def test_off_a_terminal_lines_stay_whole(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    Terminal().say(SENTENCE)
    show_result(Run(build_run(tmp_path / "run").path))
    said = capsys.readouterr()
    assert said.err == SENTENCE + "\n"
    assert [line for line in said.out.splitlines() if line.startswith("verdict ") and len(line) > 80]
    assert not [line for line in said.out.splitlines() if line.startswith(" ")]


def test_the_result_fits_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_run(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    lines = shown(lambda: show_result(Run("run")))
    place = next(index for index, line in enumerate(lines) if line.startswith("verdict"))
    assert max(map(len, lines)) <= 50
    assert lines[place + 1].startswith(" " * 11)


def test_lines_above_a_live_line_are_indented_too() -> None:
    def say() -> None:
        with Terminal() as terminal:
            terminal.say(SENTENCE)

    assert any(line.startswith("  ") and line.rstrip().endswith("any more.") for line in shown(say))


def test_a_comparison_fits_the_terminal(tmp_path: Path) -> None:
    paths = [str(build_run(tmp_path / name, seed=5).path) for name in ("a", "b")]
    lines = shown(lambda: compare.main(paths, standalone_mode=False))
    said = lines[next(index for index, line in enumerate(lines) if line.startswith("No difference")) :]
    assert len(said) > 1
    assert max(map(len, said)) <= 50


def test_the_width_can_be_set_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    assert max(map(len, shown(lambda: Terminal().say(SENTENCE)))) <= 30
