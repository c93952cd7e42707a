"""`--processes`: mistakes, signals and kills before a run has begun, and of the launcher itself."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.test_processes import command, finished, processes_of, start, write_rows
from whet.tools.selftest.tiny_run import write_model


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write_rows(tmp_path / "reviews.csv")
    write_model(tmp_path / "model", width=64)
    return tmp_path


def started(place: Path, *more: str) -> subprocess.Popen[str]:
    return start(command(place, place / "model", "run", "--processes", "2", *more))


def ranks_of(launcher: subprocess.Popen[str]) -> list[int]:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if len(found := processes_of(launcher)) == 2:
            return found
        time.sleep(0.05)
    raise AssertionError("no processes were started")


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").is_dir() and "Z (zombie)" not in Path(f"/proc/{pid}/status").read_text()


def test_a_mistake_that_shows_late_is_told_once_and_not_tried_again(place: Path) -> None:
    code, _, err = finished(started(place, "--metric", "nope", "--restarts", "2"))
    assert code == 2
    assert err.count("nope") == 1
    assert "Rank" not in err
    assert not (place / "run").exists()


def test_nothing_is_left_in_the_folder_for_temporary_files(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(place / "tmp"))
    code, _, err = finished(started(place, "--max-steps", "2"))
    assert (code, list((place / "tmp").iterdir())) == (0, []), err


def test_a_folder_that_is_not_a_run_is_told_once(place: Path) -> None:
    (place / "run").mkdir()
    (place / "run" / "mine.txt").touch()
    code, _, err = finished(started(place))
    assert code == 4
    assert err.count("run'") == 1
    assert "Gloo" not in err


@pytest.mark.parametrize("wait", [0.0, 2.0])
def test_a_signal_to_one_process_before_the_run_ends_all_of_them(place: Path, wait: float) -> None:
    launcher = started(place)
    first, second = ranks_of(launcher)
    time.sleep(wait)
    os.kill(second, signal.SIGTERM)
    sent = time.monotonic()
    code, _, err = finished(launcher)
    assert (code, err.count("Interrupted")) == (75, 1)
    assert time.monotonic() - sent < 60  # not the three minutes after which a lost process is given up
    assert not alive(first)


def test_processes_of_a_killed_launcher_save_and_leave(place: Path) -> None:
    launcher = started(place, "--set=epochs=400")
    ranks = ranks_of(launcher)
    records = place / "run" / "records.jsonl"
    until = time.monotonic() + 120
    while not (records.is_file() and '"step"' in records.read_text()) and time.monotonic() < until:
        time.sleep(0.1)
    launcher.kill()
    finished(launcher)
    while any(map(alive, ranks)) and time.monotonic() < until:
        time.sleep(0.1)
    assert not any(map(alive, ranks))
    assert '"interrupted"' in records.read_text()


def test_another_number_than_the_launchers_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "3"}.items():
        monkeypatch.setenv(name, value)
    code, _, err = finished(started(place))
    assert code == 2
    assert "has started 3" in err


def test_one_process_cannot_split_a_model(place: Path) -> None:
    code, _, err = finished(start(command(place, place / "model", "run", "--shard")))
    assert code == 2
    assert "--processes 2" in err
    assert not (place / "run").exists()
