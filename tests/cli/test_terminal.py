"""Sentences fit the terminal they are shown on, and stay whole elsewhere."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path

import pytest

from tests.run_folders import build_run
from whet.api import Run
from whet.cli.compare import compare
from whet.cli.terminal import Terminal, baselines_table, show_result

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
    with open(writing, "w", encoding="utf-8") as stream, redirect_stdout(stream), redirect_stderr(stream):
        what()
    text = b""
    with suppress(OSError):  # how a terminal ends that nobody writes to any more
        while part := os.read(reading, 65536):
            text += part
    os.close(reading)
    return text.decode().replace("\r\n", "\n").splitlines()


def test_a_line_that_stays_is_cut_between_words() -> None:
    lines = shown(lambda: Terminal().echo(SENTENCE))
    assert len(lines) == 2
    assert max(map(len, lines)) <= 50
    assert lines[1].startswith("  ")
    assert " ".join(line.strip() for line in lines) == SENTENCE


def test_a_path_is_not_cut() -> None:
    path = "a-long-name/" * 8
    assert f"  {path}" in shown(lambda: Terminal().echo(f"It is in {path}"))


def test_off_a_terminal_lines_stay_whole(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    Terminal().echo(SENTENCE)
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


@pytest.mark.parametrize("task", ["binary", "multilabel", "regression"])
def test_simpler_answers_are_a_table_of_eighty_columns(tmp_path: Path, task: str) -> None:
    run = Run(build_run(tmp_path / "run", task=task, baselines=True).path)
    longest = dataclasses.replace(run.baselines["test"], rows=4000, of_rows=1_000_000, left_out=["TF-IDF: " + SENTENCE])
    longest.baselines[0]["trained_on"] = 20_000
    lines = shown(lambda: print("\n".join(baselines_table(longest))), 80)
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("beside     ")
    constant = "constant" if task == "regression" else "commonest"
    assert {line.split()[0] for line in lines[1:5]} == {"fine-tuned", "frozen", "TF-IDF", constant}
    assert "left out: TF-IDF" in lines[5]


def test_the_result_has_interval_and_simpler_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(build_run(tmp_path / "run", baselines=True).path)
    show_result(run)
    said = capsys.readouterr().out
    low, high = run.intervals["test_accuracy"]
    assert f"test       accuracy {run.metrics['test_accuracy']:.4f} ({low:.4f} to {high:.4f}), f1" in said
    assert "beside     accuracy on 120 test rows" in said
    assert "majority " not in said
    summary = run.summary()
    assert summary["intervals"]["test_accuracy"] == [low, high]
    assert len(summary["baselines"]["test"]["baselines"]) == 3
    json.dumps(summary, allow_nan=False)


def test_lines_above_a_live_line_are_indented_too() -> None:
    def echo() -> None:
        with Terminal() as terminal:
            terminal.echo(SENTENCE)

    assert any(line.startswith("  ") and line.rstrip().endswith("any more.") for line in shown(echo))


def test_a_comparison_fits_the_terminal(tmp_path: Path) -> None:
    paths = [str(build_run(tmp_path / name, seed=5).path) for name in ("a", "b")]
    lines = shown(lambda: compare.main(paths, standalone_mode=False))
    said = lines[next(index for index, line in enumerate(lines) if line.startswith("No difference")) :]
    assert len(said) > 1
    assert max(map(len, said)) <= 50


def test_the_width_can_be_set_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    assert max(map(len, shown(lambda: Terminal().echo(SENTENCE)))) <= 30
